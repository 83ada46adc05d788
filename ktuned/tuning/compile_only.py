"""The way of a config that is only compiled: strategy → compile channel → compile workers → artifacts.

Nothing is measured, so there are no trials: an event reports each config as it is ready, and the artifacts stay, under
the keys that a job on a device of that target looks for.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ktuned.fleet import COURTESY_S, Fleet
from ktuned.ipc import replies, requests
from ktuned.model import Event, JobState, Role
from ktuned.store import Artifacts
from ktuned.tuning.attempt import Attempt, Compiled, Ended
from ktuned.tuning.batches import MAX_BATCH
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.exploration import Explorer, opened
from ktuned.tuning.job_events import Publish
from ktuned.tuning.progress import Progress
from ktuned.tuning.stages import JobStage, StageReport
from ktuned.tuning.work import Work

_log = structlog.get_logger()

ASK_AT_ONCE = 16
"""Configs asked for in one request: nothing is learned from them, so nothing is lost by asking for many."""


class CompileOnly:
    """A job that only compiles; :meth:`run` returns when every config has its artifact, or the reason why not.

    ``on_stage`` is called when no config waits to be compiled any more.
    """

    def __init__(
        self,
        work: Work,
        *,
        fleet: Fleet,
        artifacts: Artifacts,
        publish: Publish,
        on_stage: Callable[[JobStage], None],
    ) -> None:
        self.work = work
        work.traces.follow(work)
        self.progress = Progress(budget_s=work.job.plan.seconds)
        self._fleet = fleet
        self._artifacts = artifacts
        self._publish = publish
        self._stages = StageReport(on_stage)
        self._compiling = CompileStage(work, fleet, artifacts, on_begun=self._note_begun)
        self._channel: MemoryObjectSendStream[Attempt] | None = None
        self._first_failure = ""
        self._has_asked_all = False

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return how full the channel is."""
        if self._channel is None:
            return {}
        now = self._channel.statistics()
        return {"compile": {"used": now.current_buffer_used, "size": int(now.max_buffer_size)}}

    @property
    def verdict(self) -> tuple[JobState, str]:
        """The job's final state, and its message."""
        ready, target = self.progress.compiled, self.work.target
        message = f"no config could be compiled for {target}"
        if ready:
            message = f"{ready} artifacts are ready for {target}" if ready > 1 else f"1 artifact is ready for {target}"
        elif self.work.absence and self._first_failure:
            # `ktuned compile` shows each config's own line; what wanted to measure shows this one.
            message = f"{message}: {self._first_failure}"
        if self.work.absence:
            return JobState.FAILED, f"no device: {self.work.absence}; {message}"
        return (JobState.DONE if ready else JobState.FAILED), message

    async def run(self) -> None:
        """Compile until the space or the budget is exhausted.

        Raises:
            WorkerError: no config can be compiled at all; with code ``source_changed`` when a file changed meanwhile.
            StoreError: an artifact cannot be kept.
            ExceptionGroup: of these.
        """
        began = monotonic()
        slots = int(self._fleet.compile_slots.total_tokens)
        self._channel, arriving = anyio.create_memory_object_stream[Attempt](
            slots * max(self.work.group_size, MAX_BATCH)
        )
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._ask, self._channel)
                for _ in range(self._fleet.compile_slots.most_inside):
                    tasks.start_soon(self._compile, arriving.clone())
                arriving.close()
        finally:
            self.progress.spend("wall_s", monotonic() - began)
            await self._compiling.close()

    async def _ask(self, channel: MemoryObjectSendStream[Attempt]) -> None:
        plan, deadlines, default = self.work.job.plan, self.work.deadlines, self.work.kernel.default
        began = monotonic()
        async with channel, self._fleet.lend(Role.EXPLORE, self.work.environment) as explorer:
            request = self.work.explore_request([] if default is None else [default])
            async with self._fleet.gate.computing(COURTESY_S):
                found = await opened(explorer, request, self.work.kernel, deadlines)
            exploring = Explorer(explorer, found.strategy, deadlines)
            is_bounded = found.size is not None and not found.is_estimate
            self.progress.total = min(found.size or 0, plan.trials) if is_bounded else plan.trials
            asked = 0
            while asked < plan.trials and (plan.seconds is None or monotonic() - began < plan.seconds):
                async with self._fleet.gate.computing():
                    answer = await exploring.ask((), min(ASK_AT_ONCE, plan.trials - asked))
                asked += len(answer.proposals)
                for proposal in answer.proposals:
                    await self._admit(proposal, channel)
                # A strategy that waits for figures would wait forever: there are none.
                if answer.finished or not answer.proposals:
                    break
            self.progress.total = asked
        self._has_asked_all = True
        self._note_begun()

    def _note_begun(self) -> None:
        in_channel = 0 if self._channel is None else self._channel.statistics().current_buffer_used
        if self._has_asked_all and not self._compiling.has_waiting(in_channel):
            self._stages.reach(JobStage.COMPILING)

    async def _admit(self, proposal: replies.Proposal, channel: MemoryObjectSendStream[Attempt]) -> None:
        if proposal.build is not None:
            await channel.send(Attempt(0, proposal.config, self.work.unit(proposal.build)))
            return
        attempt = Attempt(0, proposal.config, requests.UnitRef("", {}))
        self._report(Ended(attempt, attempt.unbuilt(proposal)))

    async def _compile(self, channel: MemoryObjectReceiveStream[Attempt]) -> None:
        async with channel:
            while (first := await self._compiling.next(channel)) is not None:
                group = self._compiling.group(first, channel, lanes_starve=False)
                for attempt in group:
                    # No lane loads it now, so damage must not wait to be found by a later job.
                    await self._artifacts.verified(attempt.unit.key)
                for done in await self._compiling.compile(group):
                    self._report(done)

    def _report(self, done: Compiled | Ended) -> None:
        """Publish a config that has its artifact, or the reason why it has none."""
        attempt, result = done.attempt, done.result if isinstance(done, Ended) else None
        if result is None:
            self.progress.compiled += 1
        else:
            self.progress.outcomes[result.outcome] += 1
            self._first_failure = self._first_failure or result.message.partition("\n")[0]
        self.progress.spend("compile_s", attempt.compile_s)
        self._publish(
            "config_compiled",
            kernel=self.work.job.kernel,
            job=self.work.job.id,
            problem=self.work.specialized,
            target=self.work.target,
            config=dict(attempt.config),
            outcome=None if result is None else result.outcome.value,
            message="" if result is None else result.message,
            compile_s=round(attempt.compile_s, 3),
            facts=dict(done.facts) if isinstance(done, Compiled) else {},
            artifact=None if result is not None else str(self._artifacts.place(attempt.unit.key)),
            reused=Event.ARTIFACT_FOUND in attempt.life.story,
            **self.progress.to_wire(),
        )
