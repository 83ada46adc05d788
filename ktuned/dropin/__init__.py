"""The application's side of drop-ins for other autotuners: requests to the daemon, kernel files, ``ktuned run``."""

from ktuned.dropin.kernel_files import (
    CALL_KEY,
    all_records,
    digest,
    home,
    own_paths,
    read_record,
    tensors_file,
    write_once,
    write_record,
    write_tensors,
)
from ktuned.dropin.takeover import left_alone, summarise_at_exit, taken_over, when_imported
from ktuned.dropin.tunings import LOOK_DEADLINE_S, Best, Request, Tunings, Upgrade, all_asked, shared

__all__ = [
    "CALL_KEY",
    "LOOK_DEADLINE_S",
    "Best",
    "Request",
    "Tunings",
    "Upgrade",
    "all_asked",
    "all_records",
    "digest",
    "home",
    "left_alone",
    "own_paths",
    "read_record",
    "shared",
    "summarise_at_exit",
    "taken_over",
    "tensors_file",
    "when_imported",
    "write_once",
    "write_record",
    "write_tensors",
]
