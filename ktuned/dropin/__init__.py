"""The application's side of drop-ins for other autotuners, for the plugins that put them there.

A drop-in decides what each call launches (:mod:`~ktuned.dropin.launch_machine`), leaves calls in the spool, and asks
the daemon for winners. ``ktuned run`` puts it into a program that does not import it.
"""

from ktuned.dropin.account import RECORDED, TUNED, Account, account
from ktuned.dropin.adopted_files import (
    Calls,
    called_file,
    declaration_of,
    device_model,
    name_in_library,
    own_paths,
    package_of,
    short_dtype,
)
from ktuned.dropin.captures import allow_captures, is_capturing
from ktuned.dropin.daemon_link import LOOK_DEADLINE_S, DaemonLink, daemon_link
from ktuned.dropin.launch_counts import LaunchCounter, count_launches, leave_launch_counts
from ktuned.dropin.launch_machine import (
    Answer,
    Called,
    Followed,
    Forked,
    Host,
    LaunchMachine,
    Policy,
    Standing,
    carry_out,
)
from ktuned.dropin.takeover import when_imported
from ktuned.model import CallKey
from ktuned.spool import (
    CALL_KEY,
    CALLS,
    TYPES_KEY,
    CallRecord,
    digest_of,
    home_directory,
    leave_record,
    spool_directory,
)

__all__ = [
    "CALLS",
    "CALL_KEY",
    "LOOK_DEADLINE_S",
    "RECORDED",
    "TUNED",
    "TYPES_KEY",
    "Account",
    "Answer",
    "CallKey",
    "CallRecord",
    "Called",
    "Calls",
    "DaemonLink",
    "Followed",
    "Forked",
    "Host",
    "LaunchCounter",
    "LaunchMachine",
    "Policy",
    "Standing",
    "account",
    "allow_captures",
    "called_file",
    "carry_out",
    "count_launches",
    "daemon_link",
    "declaration_of",
    "device_model",
    "digest_of",
    "home_directory",
    "is_capturing",
    "leave_launch_counts",
    "leave_record",
    "name_in_library",
    "own_paths",
    "package_of",
    "short_dtype",
    "spool_directory",
    "when_imported",
]
