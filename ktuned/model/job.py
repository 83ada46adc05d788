"""Jobs: their states, priorities and figures."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum

import msgspec

from ktuned.model.keys import DeviceModel, KernelName, KeyProblem, WinnerKey, make_key_problem
from ktuned.model.noise import is_reference_noisy
from ktuned.model.objective import Objective, compute_gain, needs_metric
from ktuned.model.plan import Plan
from ktuned.model.values import Problem


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

    From the lowest: what portfolios lack, and measuring again after a change of driver or toolchain; sweeps; lookups;
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


class Job(msgspec.Struct, frozen=True):
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
    outcomes: Mapping[str, int] = msgspec.field(default_factory=dict)
    message: str = ""
    cost: Mapping[str, float] = msgspec.field(default_factory=dict)
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
