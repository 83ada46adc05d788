"""Known failures: contexts and objectives for which a job found nothing that works, as another would. No IO.

The job machine keeps them; a lookup that would otherwise ask for the same job once more gets the message.
"""

from __future__ import annotations

from dataclasses import replace

from ktuned.model import LATENCY, Context, JobState, Objective
from ktuned.scheduling.queue import extend_plan
from ktuned.tuning import JobBrief

MAX_FAILED = 10_000
"""Failures that are kept; of one that is forgotten the next lookup makes a job, which finds every trial known."""


class KnownFailures:
    """Messages of failed jobs by context, objective and the kernel's plan; of more than ``limit`` the oldest goes."""

    def __init__(self, limit: int = MAX_FAILED) -> None:
        self._limit = limit
        self._messages: dict[tuple[Context, Objective, str], str] = {}

    def record_ending(self, brief: JobBrief, state: JobState, message: str, *, is_hopeless: bool = False) -> None:
        """Record how a job ended, if that says something of the next one.

        One that ``is_hopeless`` has shown that all configs fail alike, unless it had only chosen ones to try.
        """
        key = brief.context, brief.job.objective, brief.kernel.plan_digest
        # One with a smaller budget than the kernel declares has not seen all that another would try.
        declared = replace(brief.kernel.plan, objective=brief.job.objective)
        went_all_the_way = extend_plan(brief.job.plan, declared) == brief.job.plan
        is_conclusive = bool(brief.devices) and (went_all_the_way or (is_hopeless and not brief.job.plan.configs))
        if state is JobState.DONE:
            self._messages.pop(key, None)
        elif state is JobState.FAILED and is_conclusive:
            if len(self._messages) >= self._limit:
                del self._messages[next(iter(self._messages))]
            self._messages[key] = message

    def find_message(self, context: Context, plan_digest: str, objective: Objective = LATENCY) -> str:
        """Return how the newest job in a context failed; nothing if it did not, or if there was none."""
        return self._messages.get((context, objective, plan_digest), "")

    def forget_failures(self, kernel: str | None = None) -> None:
        """Forget a kernel's failures, or all: something that no context holds makes another try worth while."""
        self._messages = {key: said for key, said in self._messages.items() if kernel not in (None, key[0].kernel)}
