"""Endings of jobs that an error stopped: from an exception to what the job machine takes."""

from __future__ import annotations

import structlog

from ktuned.fleet import is_outside_kill
from ktuned.model import KtunedError, StoreError
from ktuned.scheduling.job_events import Ending

_log = structlog.get_logger()

SOURCE_CHANGED = "source_changed"
"""The code of a worker's refusal to work on files that are no longer those that were inspected."""


def ending_of(error: BaseException) -> tuple[Ending, str]:
    """Return how a job ends that an exception stopped, and the message that says why."""
    error = _first_cause(error)
    if not isinstance(error, KtunedError):
        _log.error("job_broke", exc_info=error)
        return Ending.FAILED, f"an error in ktuned itself: {type(error).__name__}: {error}"
    if error.code == SOURCE_CHANGED:
        return Ending.SOURCE_CHANGED, f"waits for a new inspection: {error.message}"
    if isinstance(error, StoreError):
        return Ending.NOT_RECORDED, describe_failure(error)
    return (Ending.KILLED if is_outside_kill(error) else Ending.FAILED), describe_failure(error)


def describe_failure(error: KtunedError) -> str:
    """Return an error's message and its hint, as a job's message."""
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _first_cause(error: BaseException) -> BaseException:
    """Return the exception itself, or a group's first KtunedError, or its first at all."""
    while isinstance(error, BaseExceptionGroup):
        known = error.subgroup(KtunedError)
        error = (known or error).exceptions[0]
    return error
