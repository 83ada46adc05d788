"""Jobs as a screen shows them: values that events of the daemon are folded into. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace

from ktuned.cli.limits import Limits
from ktuned.model import Config, Objective, Outcome, Problem, Record, Trial, canonical, record
from ktuned.protocol import JobInfo

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

Case = tuple[str, str, str, str]
"""A winner's key: a kernel, a problem's canonical text, a device model, an objective."""


def make_case(kernel: str, problem: Problem, device: str, objective: Objective) -> Case:
    """Return the key of a winner."""
    return kernel, canonical(problem), device, objective


@record
class JobView(Record):
    """One job, and what only its events tell.

    Attributes:
        best_config: the config that has the best figure.
        announced: what the best figure that was news costs: a ``winner`` comes before the trial that made it.
        before: figure of the winner when the job began, in the objective's unit.
        share: the winner's share of the device's limit, in words.
        failures: the first trial of each failing outcome.
        round: number of the final round that is measured, and of all rounds.
        best_so_far: costs of the best config after each trial; some, if there are very many.
    """

    job: JobInfo
    best_config: Config | None = None
    announced: float | None = None
    before: float | None = None
    share: str = ""
    failures: Mapping[Outcome, Trial] = field(default_factory=dict)
    round: tuple[int, int] | None = None
    best_so_far: tuple[float, ...] = ()


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
        return all(view.job.is_ended for view in self.jobs.values())

    @property
    def active(self) -> list[JobView]:
        """The jobs that are queued or running."""
        return [view for view in self.jobs.values() if not view.job.is_ended]

    def without_ended(self) -> View:
        """Return the view without the jobs that ended, so that an endless watch stays bounded."""
        return replace(self, jobs={key: view for key, view in self.jobs.items() if not view.job.is_ended})
