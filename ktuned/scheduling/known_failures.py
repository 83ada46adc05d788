"""On which grounds a job found nothing that works: another one would find the same. No IO."""

from __future__ import annotations

from ktuned.model import Context, JobState
from ktuned.scheduling.queue import extended
from ktuned.tuning import Work

MAX_FAILED = 10_000
"""Grounds that are remembered; of one that is forgotten the next lookup makes a job, which finds it all known."""


class FailedGrounds:
    """How jobs failed, by the ground that they stood on and by what they were to explore."""

    def __init__(self) -> None:
        self._messages: dict[tuple[Context, str], str] = {}

    def note(self, work: Work, state: JobState, message: str) -> None:
        """Take note of how a job ended."""
        key = work.context, work.kernel.plan_digest
        # One with a smaller budget than the kernel declares has not seen all that another would try.
        went_all_the_way = bool(work.devices) and extended(work.job.plan, work.kernel.plan) == work.job.plan
        if state is JobState.DONE:
            self._messages.pop(key, None)
        elif state is JobState.FAILED and went_all_the_way:
            if len(self._messages) >= MAX_FAILED:
                del self._messages[next(iter(self._messages))]
            self._messages[key] = message

    def message(self, ground: Context, plan_digest: str) -> str:
        """Return how the newest job on a ground failed; nothing if it did not, or if there was none."""
        return self._messages.get((ground, plan_digest), "")

    def forget(self, kernel: str | None = None) -> None:
        """Forget a kernel's failures, or all: something else than its files makes another try worth while."""
        self._messages = {key: said for key, said in self._messages.items() if kernel not in (None, key[0].kernel)}
