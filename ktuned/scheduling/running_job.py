"""A job at work: what stops it, and how an error ends it."""

from __future__ import annotations

from dataclasses import dataclass, field

import anyio
import structlog

from ktuned.model import Job, JobState, KtunedError, Plan, StoreError, WinnerKey
from ktuned.scheduling.queue import extended
from ktuned.tuning import Pipeline, Precompiling

_log = structlog.get_logger()

SOURCE_CHANGED = "source_changed"
"""The code of a worker's refusal to work on files that are no longer those that were inspected."""

_STRENGTH = {None: 0, JobState.QUEUED: 1, JobState.PAUSED: 2, JobState.CANCELLED: 3}
"""Of two reasons to stop a job the stronger one decides what becomes of it."""


@dataclass
class Running:
    """A job at work; ``stopped`` is the state that it is to be left in, if somebody stopped it."""

    job: Job
    pipeline: Pipeline | Precompiling
    inspections: int
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    stopped: JobState | None = None
    message: str = ""
    is_outdated: bool = False

    def stop(self, state: JobState, message: str) -> None:
        """Stop the job; what it measured stays known."""
        if _STRENGTH[state] > _STRENGTH[self.stopped]:
            self.stopped, self.message = state, message
            self.scope.cancel()

    def does(self, wanted: WinnerKey, plan: Plan | None) -> bool:
        """Tell whether the job does all of some work; without a plan, in whatever way."""
        if self.job.key != wanted or self.stopped is JobState.CANCELLED:
            return False
        return plan is None or extended(self.job.plan, plan) == self.job.plan

    @property
    def public(self) -> Job:
        """The job with its newest figures."""
        return self.pipeline.progress.stamp(self.job)


def sentence(error: KtunedError) -> str:
    """Return an error's message and its hint, as a job's message."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


def cause(error: BaseException) -> BaseException:
    """Return the exception itself, or a group's first KtunedError, or its first at all."""
    while isinstance(error, BaseExceptionGroup):
        known = error.subgroup(KtunedError)
        error = (known or error).exceptions[0]
    return error


def verdict(error: BaseException) -> tuple[JobState, str]:
    """Return how a job ends that an exception stopped."""
    if not isinstance(error, KtunedError):
        _log.error("job_broke", exc_info=error)
        return JobState.FAILED, f"an error in ktuned itself: {type(error).__name__}: {error}"
    if error.code == SOURCE_CHANGED:
        return JobState.QUEUED, f"waits for a new inspection: {error.message}"
    if isinstance(error, StoreError):
        return JobState.QUEUED, sentence(error)
    return JobState.FAILED, sentence(error)
