"""One config on its way through the channels, and what is known of a job so far. No IO."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic
from typing import Any

from ktuned.fleet import KILLS_EXCUSED, DeadlineExpired, Environment, Output, RequestFailed, WorkerDied, is_outside_kill
from ktuned.model import (
    Config,
    Context,
    Device,
    Event,
    Job,
    KernelInfo,
    Life,
    Outcome,
    Preset,
    Problem,
    Scalar,
    TrialResult,
    canonical,
)


@dataclass(frozen=True, slots=True)
class Work:
    """All that a job needs to know before it begins; nothing of it changes while it runs.

    ``captured`` is the file of inputs that an application handed over for the problem; empty where there are none.
    Without ``devices`` its configs are only compiled, for ``target``; ``absence`` then says why nothing is measured, if
    anybody wanted that.
    """

    job: Job
    kernel: KernelInfo
    root: str
    problem: Problem
    devices: tuple[Device, ...]
    target: str
    context: Context
    environment: Environment
    preset: Preset
    deadlines: Mapping[str, float]
    judge_contention: bool
    scratch: Path
    group_size: int = 1
    absence: str = ""
    captured: str = ""

    @property
    def specialized(self) -> dict[str, Scalar]:
        """The part of the problem that enters the key."""
        return self.kernel.specialized(self.problem)

    def kernel_request(self) -> dict[str, Any]:
        """Return what every request about this kernel tells a worker."""
        return {
            "root": self.root,
            "file": self.kernel.file,
            "kernel": self.kernel.kernel,
            "backend": self.kernel.backend,
            "sources": list(self.kernel.sources),
            "stamps": dict(self.kernel.stamps),
            "problem": dict(self.problem),
            "target": self.target,
        }

    def explore_request(self, first: Iterable[Config] = (), last: Iterable[Config] = ()) -> dict[str, Any]:
        """Return the request that begins an exploration: which configs come first, and which are left for last."""
        return {
            "op": "explore",
            **self.kernel_request(),
            "plan": self.job.plan.to_wire(),
            "first": [dict(config) for config in first],
            "last": [dict(config) for config in last],
        }

    def artifact_key(self, build: Mapping[str, Any]) -> str:
        """Return the artifact's name: SHA-256 over all that decides its bytes."""
        parts = {
            "backend": self.kernel.backend,
            "toolchain": self.context.toolchain,
            "target": self.target,
            "source": self.kernel.source_digest,
            "build": build,
        }
        return hashlib.sha256(canonical(parts).encode()).hexdigest()

    def measured_content(self, build: Mapping[str, Any], files: str) -> str:
        """Return what a measurement is of: SHA-256 over all that decides the figure of an artifact with such ``files``.

        The kernel's sources and the toolchain are not among it: they decide the bytes, and those are the same.
        """
        parts = {
            "kernel": self.job.kernel,
            "problem": dict(self.problem),
            "device": self.context.device,
            "driver": self.context.device_fingerprint,
            "measuring": self.context.measuring_version,
            "data": f"{self.kernel.data_digest} {Path(self.captured).stem}",
            "build": build,
            "files": files,
        }
        return hashlib.sha256(canonical(parts).encode()).hexdigest()


@dataclass(slots=True)
class Attempt:
    """One trial under way."""

    trial: int
    config: Config
    build: Mapping[str, Any]
    key: str
    life: Life = field(default_factory=Life)
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: str | None = None
    content: str = ""
    compile_s: float = 0.0
    lane_s: float = 0.0
    open_s: float = 0.0
    disturbed: int = 0
    killed: int = 0
    given_back: bool = False

    def excuse_kill(self, error: Exception) -> bool:
        """Tell whether ``error`` is a kill from outside that says nothing of this config yet, and move it back if so.

        Anybody may kill a worker once; the config whose workers get killed each time is believed to be the reason.
        """
        if not is_outside_kill(error) or self.killed == KILLS_EXCUSED:
            return False
        self.killed += 1
        self.life.tell(Event.KILLED)
        return True

    def unit(self) -> dict[str, Any]:
        """Return the unit as workers take it."""
        return {"key": self.key, "build": dict(self.build)}

    def result(self, event: Event, message: str = "", **values: Any) -> TrialResult:
        """Make the last move, and return the result that it leads to.

        ``values``: ``latency_us``, ``spread_us``, ``output`` (:class:`Output`); the rest is kept as detail.
        """
        self.life.tell(event)
        outcome = self.life.outcome
        assert outcome is not None
        output: Output = values.pop("output", None) or Output()
        detail = {key: value for key, value in values.items() if key not in ("latency_us", "spread_us")}
        if self.build:
            detail["build"] = dict(self.build)
        if self.facts:
            detail["facts"] = dict(self.facts)
        if self.content:
            detail["content"] = self.content
        if self.open_s:
            detail["open_s"] = round(self.open_s, 3)
        if outcome is not Outcome.MEASURED or self.killed or self.disturbed:
            detail["story"] = [str(told) for told in self.life.story]
        if outcome is not Outcome.MEASURED:
            detail |= {name: text for name, text in (("stdout", output.stdout), ("stderr", output.stderr)) if text}
        return TrialResult(
            outcome,
            values.get("latency_us"),
            values.get("spread_us"),
            self.compile_s,
            self.lane_s,
            message,
            self.key or None,
            {key: value for key, value in detail.items() if value is not None},
        )

    def failure(
        self, error: WorkerDied | DeadlineExpired | RequestFailed, *, expired: Event, refused: Event
    ) -> TrialResult:
        """Make the last move that a failed request means, and return its result.

        ``expired`` is the move where a deadline passed, ``refused`` where the worker said that it cannot.
        """
        values: dict[str, Any] = {"phase": error.phase, "output": error.output}
        if isinstance(error, WorkerDied):
            return self.result(Event.DIED, error.message, signal=error.signal, **values)
        if isinstance(error, DeadlineExpired):
            return self.result(expired, error.message, after_s=error.deadline_s, **values)
        return self.result(refused, error.message, **values)

    def unbuilt(self, proposal: Mapping[str, Any]) -> TrialResult:
        """Make the last move of a config that the kernel function gives no Build for, and return its result."""
        event = Event.CANNOT_RUN if proposal["outcome"] == Outcome.UNSUPPORTED else Event.REFUSED
        return self.result(event, proposal["message"], phase="build")


def time_left_s(*, tried: int, left: int | None, elapsed_s: float, budget_s: float | None) -> float | None:
    """Estimate the seconds until a job's last trial, from the pace so far; its budget is a cap.

    ``tried`` are the configs that took time, ``left`` those still to come; ``None`` when nothing can be said.
    """
    of_budget = None if budget_s is None else max(0.0, budget_s - elapsed_s)
    if left is None or tried <= 0:
        return of_budget
    by_pace = max(0, left) * elapsed_s / tried
    return by_pace if of_budget is None else min(by_pace, of_budget)


@dataclass(slots=True)
class Progress:
    """What a job has found so far; ``stamp`` puts it into the job's public value.

    ``compiled`` counts the configs of a job that only compiles which have their artifact: an end, but no outcome.
    ``budget_s`` is the plan's time limit, ``began`` when the job started, by ``monotonic``.
    """

    total: int | None = None
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    compiled: int = 0
    best_us: float | None = None
    default_us: float | None = None
    reference_us: float | None = None
    reused: int = 0
    cost: dict[str, float] = field(default_factory=dict)
    budget_s: float | None = None
    began: float = field(default_factory=monotonic)

    @property
    def done(self) -> int:
        """How many configs have their outcome, or all that they were to have."""
        return self.compiled + sum(self.outcomes.values())

    @property
    def left_s(self) -> float | None:
        """How long the job is still likely to take."""
        return time_left_s(
            tried=self.done - self.reused,
            left=None if self.total is None else self.total - self.done,
            elapsed_s=monotonic() - self.began,
            budget_s=self.budget_s,
        )

    @property
    def has_measured(self) -> bool:
        """Whether a lane was asked anything by this job: what was known, or carries over, needs none."""
        return self.cost.get("lane_s", 0.0) > 0

    def count(self, outcome: Outcome, latency_us: float | None, *, is_default: bool) -> None:
        """Take one config's outcome into account."""
        self.outcomes[outcome] += 1
        if outcome is Outcome.MEASURED and latency_us is not None:
            self.best_us = latency_us if self.best_us is None else min(self.best_us, latency_us)
            if is_default:
                self.default_us = latency_us

    def spend(self, what: str, seconds: float) -> None:
        """Add to what the job cost: ``compile_s``, ``open_s``, ``lane_s``, ``finalists_s``, ``wall_s``."""
        self.cost[what] = self.cost.get(what, 0.0) + seconds

    def to_wire(self) -> dict[str, Any]:
        """Return the fields that a ``trial_done`` event carries."""
        outcomes = {str(outcome): count for outcome, count in self.outcomes.items()}
        return {
            "done": self.done,
            "total": self.total,
            "outcomes": {"compiled": self.compiled, **outcomes} if self.compiled else outcomes,
            "best_us": self.best_us,
            "default_us": self.default_us,
            "reference_us": self.reference_us,
        }

    def stamp(self, job: Job, **changes: Any) -> Job:
        """Return the job with these figures."""
        cost = {name: round(value, 3) for name, value in self.cost.items()}
        return replace(job, **self.to_wire(), cost=cost, **changes)
