"""News of a tuning: the events of the daemon that lines and the live screen are made of. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from ktuned.cli.job_view import JobView
from ktuned.model import LATENCY, Config, Objective, Problem, Record, figure_of, record


@record
class JobBegan(Record):
    """A job began to run."""

    job: JobView


@record
class NewBest(Record):
    """A trial is better than every one before it in its job, by its objective's ``figure``."""

    job: JobView
    config: Config
    figure: float


@record
class FirstFailure(Record):
    """An outcome of :data:`FAILURES` that its job had not shown before; ``trial`` is its map."""

    job: JobView
    outcome: str
    trial: Mapping[str, Any]


@record
class JobEnded(Record):
    """A job is done, was cancelled or failed."""

    job: JobView


@record
class KernelStale(Record):
    """A save changed a kernel; its winners are older than the change."""

    kernel: str


@record
class WinnerChanged(Record):
    """A kernel has a new winner: of a job, or without one after an undone edit or an import."""

    kernel: str
    problem: Problem
    device: str
    config: Config
    latency_us: float
    job: int | None
    objective: Objective = LATENCY
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def figure(self) -> float | None:
        """The figure by which it won, in the objective's unit."""
        return figure_of(self.objective, self.latency_us, self.metrics)


@record
class Reloaded(Record):
    """Kernel files were read again: names of kernels that were added, changed or removed, errors with path and line,
    and files that no longer have one.
    """

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    errors: tuple[Mapping[str, Any], ...]
    mended: tuple[str, ...] = ()


@record
class LaneChanged(Record):
    """A device's lane opened, closed or fell sick."""

    device: str
    state: str
    reason: str


@record
class WorkerChanged(Record):
    """Something happened to a worker process."""

    pid: int
    role: str
    what: str


@record
class PauseChanged(Record):
    """Tuning was paused or resumed: on a device model, everywhere (``""``), or for lack of storage (``None``)."""

    device: str | None
    is_paused: bool
    reason: str


News = (
    JobBegan
    | NewBest
    | FirstFailure
    | JobEnded
    | KernelStale
    | WinnerChanged
    | Reloaded
    | LaneChanged
    | WorkerChanged
    | PauseChanged
)
