"""The application's side of the drop-ins for other autotuners; plugins build their drop-ins from it.

A drop-in decides what each call launches (:mod:`~ktuned.dropin.launch_machine`), leaves calls in the spool, and asks
the daemon for winners (:mod:`~ktuned.dropin.keyed_call`). ``ktuned run`` installs it in a program that does not import
it (:mod:`~ktuned.dropin.takeover`). A worker reads the calls that were left (:mod:`~ktuned.dropin.adopted_files`).
"""

from ktuned.dropin.account import ANSWERED, FIXED, RECORDED, TUNED, Account, account
from ktuned.dropin.adopted_files import AdoptedFiles
from ktuned.dropin.application import (
    FunctionName,
    find_device_model,
    find_import_directory,
    list_application_paths,
    name_function,
    shorten_dtype,
)
from ktuned.dropin.captures import allow_captures, is_capturing, use_device
from ktuned.dropin.daemon_link import DaemonLink, daemon_link
from ktuned.dropin.keyed_call import NOT_ACCEPTED, KeyedCall, find_log, leave_to_framework
from ktuned.dropin.launch_counts import LaunchCounter, count_launches, leave_launch_counts
from ktuned.dropin.launch_machine import (
    Answer,
    Event,
    LaunchMachine,
    Mode,
    Numerics,
    Policy,
    Standing,
    Upgrade,
    choose_policy,
)
from ktuned.dropin.recorded_call import (
    CAPTURED,
    Declaration,
    NotTunable,
    RecordedCall,
    check_captured_size,
    convert_to_scalar,
    restore_value,
)
from ktuned.dropin.takeover import adopt_framework, adopt_subclasses, explain_bypass
from ktuned.dropin.winners_file import CONSTANTS_KEY, PROGRAMS_KEY, WinnersFile
from ktuned.model import CallKey
from ktuned.spool import (
    CALL_KEY,
    CALLS,
    TYPES_KEY,
    CallRecord,
    digest_content,
    forget_texts,
    keep_texts,
    leave_record,
    read_texts,
    spool_directory,
)
from ktuned.user_directories import find_user_directories
