"""Types of the maps that the daemon sends: jobs, trials, events and answers.

At run time they are plain dicts. Editors and type checkers know their fields by these types, and the fields of an event
by its ``type``::

    for event in tuned.tune("gemm"):
        if event["type"] == "job_done":
            print(event["job_state"]["state"])

A field's name ends in its unit; without one, a time is in Unix seconds. A daemon of another version
may add fields, or lack some.
"""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict, final

Config = Mapping[str, Any]
Problem = Mapping[str, Any]

JobState = Literal["queued", "paused", "running", "done", "cancelled", "failed"]

Outcome = Literal[
    "measured",
    "slower",
    "compile_error",
    "compile_timeout",
    "unsupported",
    "mismatch",
    "launch_error",
    "crashed",
    "hung",
    "contended",
    "cancelled",
    "interrupted",
]

Status = Literal["fresh", "stale", "near", "default", "unknown"]


@final
class Answer(TypedDict):
    """The answer to a lookup; :class:`~ktuned_client.Hit` explains its fields. A field that may be left out then has
    its usual value (``ktuned_client.answers.LEFT_OUT``).
    """

    kernel: str
    problem: Problem
    device: str | None
    status: Status
    config: Config | None
    latency_us: float | None
    artifact: str | None
    age_s: float | None
    decided: float | None
    file: str | None
    message: str
    generation: int
    final: NotRequired[bool]
    metrics: NotRequired[Mapping[str, float]]
    measured: NotRequired[Problem | None]
    objective: NotRequired[str]
    expected_loss: NotRequired[float | None]


class RefusedLookup(TypedDict):
    """Stands in place of an answer in :class:`LookupManyAnswer`: why the lookup was refused."""

    error: Mapping[str, str]


class LookupManyAnswer(TypedDict):
    """The answers to several lookups, in their order."""

    answers: list[Answer | RefusedLookup]


class Plan(TypedDict):
    """How a job searches, and when it ends; ``deadlines`` are in s, by phase."""

    strategy: str
    seed: int
    preset: str
    trials: int
    time_limit_s: float | None
    early_stop: float
    deadlines: Mapping[str, float]
    compile_only: bool
    until: str
    configs: list[Config]
    again: bool
    objective: str
    anchor: Config | None


class _Figures(TypedDict):
    """How far a job is: configs ``done`` of ``total`` (None if unknown), by outcome, and the latencies so far.

    ``best_figure`` and ``default_figure`` are by the job's objective, if that is not the latency.
    """

    done: int
    total: int | None
    outcomes: Mapping[str, int]
    best_us: float | None
    best_spread_us: float | None
    default_us: float | None
    default_spread_us: float | None
    reference_us: float | None
    reference_spread_us: float | None
    best_figure: float | None
    default_figure: float | None


class Job(_Figures):
    """The tuning of one problem on one device model.

    ``message`` says why it failed; ``waits_for`` why it does not run or, if it runs, does not measure. ``launches``
    counts the launches by applications; ``cost`` is the time it took, in s.
    """

    id: int
    kernel: str
    problem: Problem
    device: str
    state: JobState
    priority: int
    reason: str
    plan: Plan
    created: float
    started: float | None
    finished: float | None
    message: str
    cost: Mapping[str, float]
    objective: str
    waiters: int
    left_s: float | None
    waits_for: str
    launches: int


class Trial(TypedDict):
    """One config that was tried; ``outcome`` is None while it runs. ``detail`` is empty unless it was asked for."""

    id: int
    job: int
    kernel: str
    problem: Problem
    device: str
    config: Config
    outcome: Outcome | None
    latency_us: float | None
    spread_us: float | None
    compile_s: float
    lane_s: float
    message: str
    artifact: str | None
    digest: str
    updated: float
    metrics: Mapping[str, float]
    detail: Mapping[str, Any]


class FileError(TypedDict):
    """An error in a kernel file; ``line`` is 0 if it is not known, ``excerpt`` shows the place of a syntax error."""

    path: str
    line: int
    message: str
    hint: str
    excerpt: NotRequired[str]


class StreamPosition(TypedDict):
    """The number of the latest event, within the lifetime (``epoch``) of one daemon."""

    epoch: int
    seq: int


class TuneAnswer(StreamPosition):
    """The jobs of a ``tune`` request, whose events come after this position of the stream."""

    jobs: list[Job]
    errors: list[FileError]
    notices: list[str]


class _Event(StreamPosition):
    kernel: str | None
    job: int | None


class StreamGap(_Event):
    """Stands for events that are no longer available: request the current state instead."""

    type: Literal["gap"]


class _EventOfKernel(StreamPosition):
    kernel: str
    job: int | None


class KernelStale(_EventOfKernel):
    """A kernel has changed, so its winners are stale."""

    type: Literal["stale"]
    digest: str


class NamesLearned(_EventOfKernel):
    """The kernel also depends on these files; they are watched from now on."""

    type: Literal["learned"]
    names: list[str]


class WinnerChanged(_EventOfKernel):
    """A problem has another winner; without a ``job`` it was known before."""

    type: Literal["winner"]
    problem: Problem
    device: str
    config: Config
    latency_us: float
    trial: int | None
    metrics: Mapping[str, float]
    objective: str


class _EventOfJob(StreamPosition):
    kernel: str
    job: int


class JobEvent(_EventOfJob):
    """A job's state has changed; ``job_state`` is the job as it is now."""

    type: Literal["job_queued", "job_started", "job_paused", "job_done"]
    job_state: Job


class TrialDone(_EventOfJob, _Figures):
    """A config has its outcome; ``left_s`` estimates the time that the job still takes."""

    type: Literal["trial_done"]
    trial: Trial | None
    left_s: float | None


class ConfigCompiled(_EventOfJob, _Figures):
    """A config of a job that only compiles has its ``artifact`` (a path), or an ``outcome`` that says why not."""

    type: Literal["config_compiled"]
    problem: Problem
    target: str
    config: Config
    outcome: Outcome | None
    message: str
    compile_s: float
    facts: Mapping[str, Any]
    artifact: str | None
    reused: bool


class Refining(_EventOfJob):
    """A round of a job's final measurement begins."""

    type: Literal["refining"]
    round: int
    rounds: int
    finalists: int


class LaneChanged(_Event):
    """A device's lane has opened, has closed, or is sick."""

    type: Literal["lane"]
    device: str
    state: str
    reason: str | None


class TuningPaused(_Event):
    """Tuning on a device model (``""``: on all) was paused or resumed; without a ``device``, by a full disk."""

    type: Literal["paused", "resumed"]
    device: NotRequired[str]
    reason: str


class KernelsReloaded(_Event):
    """Kernel files were read again; ``mended`` are the files whose error is gone, ``errors`` all errors now."""

    type: Literal["reloaded"]
    added: list[str]
    changed: list[str]
    replanned: list[str]
    removed: list[str]
    mended: list[str]
    errors: list[FileError]


Event = (
    JobEvent
    | TrialDone
    | ConfigCompiled
    | Refining
    | WinnerChanged
    | KernelStale
    | NamesLearned
    | LaneChanged
    | TuningPaused
    | KernelsReloaded
    | StreamGap
)
"""An event; its ``type`` says which one."""
