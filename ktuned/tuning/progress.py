"""A job's figures so far, the remaining time at its pace so far, and the events that report them. No IO.

An event is published only after its facts are committed.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from time import monotonic, time
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from ktuned.model import (
    LATENCY,
    KernelInfo,
    Objective,
    Outcome,
    TrialResult,
    choose_search_objective,
    convert_to_cost,
    needs_metric,
)
from ktuned.protocol import FIGURES, Job, PublishEvent, Trial, TrialDone, WinnerChanged
from ktuned.store import Winner
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.trial_machine import Attempt

COMPILED = "compiled"
"""Name under which a job that only compiles counts the configs that have their artifact."""


class JobStage(IntEnum):
    """The stages of a running job, in their order; a job never goes back."""

    EXPLORING = 0
    """The strategy proposes configs, or some configs wait for a compile slot."""

    COMPILING = 1
    """All configs are compiled, or being compiled: the next job may use the idle compile slots."""

    DECIDING = 2
    """The finalists compete, and keep the lanes to themselves."""


def estimate_time_left_s(
    *, tried: int, remaining: int | None, elapsed_s: float, time_limit_s: float | None
) -> float | None:
    """Estimate the seconds until a job's last trial, from the pace so far; ``None`` if they cannot be estimated.

    Args:
        tried: The number of configs that took time.
        remaining: The number of configs still to come, if it is known.
        elapsed_s: The time that the ``tried`` configs took.
        time_limit_s: The job's time limit, if it has one.
    """
    of_budget = None if time_limit_s is None else max(0.0, time_limit_s - elapsed_s)
    if remaining is None or tried <= 0:
        return of_budget
    by_pace = max(0, remaining) * elapsed_s / tried
    return by_pace if of_budget is None else min(by_pace, of_budget)


class Progress(msgspec.Struct):
    """A job's figures so far; :meth:`stamp_job` puts them into the job's public value.

    Attributes:
        objective: The figure by which configs are judged.
        total: The number of configs that the job will try, if it is known.
        outcomes: Number of configs by outcome, or as :data:`COMPILED` in a job that only compiles.
        best_us, best_spread_us: The latency of the best config, and its spread.
        best_launch_s: How long its first launch took, if this is known.
        best_figure: The best config's figure by ``objective``; ``None`` if that is the latency, or if only finalists
            have such a figure and there are none yet.
        default_us, default_spread_us, default_figure: The same for the declared default.
        reference_us, reference_spread_us: The reference's latency and its spread.
        reused: Number of configs whose outcome was known before.
        cost: The job's costs by name (see :meth:`add_cost`).
        time_limit_s: The plan's time limit.
        lost: Why a measured config failed later; the first such reason.
        began: When the job's time began to count, by ``monotonic``.
    """

    objective: Objective = LATENCY
    total: int | None = None
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)
    best_us: float | None = None
    best_launch_s: float | None = None
    best_spread_us: float | None = None
    best_figure: float | None = None
    default_us: float | None = None
    default_spread_us: float | None = None
    default_figure: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None
    reused: int = 0
    cost: dict[str, float] = {}
    time_limit_s: float | None = None
    lost: str = ""
    began: float = msgspec.field(default_factory=monotonic)
    _best_cost_of_search: float | None = None

    @property
    def done(self) -> int:
        """The number of configs with an outcome, or with an artifact if the job only compiles."""
        return sum(self.outcomes.values())

    @property
    def left_s(self) -> float | None:
        """The seconds that the job is still likely to take."""
        return estimate_time_left_s(
            tried=self.done - self.reused,
            remaining=None if self.total is None else self.total - self.done,
            elapsed_s=monotonic() - self.began,
            time_limit_s=self.time_limit_s,
        )

    @property
    def is_out_of_time(self) -> bool:
        """True if the job's limit of time has passed."""
        return self.time_limit_s is not None and monotonic() - self.began >= self.time_limit_s

    @property
    def has_measured(self) -> bool:
        """True if this job has used a lane; known and carried-over configs need none."""
        return self.cost.get("lane_s", 0.0) > 0

    @property
    def best(self) -> float | None:
        """The best config's figure."""
        return self.best_figure if needs_metric(self.objective) else self.best_us

    @property
    def best_cost(self) -> float | None:
        """The cost of the best config's figure."""
        return convert_to_cost(self.objective, self.best)

    def find_best(self) -> tuple[float | None, float | None]:
        """Return the best config's latency in µs, and how long its first launch took in s."""
        return self.best_us, self.best_launch_s

    def count_outcome(self, trial: TrialResult, *, is_default: bool) -> None:
        """Count the outcome of one config."""
        assert trial.outcome is not None
        self.outcomes[trial.outcome] += 1
        cost = self._compute_search_cost(trial)
        if trial.outcome is not Outcome.MEASURED or cost is None:
            return
        if self._best_cost_of_search is None or cost < self._best_cost_of_search:
            self.set_best(trial)
        if is_default:
            self.set_default(trial)

    def set_best(self, trial: TrialResult | None) -> None:
        """Set the best config; ``None`` if no config has a figure any more."""
        self.best_us, self.best_spread_us, self.best_figure = self._pick_figures(trial)
        self.best_launch_s = None if trial is None else trial.launch_s
        self._best_cost_of_search = None if trial is None else self._compute_search_cost(trial)

    def set_default(self, default: TrialResult) -> None:
        """Set the figures of the declared default."""
        self.default_us, self.default_spread_us, self.default_figure = self._pick_figures(default)

    def _compute_search_cost(self, trial: TrialResult) -> float | None:
        objective = choose_search_objective(self.objective)
        return convert_to_cost(objective, trial.figure(objective))

    def _pick_figures(self, trial: TrialResult | None) -> tuple[float | None, float | None, float | None]:
        if trial is None:
            return None, None, None
        figure = trial.figure(self.objective) if needs_metric(self.objective) else None
        return trial.latency_us, trial.spread_us, figure

    def count_loss(self, result: TrialResult, best: Trial | None) -> None:
        """Count that a measured config has failed after all; ``best`` is the best remaining trial."""
        assert result.outcome is not None
        self.outcomes[Outcome.MEASURED] -= 1
        self.outcomes[result.outcome] += 1
        self.set_best(best)
        self.lost = self.lost or f"{result.outcome}: {result.message}"

    def retract_contended(self, count: int) -> None:
        """Count that contended configs are tried once more."""
        self.outcomes[Outcome.CONTENDED] -= count

    def count_acquittal(self, result: TrialResult) -> None:
        """Count that a mismatch was taken back."""
        self.outcomes[Outcome.MISMATCH] -= 1
        self.count_outcome(result, is_default=False)

    def add_cost(self, name: str, amount: float) -> None:
        """Add to one of the job's costs.

        ``name`` is ``compile_s``, ``open_s``, ``lane_s``, ``finalists_s``, ``quiet_s`` or ``wall_s`` for seconds, and
        ``reused`` or ``speculative`` for numbers of configs that were reused, or compiled speculatively.
        """
        self.cost[name] = self.cost.get(name, 0.0) + amount

    def charge_attempt(self, attempt: Attempt, result: TrialResult) -> None:
        """Add what an attempt has cost in this job."""
        self.add_cost("compile_s", result.compile_s)
        self.add_cost("open_s", attempt.open_s)
        self.add_cost("lane_s", result.lane_s)

    def read_figures(self) -> dict[str, Any]:
        """Return the figures by their names in a job and in its events."""
        return {name: getattr(self, name) for name in FIGURES} | {"outcomes": dict(self.outcomes)}

    def stamp_job(self, job: Job, **changes: Any) -> Job:
        """Return the job with these figures and other ``changes``."""
        cost = {name: round(value, 3) for name, value in self.cost.items()}
        return replace(job, **self.read_figures(), cost=cost, **changes)


def make_trial(brief: JobBrief, attempt: Attempt, result: TrialResult) -> Trial:
    """Return a trial as it was just recorded."""
    return Trial(
        **asdict(result),
        id=attempt.trial,
        job=brief.job.id,
        kernel=brief.job.kernel,
        problem=brief.specialized_problem,
        device=brief.context.device,
        config=attempt.config,
        digest=brief.context.digest,
        updated=time(),
    )


def publish_trial(
    publish: PublishEvent, brief: JobBrief, progress: Progress, trial: Trial, *, with_detail: bool = False
) -> None:
    """Publish a trial's outcome, together with its job's figures."""
    kernel = brief.kernel
    ordered = replace(trial, config=kernel.order_config(trial.config), problem=kernel.order_problem(trial.problem))
    publish(
        TrialDone(
            kernel=brief.job.kernel,
            job=brief.job.id,
            trial=ordered if with_detail else ordered.without_detail(),
            left_s=progress.left_s,
            **progress.read_figures(),
        )
    )


def publish_winner(publish: PublishEvent, kernel: KernelInfo, winner: Winner, job: int | None) -> None:
    """Publish a new winner, and the job that found it; after an undone edit there is no job.

    An imported winner is published without a trial.
    """
    publish(
        WinnerChanged(
            kernel=winner.context.kernel,
            job=job,
            problem=kernel.order_problem(winner.problem),
            device=winner.context.device,
            config=kernel.order_config(winner.config),
            latency_us=winner.latency_us,
            trial=winner.trial or None,
            metrics=winner.metrics,
            objective=winner.objective,
        )
    )
