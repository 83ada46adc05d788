"""The application's side of drop-ins for other autotuners: requests to the daemon, kernel files, ``ktuned run``."""

from ktuned.dropin.account import QUEUED, TUNED, Account, account
from ktuned.dropin.adoption import Adopted, AdoptedRequest, Calls
from ktuned.dropin.kernel_files import (
    CALL_KEY,
    RECORDS,
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
from ktuned.dropin.takeover import when_imported
from ktuned.dropin.tunings import LOOK_DEADLINE_S, Best, Request, Tunings, Upgrade, device_model, shared

__all__ = [
    "CALL_KEY",
    "LOOK_DEADLINE_S",
    "QUEUED",
    "RECORDS",
    "TUNED",
    "Account",
    "Adopted",
    "AdoptedRequest",
    "Best",
    "Calls",
    "Request",
    "Tunings",
    "Upgrade",
    "account",
    "all_records",
    "device_model",
    "digest",
    "home",
    "own_paths",
    "read_record",
    "shared",
    "tensors_file",
    "when_imported",
    "write_once",
    "write_record",
    "write_tensors",
]
