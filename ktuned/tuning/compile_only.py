"""The way of a config that is only compiled: strategy → compile channel → compile workers → artifacts.

Nothing is measured, so there are no trials: what became of each config is told as it is ready, and the artifacts stay,
under the keys that a job on a device of that target looks for.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ktuned.fleet import Fleet
from ktuned.model import Event, JobState, TrialResult
from ktuned.store import Artifacts
from ktuned.tuning.attempt import Attempt, Progress, Work
from ktuned.tuning.compile_stage import Compiling
from ktuned.tuning.exploration import Explorer
from ktuned.tuning.job_events import Publish

_log = structlog.get_logger()

ASK_AT_ONCE = 16
"""Configs asked for in one request: nothing is learned from them, so nothing is lost by asking for many."""


class Precompiling:
    """A job that only compiles; :meth:`run` returns when every config has its artifact, or the reason why not."""

    def __init__(self, work: Work, *, fleet: Fleet, artifacts: Artifacts, publish: Publish) -> None:
        self.work = work
        self.progress = Progress(budget_s=work.job.plan.seconds)
        self._fleet = fleet
        self._artifacts = artifacts
        self._publish = publish
        self._compiling = Compiling(work, fleet, artifacts)
        self._channel: MemoryObjectSendStream[Attempt] | None = None

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return how full the channel is."""
        if self._channel is None:
            return {}
        now = self._channel.statistics()
        return {"compile": {"used": now.current_buffer_used, "size": int(now.max_buffer_size)}}

    @property
    def verdict(self) -> tuple[JobState, str]:
        """How the job ends, and what is said of it."""
        ready, target = self.progress.compiled, self.work.target
        said = f"no config could be compiled for {target}"
        if ready:
            said = f"{ready} artifacts are ready for {target}" if ready > 1 else f"1 artifact is ready for {target}"
        if self.work.absence:
            return JobState.FAILED, f"no device: {self.work.absence}; {said}"
        return (JobState.DONE if ready else JobState.FAILED), said

    async def run(self) -> None:
        """Compile until the space or the budget is exhausted.

        Raises:
            WorkerError: no config can be compiled at all; with code ``source_changed`` when a file changed meanwhile.
            StoreError: an artifact cannot be kept.
            ExceptionGroup: of these.
        """
        began = monotonic()
        slots = int(self._fleet.compile_slots.total_tokens)
        self._channel, arriving = anyio.create_memory_object_stream[Attempt](slots * self.work.group_size)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._ask, self._channel)
                for _ in range(slots):
                    tasks.start_soon(self._compile, arriving.clone())
                arriving.close()
        finally:
            self.progress.spend("wall_s", monotonic() - began)
            self._compiling.close()

    async def _ask(self, channel: MemoryObjectSendStream[Attempt]) -> None:
        plan, deadlines, default = self.work.job.plan, self.work.deadlines, self.work.kernel.default
        began = monotonic()
        async with channel, self._fleet.lend("explore", self.work.environment) as explorer:
            request = self.work.explore_request([] if default is None else [default])
            opened, _ = await explorer.call(request, deadlines, first_phase="inspect")
            size = opened["size"]
            exploring = Explorer(explorer, opened["strategy"], deadlines)
            self.progress.total = plan.trials if size is None else min(size, plan.trials)
            asked = 0
            while asked < plan.trials and (plan.seconds is None or monotonic() - began < plan.seconds):
                answer = await exploring.ask([], min(ASK_AT_ONCE, plan.trials - asked))
                asked += len(answer["proposals"])
                for proposal in answer["proposals"]:
                    await self._admit(proposal, channel)
                # A strategy that waits for figures waits in vain: what it has named so far is all.
                if answer["finished"] or not answer["proposals"]:
                    break
            self.progress.total = asked

    async def _admit(self, proposal: dict[str, Any], channel: MemoryObjectSendStream[Attempt]) -> None:
        build = proposal["build"]
        if build is not None:
            await channel.send(Attempt(0, proposal["config"], build, self.work.artifact_key(build)))
            return
        attempt = Attempt(0, proposal["config"], {}, "")
        self._tell(attempt, attempt.unbuilt(proposal))

    async def _compile(self, channel: MemoryObjectReceiveStream[Attempt]) -> None:
        async with channel:
            async for first in channel:
                group = self._compiling.group(first, channel, lanes_starve=False)
                for attempt in group:
                    # Nobody loads it now, so whoever will must not be the first to find it damaged.
                    found = await self._artifacts.verified(attempt.key)
                    attempt.facts = {} if found is None else found.facts
                for attempt, failed in await self._compiling.compile(group):
                    self._tell(attempt, failed)

    def _tell(self, attempt: Attempt, failed: TrialResult | None) -> None:
        """Tell of a config that has its artifact, or of why it has none."""
        if failed is None:
            self.progress.compiled += 1
        else:
            self.progress.outcomes[failed.outcome] += 1
        self.progress.spend("compile_s", attempt.compile_s)
        self._publish(
            "config_compiled",
            kernel=self.work.job.kernel,
            job=self.work.job.id,
            problem=self.work.specialized,
            target=self.work.target,
            config=dict(attempt.config),
            outcome=None if failed is None else failed.outcome.value,
            message="" if failed is None else failed.message,
            compile_s=round(attempt.compile_s, 3),
            facts=dict(attempt.facts),
            artifact=None if failed is not None else str(self._artifacts.place(attempt.key)),
            reused=Event.ARTIFACT_FOUND in attempt.life.story,
            **self.progress.to_wire(),
        )
