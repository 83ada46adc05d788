"""Jobs as a screen shows them: values that events of the daemon are folded into. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from ktuned.cli.limits import Limits
from ktuned.model import (
    LATENCY,
    Config,
    JobState,
    Objective,
    Outcome,
    Problem,
    Record,
    canonical,
    compute_gain,
    is_latency,
    record,
)

FAILURES = (
    Outcome.COMPILE_ERROR,
    Outcome.COMPILE_TIMEOUT,
    Outcome.UNSUPPORTED,
    Outcome.MISMATCH,
    Outcome.LAUNCH_ERROR,
    Outcome.CRASHED,
    Outcome.HUNG,
    Outcome.CONTENDED,
)
"""Outcomes that left a config without a figure for a reason worth showing, in the order of a trial's stages."""

MAX_STEPS = 256
"""Steps of a job's best so far: wider than any sparkline. Of more, every other one is kept."""

ENDED = frozenset({JobState.DONE, JobState.CANCELLED, JobState.FAILED})
"""States that a job does not leave."""

Case = tuple[str, str, str, str]
"""A winner's key: a kernel, a problem's canonical text, a device model, an objective."""


@record
class JobView(Record):
    """One job as far as events have described it; latencies are in µs.

    By another objective than latency, ``best_figure``, ``default_figure`` and ``before`` are in its unit; ``best`` and
    ``default`` are whichever counts. ``failures`` holds the first trial map of each failing outcome. ``announced`` is
    what the best figure that was news costs: a ``winner`` comes before the trial that made it. ``before`` is the figure
    of the winner when the job began. ``share`` is that of the device's limit, in words.
    ``left_s`` and ``waits_for`` are the daemon's latest estimate and reason; ``planned`` and ``planned_s`` the budget.
    ``started`` is when it began to run last, in Unix s. ``reused`` counts configs whose earlier result still holds.
    ``finished`` is when it ended. ``best_so_far`` are costs of the best config after each trial, some of very many.
    """

    id: int
    kernel: str
    problem: Problem
    device: str
    state: str = JobState.QUEUED
    reason: str = ""
    done: int = 0
    total: int | None = None
    best_us: float | None = None
    best_config: Config | None = None
    announced: float | None = None
    best_spread_us: float | None = None
    default_us: float | None = None
    default_spread_us: float | None = None
    reference_us: float | None = None
    reference_spread_us: float | None = None
    before: float | None = None
    share: str = ""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    round: tuple[int, int] | None = None
    message: str = ""
    left_s: float | None = None
    waits_for: str = ""
    started: float | None = None
    planned: int | None = None
    planned_s: float | None = None
    is_compile_only: bool = False
    objective: Objective = LATENCY
    best_figure: float | None = None
    default_figure: float | None = None
    reused: int = 0
    finished: float | None = None
    best_so_far: tuple[float, ...] = ()

    @property
    def case(self) -> Case:
        """The key of this job's winner."""
        return (self.kernel, canonical(self.problem), self.device, self.objective)

    @property
    def best(self) -> float | None:
        """The best config's figure, in the objective's unit."""
        return self.best_us if is_latency(self.objective) else self.best_figure

    @property
    def default(self) -> float | None:
        """The declared default's figure, in the objective's unit."""
        return self.default_us if is_latency(self.objective) else self.default_figure

    @property
    def is_ended(self) -> bool:
        """True if no more events will come."""
        return self.state in ENDED

    @property
    def has_winner(self) -> bool:
        """True if the job has found a winner."""
        return self.state == JobState.DONE and self.best is not None

    @property
    def speedup(self) -> float | None:
        """Times that the best config is better than the declared default."""
        return compute_gain(self.objective, self.default, self.best)

    @property
    def speedup_range(self) -> tuple[float, float] | None:
        """The speed-ups over the default that the spreads of both leave open, where the latency counts."""
        if not is_latency(self.objective):
            return None
        default, best = (
            spread_bounds(self.default_us, self.default_spread_us),
            spread_bounds(self.best_us, self.best_spread_us),
        )
        return None if default is None or best is None else (default[0] / best[1], default[1] / best[0])


@record
class View(Record):
    """All jobs seen so far, in the order they appeared, and the figure of the last winner of each case.

    ``limits`` are the measured limits of devices, by their models.
    """

    jobs: Mapping[int, JobView] = field(default_factory=dict)
    winners: Mapping[Case, float] = field(default_factory=dict)
    limits: Limits = field(default_factory=dict)

    @property
    def is_ended(self) -> bool:
        """True if every job has ended."""
        return all(job.is_ended for job in self.jobs.values())

    @property
    def active(self) -> list[JobView]:
        """The jobs that are queued or running."""
        return [job for job in self.jobs.values() if not job.is_ended]

    def without_ended(self) -> View:
        """Return the view without the jobs that ended, so that an endless watch stays bounded."""
        return replace(self, jobs={key: job for key, job in self.jobs.items() if not job.is_ended})


def spread_bounds(latency_us: float | None, spread_us: float | None) -> tuple[float, float] | None:
    """Return the ends of a latency's spread around it, or ``None`` if either is unknown."""
    if not latency_us or spread_us is None:
        return None
    # A spread of twice the latency or more would begin at nothing.
    half_us = min(spread_us / 2, 0.9 * latency_us)
    return latency_us - half_us, latency_us + half_us
