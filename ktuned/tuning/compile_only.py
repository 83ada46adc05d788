"""Jobs that only compile: strategy → compile channel → compile workers → artifacts.

Nothing is measured, so there are no trials: an event reports each config as soon as it is ready. The artifacts stay
under the keys that a later job on a device of the same target will look for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from time import monotonic

import anyio

from ktuned.fleet import COURTESY_S, Fleet
from ktuned.ipc import replies, requests
from ktuned.model import Outcome, Role, TrialResult
from ktuned.protocol import ChannelInfo, ConfigCompiled, JobState, PublishEvent
from ktuned.store import Artifacts
from ktuned.tuning.compile_stage import CompileStage, Enqueue
from ktuned.tuning.exploration import Explorer, open_space
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.judgements import PROBES, Hopelessness
from ktuned.tuning.progress import COMPILED, JobStage, Progress
from ktuned.tuning.trial_machine import Attempt, End, NotBuilt, TrialEvent, select_ends

ASK_AT_ONCE = 16
"""Configs in one question to the strategy. There are no figures to learn from, so many at once do no harm."""


class CompileOnly:
    """Runs a job that only compiles: :meth:`run` returns when each config has its artifact, or a reason why not.

    Args:
        on_stage: Called, perhaps more than once, when no config waits to be compiled any more.
    """

    def __init__(
        self,
        brief: JobBrief,
        *,
        fleet: Fleet,
        artifacts: Artifacts,
        publish: PublishEvent,
        on_stage: Callable[[JobStage], None],
    ) -> None:
        self.brief = brief
        brief.traces.add_follower(brief)
        self.progress = Progress(time_limit_s=brief.job.plan.time_limit_s)
        self._fleet = fleet
        self._artifacts = artifacts
        self._publish = publish
        self._compiling = CompileStage(brief, fleet, artifacts, on_all_begun=lambda: on_stage(JobStage.COMPILING))
        self._first_failure = ""
        self._hopelessness = Hopelessness()

    def describe_channels(self) -> dict[str, ChannelInfo]:
        """Return how full the channel is."""
        return {"compile": self._compiling.describe_channel()}

    def conclude_job(self) -> tuple[JobState, str]:
        """Return the job's final state, and its message."""
        ready, target = self.progress.outcomes[COMPILED], self.brief.target
        message = f"no config could be compiled for {target}"
        if self._hopelessness.reason:
            message = self._hopelessness.reason
        elif ready:
            message = f"{ready} artifacts are ready for {target}" if ready > 1 else f"1 artifact is ready for {target}"
        elif self.brief.absence and self._first_failure:
            # `ktuned tune --compile-only` shows a line for each config. A job that found no device shows only this.
            message = f"{message}: {self._first_failure}"
        if self.brief.absence:
            return JobState.FAILED, f"no device: {self.brief.absence}; {message}"
        return (JobState.DONE if ready else JobState.FAILED), message

    @property
    def is_hopeless(self) -> bool:
        """True if another job on this space would fail in the same way."""
        return self._hopelessness.is_proven

    async def run(self) -> None:
        """Compile until the space or the budget is exhausted.

        Raises:
            WorkerError: No config can be compiled at all; with code ``source_changed`` if a file changed meanwhile.
            StoreError: An artifact cannot be kept.
            ExceptionGroup: Several of these.
        """
        began = monotonic()
        ends_at = inf if self.progress.time_limit_s is None else began + self.progress.time_limit_s
        try:
            async with anyio.create_task_group() as ending:
                with anyio.CancelScope() as compiling:
                    ending.start_soon(self._end_job_early, compiling, ends_at)
                    await self._compiling.run(self._propose_configs, self._publish_group, lambda: False)
                ending.cancel_scope.cancel()
        finally:
            self.progress.add_cost("wall_s", monotonic() - began)
            await self._compiling.close()

    async def _end_job_early(self, compiling: anyio.CancelScope, ends_at: float) -> None:
        """Wait until the time is up or the job is hopeless; then stop its compiles."""
        with anyio.move_on_after(ends_at - monotonic()):
            await self._hopelessness.given_up.wait()
        compiling.cancel()

    async def _propose_configs(self, enqueue: Enqueue) -> None:
        """Ask the strategy for configs until it has no more."""
        plan, deadlines, default = self.brief.job.plan, self.brief.deadlines, self.brief.kernel.default
        async with self._fleet.lend_worker(Role.EXPLORE, self.brief.environment) as explorer:
            request = self.brief.make_explore_request([] if default is None else [default])
            async with (
                self._fleet.gate.hold_for_computing(COURTESY_S),
                self.brief.in_hand.hold_trials(self.brief.job.id),
            ):
                found = await open_space(explorer, request, self.brief.kernel, deadlines)
            exploring = Explorer(explorer, found.strategy, deadlines)
            is_bounded = found.size is not None and not found.is_estimate
            self.progress.total = min(found.size or 0, plan.trials) if is_bounded else plan.trials
            asked, is_exhausted = 0, False
            while asked < plan.trials:
                is_probing = self._hopelessness.wants_probes
                most = min(PROBES if is_probing else ASK_AT_ONCE, plan.trials - asked)
                async with self._fleet.gate.hold_for_computing(), self.brief.in_hand.hold_trials(self.brief.job.id):
                    answer = await exploring.ask_for_configs((), most, anywhere=is_probing)
                self._hopelessness.record_proposed(
                    [proposal.config for proposal in answer.proposals], are_probes=is_probing
                )
                asked += len(answer.proposals)
                for proposal in answer.proposals:
                    await self._start_config(proposal, enqueue)
                # A strategy that waits for figures would wait for ever: there are none.
                is_exhausted = answer.finished
                if is_exhausted or not (answer.proposals or is_probing):
                    break
            self.progress.total = asked
            self._hopelessness.record_last_proposed(is_exhausted=is_exhausted)

    async def _start_config(self, proposal: replies.Proposal, enqueue: Enqueue) -> None:
        if proposal.build is not None:
            unit = self.brief.make_unit(proposal.build)
            # No lane of this job will load the artifact and notice damage, so it is verified here.
            await self._artifacts.verify_artifact(unit.key)
            await enqueue(Attempt(0, proposal.config, unit))
            return
        attempt = Attempt(0, proposal.config, requests.UnitRef("", {}))
        for end in select_ends(self.brief.make_trial_machine().handle(NotBuilt(attempt, proposal))):
            self._publish_config(end.attempt, end.result)

    async def _publish_group(self, group: Sequence[Attempt], ends: Sequence[End]) -> None:
        results = {end.attempt: end.result for end in ends}
        for attempt in group:
            self._publish_config(attempt, results.get(attempt))

    def _publish_config(self, attempt: Attempt, result: TrialResult | None) -> None:
        """Count and publish a config that has its artifact, or the reason why it has none."""
        outcome = Outcome.MEASURED if result is None else result.outcome
        assert outcome is not None
        if result is None:
            self.progress.outcomes[COMPILED] += 1
        else:
            self.progress.outcomes[outcome] += 1
            self._first_failure = self._first_failure or result.message.partition("\n")[0]
        self._hopelessness.record_outcome(attempt.config, outcome, "" if result is None else result.message)
        self.progress.add_cost("compile_s", attempt.compile_s)
        self._publish(
            ConfigCompiled(
                kernel=self.brief.job.kernel,
                job=self.brief.job.id,
                problem=self.brief.specialized_problem,
                target=self.brief.target,
                config=attempt.config,
                outcome=None if result is None else result.outcome,
                message="" if result is None else result.message,
                compile_s=round(attempt.compile_s, 3),
                facts=attempt.facts if result is None else {},
                artifact=None if result is not None else str(self._artifacts.locate_artifact(attempt.unit.key)),
                reused=TrialEvent.ARTIFACT_FOUND in attempt.story,
                **self.progress.read_figures(),
            )
        )
