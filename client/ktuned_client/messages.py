"""Types of the maps that the daemon sends: jobs, trials, events and answers.

Generated from the daemon's types by ``tests/client/message_types.py``: change those.

At run time messages are plain dicts. Editors and type checkers know their fields by these types, and the fields of an
event by its ``type``::

    for event in tuned.tune("gemm"):
        if event["type"] == "job_done":
            print(event["job_state"]["state"])

A field's name ends in its unit; without one, a time is in Unix seconds. A daemon of another version
may add fields, or lack some.
"""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict, final

Values = Mapping[str, Any]
"""A problem, a config, or facts, by name."""

Status = Literal["fresh", "stale", "near", "default", "unknown"]

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

JudgeVerdict = Literal["right", "refused", "compile_error", "wrong", "crashed", "hung", "cheating"]


@final
class Answer(TypedDict):
    """The best config known for one problem on one device, and how good it is.

    Fields that hold their defaults are left out of messages: names are the most expensive part to decode.

    Attributes:
        kernel: the kernel's full name.
        problem: the problem that was asked for.
        device: the device's model, or the device as it was asked for if it is not known.
        status: how good the answer is.
        config: the best config known; None if there is none.
        latency_us: the winner's latency. Without a winner it is None, and so are ``artifact``, ``age_s`` and
            ``decided``.
        artifact: the directory of the winner's artifact.
        age_s: seconds since the winner was decided.
        decided: the Unix time at which it was decided.
        file: the kernel file.
        message: why there is no better answer.
        generation: grows whenever the kernel's answers may have changed.
        final: whether a final round on this machine has decided the winner.
        metrics: the winner's metrics.
        measured: the problem that the winner was measured for, if it is not this problem.
        objective: the objective by which the config is the best.
    """

    kernel: str
    problem: Values
    device: str | None
    status: Status
    config: Values | None
    latency_us: float | None
    artifact: str | None
    age_s: float | None
    decided: float | None
    file: str | None
    message: str
    generation: int
    final: NotRequired[bool]
    metrics: NotRequired[Mapping[str, float]]
    measured: NotRequired[Values | None]
    objective: NotRequired[str]


class RefusedLookup(TypedDict):
    """Stands in place of an answer in :class:`LookupManyAnswer`: the protocol's error map of a refused lookup."""

    error: Mapping[str, str]


class LookupManyAnswer(TypedDict):
    """The answers to several lookups, in their order; a refused lookup has a :class:`RefusedLookup`."""

    answers: list[Any]


class Plan(TypedDict):
    """The plan of a job for one space.

    Attributes:
        strategy: name of the search strategy.
        seed: seeds the search's random numbers.
        preset: name of the preset for measurements.
        trials: most trials.
        time_limit_s: longest time of the job; None for no limit.
        early_stop: gives up on configs that take this many times as long as the best config.
        deadlines: deadlines in s, by phase.
        compile_only: compile without measuring.
        until: one of :data:`UNTIL`.
        configs: the only configs to try; empty for the whole space.
        again: repeat measurements that are known.
        objective: a text of :mod:`ktuned.model.objective`.
        anchor: with exact numerics, the config whose bits all others must have; None until it is chosen.
    """

    strategy: str
    seed: int
    preset: str
    trials: int
    time_limit_s: float | None
    early_stop: float
    deadlines: Mapping[str, float]
    compile_only: bool
    until: str
    configs: list[Values]
    again: bool
    objective: str
    anchor: Values | None


class Job(TypedDict):
    """A job as the daemon reports it: with its objective and its current state.

    Attributes:
        priority: its current priority, which decides when its turn comes.
        objective: the objective that it tunes for.
        waiters: number of clients that wait for it.
        left_s: estimate of the seconds that it still needs, while it runs.
        waits_for: why it does not run, or runs but does not measure; empty while it measures.
        launches: number of launches of its key that applications have counted.
    """

    id: int
    kernel: str
    problem: Values
    device: str
    state: JobState
    priority: int
    reason: str
    plan: Plan
    created: float
    started: float | None
    finished: float | None
    done: int
    total: int | None
    best_us: float | None
    best_spread_us: float | None
    default_us: float | None
    default_spread_us: float | None
    reference_us: float | None
    reference_spread_us: float | None
    outcomes: Mapping[str, int]
    message: str
    cost: Mapping[str, float]
    best_figure: float | None
    default_figure: float | None
    objective: str
    waiters: int
    left_s: float | None
    waits_for: str
    launches: int


class Trial(TypedDict):
    """One config that was tried on one problem on one device model, as the store keeps it.

    ``problem`` has only the values that enter the key. ``digest`` is the kernel's digest. ``updated`` is a Unix time in
    s.
    """

    outcome: Outcome | None
    latency_us: float | None
    spread_us: float | None
    compile_s: float
    lane_s: float
    message: str
    artifact: str | None
    detail: Values
    metrics: Mapping[str, float]
    id: int
    job: int
    kernel: str
    problem: Values
    device: str
    config: Values
    digest: str
    updated: float


class FileError(TypedDict):
    """An error in a kernel file.

    Attributes:
        path: the file, absolute; empty if it is not known.
        line: the line's number from 1, or 0 if it is not known.
        message: one line, which may begin with file and line.
        hint: the remedy, if one is known.
        excerpt: for a syntax error, the line of source and a caret below it.
    """

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
    """The jobs that do the work of a request, whose events come after this position of the stream.

    Attributes:
        jobs: the jobs.
        errors: the errors of kernel files that could not be read.
        notices: lines for the person who asked.
    """

    jobs: list[Job]
    errors: list[FileError]
    notices: list[str]


class CompilerError(TypedDict):
    """One error in a source.

    Attributes:
        file: the file as the compiler names it; empty if it names none.
        line: the line, counted from 1.
        column: the column, counted from 1, if the compiler names it.
        message: the error.
    """

    file: str
    line: int
    column: int | None
    message: str


class Factors(TypedDict):
    """How many times as fast as each base a candidate is; None if the base has no latency.

    Attributes:
        reference: the kernel file's reference.
        default: the declared default.
        winner: the current winner.
        against: what the request has named.
    """

    reference: float | None
    default: float | None
    winner: float | None
    against: float | None


class JudgedProblem(TypedDict):
    """A candidate on one problem.

    Attributes:
        verdict: the verdict on this problem.
        reason: why, in one sentence.
        latency_us, spread_us: the median latency of a launch, and its interquartile range; None unless it is right.
        factor_over: its speed relative to others.
        limit: what limits the device for this kernel, such as ``memory bandwidth``.
        limit_share: the share of that limit that it reaches.
        trial: the trial's id, for ``results``.
    """

    problem: Values
    verdict: JudgeVerdict
    reason: str
    latency_us: float | None
    spread_us: float | None
    factor_over: Factors
    limit: str | None
    limit_share: float | None
    trial: int | None


class Candidate(TypedDict):
    """A judged config.

    Attributes:
        config: the config.
        verdict: the worst verdict of its problems.
        reason: why, in one sentence.
        problems: the verdict on each problem.
        registers: the most registers of a thread, if the compiler says so.
        spills: bytes of a thread's spilled registers, if the compiler says so.
        errors: the compiler's first errors.
        checked: what was checked, each in a sentence.
        not_enforced: what this system could not enforce, each in a sentence.
    """

    config: Values
    verdict: JudgeVerdict
    reason: str
    problems: list[JudgedProblem]
    registers: int | None
    spills: int | None
    errors: list[CompilerError]
    checked: list[str]
    not_enforced: list[str]


class JudgeAnswer(TypedDict):
    """The verdicts on all candidates, in the order of the request.

    Attributes:
        judge: the version of this schema.
        kernel: the kernel's full name.
        file: its file.
        device: the device model.
        candidates: the verdicts.
    """

    judge: int
    kernel: str
    file: str
    device: str
    candidates: list[Candidate]


class EventOfKernel(StreamPosition):
    """Base of events that concern a kernel."""

    kernel: str


class EventOfJob(EventOfKernel):
    """Base of events that concern a job."""

    job: int


class JobEvent(EventOfJob):
    """A job's state has changed; ``job_state`` is the job as it is now."""

    type: Literal["job_queued", "job_started", "job_paused", "job_done"]
    job_state: Job


class JobProgress(EventOfJob):
    """A job's figures after one more config; the fields are those of :class:`~ktuned.protocol.Job`."""

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


class TrialDone(JobProgress):
    """A config has its outcome.

    Attributes:
        trial: the trial without its detail; None if only the figures changed.
        left_s: estimate of the seconds that the job still needs.
    """

    type: Literal["trial_done"]
    trial: Trial | None
    left_s: float | None


class ConfigCompiled(JobProgress):
    """A config of a job that only compiles has its artifact, or the reason why there is none.

    Attributes:
        problem: the problem that it was compiled for.
        target: the architecture that it was compiled for.
        config: the config.
        outcome: None if the config has its artifact.
        message: why there is no artifact.
        compile_s: the seconds that the compile took.
        facts: the figures that the compiler reports, by name.
        artifact: the artifact's path.
        reused: whether the artifact existed already.
    """

    type: Literal["config_compiled"]
    problem: Values
    target: str
    config: Values
    outcome: Outcome | None
    message: str
    compile_s: float
    facts: Values
    artifact: str | None
    reused: bool


class Refining(EventOfJob):
    """A round of a job's final measurement begins: number ``round`` of ``rounds``, with ``finalists`` configs."""

    type: Literal["refining"]
    round: int
    rounds: int
    finalists: int


class WinnerChanged(EventOfKernel):
    """A problem has another winner. Without a ``job``, it was known before: an edit was undone, or it was imported."""

    type: Literal["winner"]
    job: int | None
    problem: Values
    device: str
    config: Values
    latency_us: float
    trial: int | None
    metrics: Mapping[str, float]
    objective: str


class KernelStale(EventOfKernel):
    """A kernel has changed, so its winners, which are older than the change, are stale."""

    type: Literal["stale"]
    job: int | None
    digest: str


class NamesLearned(EventOfKernel):
    """Compiling or measuring has shown that a kernel also depends on these files; they are watched from now on."""

    type: Literal["learned"]
    job: int | None
    names: list[str]


class LaneChanged(StreamPosition):
    """A device's lane has opened, has closed, or is sick, with the reason."""

    type: Literal["lane"]
    kernel: str | None
    job: int | None
    device: str
    state: str
    reason: str | None


class PauseEvent(StreamPosition):
    """Tuning on a device model (``""``: on all) was paused or resumed; without a ``device``, by a full disk."""

    type: Literal["paused", "resumed"]
    kernel: str | None
    job: int | None
    device: NotRequired[str]
    reason: str


class KernelsReloaded(StreamPosition):
    """Kernel files were read again.

    Attributes:
        added, changed, replanned, removed: full names of kernels.
        mended: files that had an error before and have none now.
        errors: all errors that there are now.
    """

    type: Literal["reloaded"]
    kernel: str | None
    job: int | None
    added: list[str]
    changed: list[str]
    replanned: list[str]
    removed: list[str]
    mended: list[str]
    errors: list[FileError]


class StreamGap(StreamPosition):
    """Stands for events that are no longer available; the subscriber should request the current state instead."""

    type: Literal["gap"]
    kernel: str | None
    job: int | None


Event = (
    JobEvent
    | TrialDone
    | ConfigCompiled
    | Refining
    | WinnerChanged
    | KernelStale
    | NamesLearned
    | LaneChanged
    | PauseEvent
    | KernelsReloaded
    | StreamGap
)
"""An event; its ``type`` says which one."""
