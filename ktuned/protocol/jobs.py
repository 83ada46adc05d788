"""Jobs: the methods that create, list, pause and cancel them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import Any

import msgspec
from msgspec import structs

from ktuned.model import (
    LATENCY,
    DeviceModel,
    FrozenStruct,
    KernelName,
    KeyProblem,
    Objective,
    Plan,
    Problem,
    Scalar,
    WinnerKey,
    compute_gain,
    make_key_problem,
    needs_metric,
)
from ktuned.protocol.kernels import FileError
from ktuned.protocol.method import Method, Params
from ktuned.protocol.noise import is_reference_noisy


class JobState(StrEnum):
    """State of a job. The next daemon continues ``queued`` and ``running`` ones; ``paused`` ones stay so."""

    QUEUED = "queued"
    PAUSED = "paused"
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


ENDED = frozenset({JobState.DONE, JobState.CANCELLED, JobState.FAILED})
"""States that a job does not leave."""


class Priority(IntEnum):
    """Levels of jobs, lowest first, with room for finer steps between them.

    From the lowest: measuring again after a change of driver or toolchain; sweeps; lookups;
    saves of a file; tunings requested by name; tunings that a client waits for.
    """

    VERIFY = 50
    BACKGROUND = 100
    ASKED = 200
    SAVED = 300
    REQUESTED = 350
    WAITED_FOR = 400


MAX_PRIORITY = 999
"""The highest priority that a request may have. It is bounded, so that a job that waits long enough comes first."""


_NOTICE = "notice: "


def format_notice(sentence: str) -> str:
    """Return a sentence as a line of a job's message that :func:`find_notices` finds."""
    return f"{_NOTICE}{sentence}"


def find_notices(message: str) -> list[str]:
    """Return the notices in a job's message: what the kernel's author should know although the job ended well."""
    return [line.removeprefix(_NOTICE) for line in message.splitlines() if line.startswith(_NOTICE)]


class Job(FrozenStruct):
    """The tuning of one kernel and one problem on one device model, or only its compiling for one target.

    Times are Unix seconds.

    Attributes:
        device: the device model; for a compile-only job, the target.
        reason: why the job exists.
        done: number of configs with an outcome.
        total: number of all configs; None if the space cannot be counted.
        best_us: latency of the best config. All spreads are those of the final round, if there was one.
        default_us: latency of the declared default.
        reference_us: latency of the reference.
        outcomes: number of configs by outcome.
        message: why it failed, with notices.
        key_problem: the problem's key; without one, the whole problem is the key.
        best_figure: the best config's figure by the objective, if that is not the latency.
        default_figure: the declared default's figure, likewise.
    """

    id: int
    kernel: KernelName
    problem: Problem
    device: DeviceModel
    state: JobState
    priority: int
    reason: str
    plan: Plan
    created: float
    started: float | None = None
    finished: float | None = None
    done: int = 0
    total: int | None = None
    best_us: float | None = None
    best_spread_us: float | None = None
    default_us: float | None = None
    default_spread_us: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None
    outcomes: Mapping[str, int] = {}
    message: str = ""
    cost: Mapping[str, float] = {}
    key_problem: KeyProblem | msgspec.UnsetType = msgspec.UNSET
    best_figure: float | None = None
    default_figure: float | None = None

    @property
    def has_noisy_reference(self) -> bool:
        """True if the reference's latency is too uncertain to state a speed-up over it."""
        return is_reference_noisy(self.reference_us, self.reference_spread_us, self.best_us)

    @property
    def key(self) -> WinnerKey:
        """The key of the winner that the job searches for; jobs with equal keys do the same work."""
        problem = make_key_problem(self.problem) if self.key_problem is msgspec.UNSET else self.key_problem
        return WinnerKey(self.kernel, problem, self.device, self.objective)

    @property
    def objective(self) -> Objective:
        """The figure by which configs are judged."""
        return Objective(self.plan.objective)

    @property
    def best(self) -> float | None:
        """The best config's figure, in the objective's unit."""
        return self.best_figure if needs_metric(self.objective) else self.best_us

    @property
    def default(self) -> float | None:
        """The declared default's figure, in the objective's unit."""
        return self.default_figure if needs_metric(self.objective) else self.default_us

    @property
    def speedup(self) -> float | None:
        """How many times better the best config is than the declared default."""
        return compute_gain(self.objective, self.default, self.best)

    @property
    def is_ended(self) -> bool:
        """True if it is done, was cancelled, or failed."""
        return self.state in ENDED

    @property
    def has_winner(self) -> bool:
        """True if it is done, and has found a winner."""
        return self.state is JobState.DONE and self.best is not None


class JobInfo(Job):
    """A job as the daemon reports it: with its objective and its current state.

    Attributes:
        priority: its current priority, which decides when its turn comes.
        objective: the objective that it tunes for.
        waiters: number of clients that wait for it.
        left_s: estimate of the seconds that it still needs, while it runs.
        waits_for: why it does not run, or runs but does not measure; empty while it measures.
        launches: number of launches of its key that applications have counted.
    """

    objective: Objective = LATENCY
    waiters: int = 0
    left_s: float | None = None
    waits_for: str = ""
    launches: int = 0

    # Only the daemon needs the key.
    @classmethod
    def from_job(cls, job: Job, *, launches: int = 0, waiters: int = 0) -> JobInfo:
        """Return the report of a job that neither runs nor waits."""
        known = structs.asdict(structs.replace(job, key_problem=msgspec.UNSET))
        return cls(**known, objective=job.objective, launches=launches, waiters=waiters)


def read_jobs(jobs: Iterable[Mapping[str, Any]]) -> list[JobInfo]:
    """Convert jobs' maps, such as those of a :class:`ktuned_client.client.Tuning`, to :class:`JobInfo`."""
    return msgspec.convert(jobs, list[JobInfo])


class JobParams(Params):
    """Params of methods that create jobs: a kernel by name, or all kernels at or below a path.

    The other fields override the plan.
    """

    kernel: str | None = None
    path: str | None = None
    problem: dict[str, Scalar] | None = None
    trials: int | None = None
    time_limit_s: float | None = None
    strategy: str | None = None
    seed: int | None = None
    python: str | None = None
    directory: str | None = None


class TuneParams(JobParams):
    """``tune``: also the device, the thoroughness, the priority and the objective.

    With ``configs``, only these are tried; ``again`` measures configs that were measured before once more.
    ``beside`` is the process of an application that keeps using the device during the tuning. With exact ``numerics``,
    winners must have the output bits of ``anchor``, which is a config or a part of one.
    """

    device: str | None = None
    preset: str | None = None
    until: str | None = None
    priority: int | None = None
    stale_only: bool = False
    beside: int | None = None
    configs: list[dict[str, Scalar]] | None = None
    again: bool = False
    objective: str | None = None
    numerics: str | None = None
    anchor: dict[str, Scalar] | None = None


class CompileParams(JobParams):
    """``compile``: as ``tune``, but nothing is measured; ``arch`` is the target architecture, such as ``sm_90a``."""

    arch: str | None = None


class CancelParams(Params):
    """``cancel``: one job, or all jobs of a kernel."""

    job: int | None = None
    kernel: str | None = None
    directory: str | None = None


class PauseParams(Params):
    """``pause`` and ``resume``: a job, a kernel or a device; all tuning if none of them is given."""

    job: int | None = None
    kernel: str | None = None
    device: str | None = None
    directory: str | None = None


class JobsParams(Params):
    """``jobs``: one job, several jobs, or the jobs of a kernel or in a state."""

    job: int | None = None
    ids: list[int] | None = None
    kernel: str | None = None
    state: JobState | None = None
    limit: int = 200
    directory: str | None = None


class StreamPosition(FrozenStruct):
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

    jobs: tuple[JobInfo, ...]
    errors: tuple[FileError, ...] = ()
    notices: tuple[str, ...] = ()


class JobsAnswer(FrozenStruct):
    """The jobs that were requested, or that were cancelled."""

    jobs: tuple[JobInfo, ...]


class PauseAnswer(FrozenStruct):
    """The jobs that were paused or resumed, and the device models that are paused now (``""`` stands for all)."""

    jobs: tuple[JobInfo, ...]
    paused: tuple[str, ...]


TUNE = Method("tune", TuneParams, TuneAnswer)
COMPILE = Method("compile", CompileParams, TuneAnswer)
CANCEL = Method("cancel", CancelParams, JobsAnswer)
PAUSE = Method("pause", PauseParams, PauseAnswer)
RESUME = Method("resume", PauseParams, PauseAnswer)
JOBS = Method("jobs", JobsParams, JobsAnswer)
