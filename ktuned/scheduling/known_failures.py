"""Known failures: contexts and objectives for which a job found no working config, and another job would find none. No
IO.

The job machine keeps them. A lookup that would otherwise request the same job again gets its message instead.
"""

from __future__ import annotations

from msgspec.structs import replace

from ktuned.model import KernelInfo, Objective
from ktuned.protocol import JobState
from ktuned.scheduling.queue import extend_plan
from ktuned.store import Context
from ktuned.tuning import JobBrief

MAX_FAILED = 10_000
"""Most failures that are kept. If one is forgotten, the next lookup requests a job, which finds every trial known."""


class KnownFailures:
    """Messages of failed jobs by context, objective and kernel's plan. Beyond ``limit``, the oldest is forgotten."""

    def __init__(self, limit: int = MAX_FAILED) -> None:
        self._limit = limit
        self._messages: dict[tuple[Context, Objective, str], str] = {}

    def record_job_end(self, brief: JobBrief, state: JobState, message: str, *, is_hopeless: bool = False) -> None:
        """Record how a job ended, if that predicts the end of the next job.

        A failure does so if the job had at least the kernel's declared budget. It also does if the job ``is_hopeless``,
        which shows that all configs fail alike; not, however, if the job was for certain configs only.
        """
        key = brief.context, brief.job.objective, brief.kernel.plan_digest
        # A job with a smaller budget than the kernel declares has not tried every config that another job would.
        declared = replace(brief.kernel.plan, objective=brief.job.objective)
        went_all_the_way = extend_plan(brief.job.plan, declared) == brief.job.plan
        is_conclusive = bool(brief.devices) and (went_all_the_way or (is_hopeless and not brief.job.plan.configs))
        if state is JobState.DONE:
            self._messages.pop(key, None)
        elif state is JobState.FAILED and is_conclusive:
            if len(self._messages) >= self._limit:
                del self._messages[next(iter(self._messages))]
            self._messages[key] = message

    def list_messages(self, kernel: KernelInfo) -> dict[tuple[Context, Objective], str]:
        """Return how the newest jobs of a kernel failed, for its present plan, by context and objective."""
        return {
            (context, objective): message
            for (context, objective, plan), message in self._messages.items()
            if context.kernel == kernel.name and plan == kernel.plan_digest
        }

    def forget_failures(self, kernel: str | None = None) -> bool:
        """Forget a kernel's failures, or all of them: something outside of contexts makes another try worthwhile.

        Return whether there were any.
        """
        before = len(self._messages)
        self._messages = {key: said for key, said in self._messages.items() if kernel not in (None, key[0].kernel)}
        return len(self._messages) < before
