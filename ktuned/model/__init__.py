"""Values that every package shares: identities, configs, devices, plans, trials, jobs, winners, errors.

Plain and frozen, with only the standard library, because workers import them under the project's interpreter.
"""

from ktuned.model.device import Device
from ktuned.model.errors import (
    AmbiguousName,
    BackendError,
    KernelFileError,
    KtunedError,
    NotFound,
    SettingsError,
    StoreDamaged,
    StoreError,
    Unsupported,
    UsageError,
    WorkerError,
    listed,
)
from ktuned.model.job import MAX_PRIORITY, Job, JobState, Priority
from ktuned.model.kernel import KernelInfo, Root
from ktuned.model.keys import (
    DeviceModel,
    DeviceName,
    KernelName,
    KeyProblem,
    Objective,
    Phase,
    ProjectName,
    Role,
    Target,
    WinnerKey,
    full_name,
    key_problem,
    key_values,
    project_of,
)
from ktuned.model.lifecycle import TRIED_AGAIN, Event, Life
from ktuned.model.plan import DEFAULT_TRIALS, PRESETS, Plan, Preset
from ktuned.model.staleness import CAPTURED, Change, sentence, since
from ktuned.model.trial import Context, Trial, TrialResult, Winner
from ktuned.model.values import RETRIED_BY_NEXT_JOB, Config, Outcome, Problem, Scalar, Status, canonical

__all__ = [
    "CAPTURED",
    "DEFAULT_TRIALS",
    "MAX_PRIORITY",
    "PRESETS",
    "RETRIED_BY_NEXT_JOB",
    "TRIED_AGAIN",
    "AmbiguousName",
    "BackendError",
    "Change",
    "Config",
    "Context",
    "Device",
    "DeviceModel",
    "DeviceName",
    "Event",
    "Job",
    "JobState",
    "KernelFileError",
    "KernelInfo",
    "KernelName",
    "KeyProblem",
    "KtunedError",
    "Life",
    "NotFound",
    "Objective",
    "Outcome",
    "Phase",
    "Plan",
    "Preset",
    "Priority",
    "Problem",
    "ProjectName",
    "Role",
    "Root",
    "Scalar",
    "SettingsError",
    "Status",
    "StoreDamaged",
    "StoreError",
    "Target",
    "Trial",
    "TrialResult",
    "Unsupported",
    "UsageError",
    "Winner",
    "WinnerKey",
    "WorkerError",
    "canonical",
    "full_name",
    "key_problem",
    "key_values",
    "listed",
    "project_of",
    "sentence",
    "since",
]
