"""The observer library in every worker and its children: it records the names that they open, test, list, execute and
map, and the variables that they read; in a bench, also the tensor at which it faults.
"""

from ktuned.observer.library import (
    DAEMON_MARK,
    OFF_VARIABLE,
    REASON_VARIABLE,
    WORKER_MARK,
    LibraryUnavailable,
    build_library,
    make_worker_variables,
    prepare_library,
)
from ktuned.observer.log import LOG_VARIABLE, Kind, Log, Note, prove_observed
