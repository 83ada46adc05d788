"""News of a tuning: what lines and the live screen are made of. No IO.

An event that says all by itself is its own news; the others are what a job's events come to.
"""

from __future__ import annotations

from ktuned.cli.job_view import JobView
from ktuned.model import Config, Record, Trial, record
from ktuned.protocol import (
    JobInfo,
    KernelsReloaded,
    KernelStale,
    LaneChanged,
    TuningPaused,
    TuningResumed,
    WinnerChanged,
)


@record
class JobBegan(Record):
    """A job began to run."""

    job: JobInfo


@record
class NewBest(Record):
    """A trial is better than every one before it in its job, by its objective's ``figure``."""

    job: JobInfo
    config: Config
    figure: float


@record
class FirstFailure(Record):
    """A trial has an outcome of :data:`~ktuned.cli.job_view.FAILURES` that its job had not shown before."""

    job: JobInfo
    trial: Trial


@record
class JobEnded(Record):
    """A job is done, was cancelled or failed."""

    view: JobView


News = (
    JobBegan
    | NewBest
    | FirstFailure
    | JobEnded
    | KernelStale
    | WinnerChanged
    | KernelsReloaded
    | LaneChanged
    | TuningPaused
    | TuningResumed
)
