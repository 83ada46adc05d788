"""Judged jobs: each of a few given configs is compiled and judged, and gets its verdict. Nothing is searched.

A judged config is not trusted (:mod:`ktuned.judging`), so a judged job differs from a tuning in three ways:

* *Nothing is shared.* Each config has a request for itself, in a lane whose worker has run no config of a tuning.
* *Nothing is taken over.* A config is judged again although it was judged before; only quarantined configs are not.
* *Nothing wins.* The trials are in a context of their own (:attr:`~ktuned.store.Context.judged`), which lookups,
  exports and later searches do not see. A job with bad configs has not failed, and is not given up.

The reference is timed while the first config compiles. It is timed once for all configs, which cannot disturb it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ktuned.fleet import COURTESY_S, DeadlineExpired, Fleet, Lane, LaneSick, RequestFailed, WorkerDied
from ktuned.ipc import replies, requests
from ktuned.model import JUDGED, PRESETS, JudgeVerdict, Outcome, Role, TrialResult, read_judgement
from ktuned.protocol import ChannelInfo, JobState, PublishEvent
from ktuned.store import Artifacts, Store
from ktuned.tuning.compile_stage import CompileStage, Enqueue
from ktuned.tuning.exploration import Explorer, open_space
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.limits import describe_stream
from ktuned.tuning.measure_stage import MeasureStage
from ktuned.tuning.outcomes import record_stopped_trials
from ktuned.tuning.pipeline import LaneAccess
from ktuned.tuning.progress import JobStage, Progress, make_trial, publish_trial
from ktuned.tuning.trial_machine import Attempt, End, NotBuilt, select_ends

_log = structlog.get_logger()

QUICK = "fast"
"""The preset by which configs are judged with fewer launches, and with which references are timed."""

REFEREE_S = 60.0
"""Time that the referee needs for an order at most: it writes inputs, computes expected outputs and compares, on a
machine that may be busy.
"""


class Judging:
    """Runs one judged job: :meth:`run` returns when every config has its verdict.

    It measures only between :meth:`grant_lanes` and :meth:`withdraw_lanes`.

    Args:
        on_stage: Called when the job reaches a stage, perhaps more than once.
    """

    def __init__(
        self,
        brief: JobBrief,
        *,
        fleet: Fleet,
        lanes: Sequence[Lane],
        store: Store,
        artifacts: Artifacts,
        publish: PublishEvent,
        on_stage: Callable[[JobStage], None],
    ) -> None:
        self.brief = brief
        brief.traces.add_follower(brief)
        self.progress = Progress()
        self.is_hopeless = False
        self._fleet = fleet
        self._store = store
        self._publish = publish
        self._access = LaneAccess()
        self._compiling = CompileStage(brief, fleet, artifacts, on_all_begun=lambda: on_stage(JobStage.COMPILING))
        self._measuring = MeasureStage(brief, lanes, self._compiling, artifacts)
        self._machine = brief.make_trial_machine()
        self._under_way: dict[int, Attempt] = {}
        self._verdicts: Counter[str] = Counter()
        self._to_lane: MemoryObjectSendStream[Attempt] | None = None

    def describe_channels(self) -> dict[str, ChannelInfo]:
        """Return how full each channel is."""
        bench = ChannelInfo(0, 0) if self._to_lane is None else describe_stream(self._to_lane)
        return {"compile": self._compiling.describe_channel(), "bench": bench}

    def conclude_job(self) -> tuple[JobState, str]:
        """Return the job's final state, and its message: how many configs have which verdict."""
        return JobState.DONE, ", ".join(f"{count} {verdict}" for verdict, count in self._verdicts.items())

    def grant_lanes(self) -> None:
        """Let the job measure from now on."""
        self._access.grant_lanes()

    def withdraw_lanes(self) -> None:
        """Let the job begin no further config."""
        self._access.withdraw_lanes()

    async def run(self) -> None:
        """Judge all configs.

        Raises:
            WorkerError: No config can be judged at all, such as without a reference; with code ``source_changed`` if a
                file changed meanwhile.
            StoreError: Nothing can be recorded.
            ExceptionGroup: Several of these.
        """
        began = monotonic()
        to_lane, compiled = anyio.create_memory_object_stream[Attempt](len(self.brief.job.plan.configs) or 1)
        self._to_lane = to_lane

        async def pass_on(group: Sequence[Attempt], ends: Sequence[End]) -> None:
            for end in ends:
                await self._record_end(end.attempt, end.result)
            for attempt in group:
                if attempt.is_compiled:
                    await to_lane.send(attempt)

        try:
            async with anyio.create_task_group() as beside:
                beside.start_soon(self._time_reference)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._judge_compiled, compiled)
                    with to_lane:
                        await self._compiling.run(self._propose_configs, pass_on, lambda: True)
                if not self._verdicts[JudgeVerdict.RIGHT]:
                    # There is no latency to compare with the reference's.
                    beside.cancel_scope.cancel()
        finally:
            self.progress.add_cost("wall_s", monotonic() - began)
            await self._compiling.close()
            await record_stopped_trials(self.brief, self._store, self._under_way)

    async def _propose_configs(self, enqueue: Enqueue) -> None:
        """Have the configs' Builds made, and start each config that the space holds."""
        brief, plan = self.brief, self.brief.job.plan
        if plan.configs and not any(await brief.check_configs(plan.configs)):
            return
        async with self._fleet.lend_worker(Role.EXPLORE, brief.environment) as worker:
            async with self._fleet.gate.hold_for_computing(COURTESY_S), brief.in_hand.hold_trials(brief.job.id):
                found = await open_space(worker, brief.make_explore_request(), brief.kernel, brief.deadlines)
                await brief.learn_names(found.observed)
                self._measuring.reference.set_candidates(found.references)
                explorer = Explorer(worker, found.strategy, brief.deadlines)
                answer = await explorer.ask_for_configs((), plan.trials)
            await brief.learn_names(answer.observed)
        self.progress.total = len(answer.proposals)
        # Shielded, because each row that was entered needs an attempt that leads to its outcome.
        known = [self._store.find_trial(brief.context, proposal.config) for proposal in answer.proposals]
        with anyio.CancelScope(shield=True):
            configs = [proposal.config for proposal in answer.proposals]
            ids = await self._store.begin_trials(brief.context, brief.specialized_problem, brief.job.id, configs)
        attempts = list(map(self._make_attempt, ids, answer.proposals))
        self._under_way |= {attempt.trial: attempt for attempt in attempts}
        for attempt, proposal, before in zip(attempts, answer.proposals, known, strict=True):
            if before is not None and before.detail.failure.deaths and before.outcome is Outcome.CRASHED:
                await self._record_end(attempt, before.result)
            elif proposal.build is None:
                for end in select_ends(self._machine.handle(NotBuilt(attempt, proposal))):
                    await self._record_end(attempt, end.result)
            else:
                await enqueue(attempt)

    def _make_attempt(self, trial: int, proposal: replies.Proposal) -> Attempt:
        unit = requests.UnitRef("", {}) if proposal.build is None else self.brief.make_unit(proposal.build)
        return Attempt(trial, proposal.config, unit, cores=proposal.cores, declares_cores=proposal.cores is not None)

    async def _judge_compiled(self, compiled: MemoryObjectReceiveStream[Attempt]) -> None:
        """Judge the compiled configs, one after the other."""
        async with compiled:
            async for attempt in compiled:
                await self._access.await_lanes()
                await self._record_end(attempt, await self._judge_config(attempt))

    async def _time_reference(self) -> None:
        """Open the lane and time the reference, if there is one, while the first config compiles."""
        await self._access.await_lanes()
        request = requests.TimeReference(PRESETS[QUICK], judge_contention=False)
        while True:
            lane = self._measuring.choose_well_lane()
            try:
                async with self._measuring.hold_open_lane(lane):
                    measured, _ = await lane.send_request(request, self.brief.deadlines)
            except LaneSick:
                continue
            except (WorkerDied, DeadlineExpired, RequestFailed) as error:
                _log.warning("time_reference_failed", job=self.brief.job.id, reason=error.message)
                return
            self.progress.reference_us = measured.result.latency_us
            self.progress.reference_spread_us = measured.result.spread_us
            return

    async def _judge_config(self, attempt: Attempt) -> TrialResult:
        brief = self.brief
        request = requests.Trial(
            (attempt.unit,),
            brief.preset,
            judge_contention=False,
            judged=True,
            quick=brief.preset.name == QUICK,
            peaks=self._store.load_peaks().get(brief.context.device),
            deadlines=brief.deadlines,
        )
        # The referee enforces the deadlines, so that a candidate that hangs costs no worker. The worker's phase begins
        # anew with each order, and holds an answer that is waited for and the referee's own work.
        deadlines = {phase: seconds + REFEREE_S for phase, seconds in brief.deadlines.items()}
        while True:
            with suppress(LaneSick):
                return await self._measuring.measure_alone(
                    self._measuring.choose_well_lane, attempt, request, deadlines
                )

    async def _record_end(self, attempt: Attempt, result: TrialResult) -> None:
        """Commit a trial's result, then publish it with its detail, which has the verdict."""
        brief = self.brief
        result = brief.grants.note_grants(result)
        # Shielded: cancelling must not lose a verdict.
        with anyio.CancelScope(shield=True):
            await self._store.finish_trials([(attempt.trial, result)], objective=JUDGED, keeps_winner=True)
        del self._under_way[attempt.trial]
        self.progress.charge_attempt(attempt, result)
        self.progress.count_outcome(result, is_default=attempt.config == brief.kernel.default)
        self._verdicts[read_judgement(result).verdict] += 1
        trial = make_trial(brief, attempt, result)
        publish_trial(self._publish, brief, self.progress, trial, with_detail=True)
