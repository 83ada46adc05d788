"""A job's figures so far, the time left by their pace, and the events that tell of them. No IO.

An event is published after its facts are committed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol

import msgspec

from ktuned.model import (
    LATENCY,
    Job,
    KernelInfo,
    Objective,
    Outcome,
    Trial,
    TrialResult,
    Winner,
    cost_of,
    is_latency,
)
from ktuned.tuning.work import Work


def time_left_s(*, tried: int, left: int | None, elapsed_s: float, budget_s: float | None) -> float | None:
    """Estimate the seconds until a job's last trial, from the pace so far; its budget is a cap.

    ``tried`` are the configs that took time, ``left`` those still to come; ``None`` when nothing can be said.
    """
    of_budget = None if budget_s is None else max(0.0, budget_s - elapsed_s)
    if left is None or tried <= 0:
        return of_budget
    by_pace = max(0, left) * elapsed_s / tried
    return by_pace if of_budget is None else min(by_pace, of_budget)


class Progress(msgspec.Struct):
    """A job's figures so far; ``stamp`` puts them into the job's public value.

    The best config is that by ``objective``: ``best_us`` is its latency, ``best_figure`` the figure that it is best by
    (``None`` where that is the latency), and likewise for the default. ``compiled`` counts the configs of a job that
    only compiles which have their artifact: an end, but no outcome. ``lost`` is why the first config was lost that had
    been measured. ``budget_s`` is the plan's time limit, ``began`` when the job started, by ``monotonic``.
    """

    objective: Objective = LATENCY
    total: int | None = None
    outcomes: Counter[Outcome] = msgspec.field(default_factory=Counter)
    compiled: int = 0
    best_us: float | None = None
    best_spread_us: float | None = None
    best_figure: float | None = None
    default_us: float | None = None
    default_spread_us: float | None = None
    default_figure: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None
    reused: int = 0
    cost: dict[str, float] = msgspec.field(default_factory=dict)
    budget_s: float | None = None
    lost: str = ""
    began: float = msgspec.field(default_factory=monotonic)

    @property
    def done(self) -> int:
        """The number of configs that have their outcome, or only their artifact if no more was wanted."""
        return self.compiled + sum(self.outcomes.values())

    @property
    def left_s(self) -> float | None:
        """The time in s that the job is still likely to take."""
        return time_left_s(
            tried=self.done - self.reused,
            left=None if self.total is None else self.total - self.done,
            elapsed_s=monotonic() - self.began,
            budget_s=self.budget_s,
        )

    @property
    def is_out_of_time(self) -> bool:
        """True if the job's limit of time has passed."""
        return self.budget_s is not None and monotonic() - self.began >= self.budget_s

    @property
    def has_measured(self) -> bool:
        """True if this job has used a lane: configs that were known, or carried over, need none."""
        return self.cost.get("lane_s", 0.0) > 0

    @property
    def best(self) -> float | None:
        """The best config's figure."""
        return self.best_us if is_latency(self.objective) else self.best_figure

    @property
    def best_cost(self) -> float | None:
        """The cost of the best config's figure."""
        return cost_of(self.objective, self.best)

    def count(self, trial: Trial | TrialResult, *, is_default: bool) -> None:
        """Take one config's outcome into account."""
        assert trial.outcome is not None
        self.outcomes[trial.outcome] += 1
        cost = cost_of(self.objective, trial.figure(self.objective))
        if trial.outcome is not Outcome.MEASURED or cost is None:
            return
        if self.best_cost is None or cost < self.best_cost:
            self.lead(trial)
        if is_default:
            self.compare_with(trial)

    def lead(self, trial: Trial | TrialResult | None) -> None:
        """Take a measured config for the best one; ``None`` if there is none any more."""
        self.best_us, self.best_spread_us, self.best_figure = self._figures(trial)

    def compare_with(self, default: Trial | TrialResult) -> None:
        """Take the figures of the declared default."""
        self.default_us, self.default_spread_us, self.default_figure = self._figures(default)

    def _figures(self, trial: Trial | TrialResult | None) -> tuple[float | None, float | None, float | None]:
        if trial is None:
            return None, None, None
        figure = None if is_latency(self.objective) else trial.figure(self.objective)
        return trial.latency_us, trial.spread_us, figure

    def lose(self, result: TrialResult, best: Trial | None) -> None:
        """Take into account that a measured config is wrong; ``best`` is the best trial that is left."""
        self.outcomes[Outcome.MEASURED] -= 1
        self.outcomes[result.outcome] += 1
        self.lead(best)
        self.lost = self.lost or f"{result.outcome}: {result.message}"

    def acquit(self, result: TrialResult) -> None:
        """Take into account that a mismatch is none."""
        self.outcomes[Outcome.MISMATCH] -= 1
        self.count(result, is_default=False)

    def spend(self, what: str, seconds: float) -> None:
        """Add to the job's cost: ``compile_s``, ``open_s``, ``lane_s``, ``finalists_s``, ``wall_s``, and the number of
        configs whose earlier result was ``reused``.
        """
        self.cost[what] = self.cost.get(what, 0.0) + seconds

    def to_wire(self) -> dict[str, Any]:
        """Return the fields that a ``trial_done`` event carries."""
        outcomes = {str(outcome): count for outcome, count in self.outcomes.items()}
        return {
            "done": self.done,
            "total": self.total,
            "outcomes": {"compiled": self.compiled, **outcomes} if self.compiled else outcomes,
            "best_us": self.best_us,
            "best_spread_us": self.best_spread_us,
            "default_us": self.default_us,
            "default_spread_us": self.default_spread_us,
            "best_figure": self.best_figure,
            "default_figure": self.default_figure,
            "reference_us": self.reference_us,
            "reference_spread_us": self.reference_spread_us,
        }

    def stamp(self, job: Job, **changes: Any) -> Job:
        """Return the job with these figures."""
        cost = {name: round(value, 3) for name, value in self.cost.items()}
        return replace(job, **self.to_wire(), cost=cost, **changes)


class Publish(Protocol):
    """Sends an event to all subscribers; never blocks."""

    def __call__(self, type: str, **fields: Any) -> None:  # noqa: A002 - the protocol's word
        """Publish one event."""


def publish_trial(publish: Publish, work: Work, progress: Progress, trial: Trial) -> None:
    """Publish a trial's outcome, and where its job stands; of the trial's detail only its metrics."""
    public = trial.to_wire() | {"metrics": dict(trial.metrics)}
    del public["detail"]
    public["config"] = work.kernel.order_config(trial.config)
    public["problem"] = work.kernel.order_problem(trial.problem)
    standing = progress.to_wire() | {"left_s": progress.left_s}
    publish("trial_done", kernel=work.job.kernel, job=work.job.id, trial=public, **standing)


def publish_winner(publish: Publish, kernel: KernelInfo, winner: Winner, job: int | None) -> None:
    """Publish a new winner, and the job that found it; an undone edit brings one back without a job."""
    publish(
        "winner",
        kernel=winner.context.kernel,
        job=job,
        problem=kernel.order_problem(winner.problem),
        device=winner.context.device,
        config=kernel.order_config(winner.config),
        latency_us=winner.latency_us,
        trial=winner.trial,
        metrics=dict(winner.metrics),
        objective=winner.objective,
    )


def publish_job(publish: Publish, what: str, job: Job, launches: int) -> None:
    """Publish a job that was queued, started or ended, and how often applications have launched its key."""
    publish(what, kernel=job.kernel, job=job.id, job_state=job.to_wire() | {"launches": launches})
