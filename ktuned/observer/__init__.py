"""The observer below every worker: which names it and its children open, test, list, execute and map, and which
variables they read.
"""

from ktuned.observer.library import (
    OFF_VARIABLE,
    LibraryUnavailable,
    build_library,
    make_worker_variables,
    prepare_library,
)
from ktuned.observer.log import LOG_VARIABLE, Kind, Log, Note

__all__ = [
    "LOG_VARIABLE",
    "OFF_VARIABLE",
    "Kind",
    "LibraryUnavailable",
    "Log",
    "Note",
    "build_library",
    "make_worker_variables",
    "prepare_library",
]
