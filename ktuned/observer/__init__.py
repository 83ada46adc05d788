"""The observer library in every worker and its children: it records the names that they open, test, list, execute and
map, and the variables that they read; in a bench, also the tensor at which it faults.
"""

from ktuned.observer.library import (
    OFF_VARIABLE,
    REASON_VARIABLE,
    LibraryUnavailable,
    build_library,
    make_worker_variables,
    prepare_library,
)
from ktuned.observer.log import LOG_VARIABLE, Kind, Log, Note, prove_observed

__all__ = [
    "LOG_VARIABLE",
    "OFF_VARIABLE",
    "REASON_VARIABLE",
    "Kind",
    "LibraryUnavailable",
    "Log",
    "Note",
    "build_library",
    "make_worker_variables",
    "prepare_library",
    "prove_observed",
]
