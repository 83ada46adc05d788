"""The pipeline of one job: its configs flow from the strategy to the store, through bounded channels.

::

    strategy ──▶ [compile channel] ──▶ compile workers ──▶ [bench channel] ──▶ lanes ──▶ outcomes ──▶ strategy

*Tasks.* All tasks run concurrently, so the first compiled config is measured while the others still compile:

==============================  =======================================================================================
task                            what it does
==============================  =======================================================================================
``_propose_configs``, one       asks the strategy, counts configs with a known outcome, enters the others as trials
the compile stage's, by slot    compiles configs of the first channel, and passes those with an artifact on
``_measure_on_lane``, by lane   waits until the job may measure, then measures a batch of the second channel
``_end_job_early``, one         ends the trials when the job's time is up or it is hopeless
``_open_lane_early``, by lane   has the lane ready by the time that there is something to measure
==============================  =======================================================================================

*Back-pressure.* A full channel stops its sender, and the strategy is not asked while too many configs are under way
(:mod:`~ktuned.tuning.limits`). So memory does not grow with the space, and a strategy that learns proposes with fresh
knowledge.

*Lanes.* Several jobs may run on one device model, and one of them has its lanes (:meth:`Pipeline.grant_lanes`). The
others explore and compile until their bench channels are full, and then wait.

*Results.* A result is committed before it is published, and published before the strategy learns of it.

*The end.* Trials end when the space or the plan's trials are exhausted, or the search has converged; then the
finalists compete. If the time is up or the job is hopeless, queued and compiling configs are dropped, and trials on
lanes have :data:`ENDING_S` to finish. A stopped job is cancelled at once. In both cases each trial without an outcome
is recorded as stopped, which says nothing about its config: the next job tries it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from time import monotonic

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ktuned.fleet import COURTESY_S, Fleet, Lane, LaneSick, ReferenceUnusable, Worker
from ktuned.ipc import replies, requests
from ktuned.model import Role, WorkerError, canonical
from ktuned.protocol import ChannelInfo, JobState, PublishEvent, Trial
from ktuned.store import Artifacts, Store
from ktuned.tuning.compile_stage import CompileStage, Enqueue
from ktuned.tuning.exploration import Explorer, open_space
from ktuned.tuning.final_round import FinalRound
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.judgements import PROBES
from ktuned.tuning.limits import (
    LANE_S,
    MAX_BATCH,
    OPENING_AHEAD,
    BatchSize,
    describe_stream,
    limit_configs_under_way,
    limit_question_size,
    limit_share,
    receive_waiting,
)
from ktuned.tuning.measure_stage import MeasureStage
from ktuned.tuning.outcomes import Outcomes, record_stopped_trials
from ktuned.tuning.prior_results import PriorResults
from ktuned.tuning.progress import JobStage
from ktuned.tuning.trial_machine import Attempt, End, NotBuilt, select_ends

STRAGGLER_LOOK_S = 0.2
"""Interval at which the last compiles are checked for stragglers."""

ASK_AT_ONCE = 4
"""Configs in one question to a strategy that learns: few, so that it proposes with fresh knowledge."""

ENDING_S = 2.0
"""Time that trials on lanes have to end once the job's own time is up."""

LEAST_WAIT_S, MOST_WAIT_S = 0.05, 60.0
"""Shortest and longest wait before a job checks its time limit again. Only time with the lanes counts, so it cannot
simply wait for the whole limit."""


class LaneAccess:
    """One job's access to lanes that several running jobs share. It is granted and withdrawn."""

    def __init__(self) -> None:
        self._granted = anyio.Event()
        self._since: float | None = None
        self._earlier_s = 0.0

    @property
    def held_s(self) -> float:
        """The seconds for which the job has had access; its time limit counts only these."""
        return self._earlier_s + (0.0 if self._since is None else monotonic() - self._since)

    @property
    def is_granted(self) -> bool:
        """True while the job may measure."""
        return self._since is not None

    def grant_lanes(self) -> None:
        """Let the job measure."""
        if not self.is_granted:
            self._since = monotonic()
            self._granted.set()

    def withdraw_lanes(self) -> None:
        """Let the job begin no further batch."""
        if self._since is not None:
            self._earlier_s, self._since = self.held_s, None
            self._granted = anyio.Event()

    async def await_lanes(self) -> None:
        """Wait until the job may measure."""
        while not self.is_granted:
            await self._granted.wait()


class Pipeline:
    """Runs one job: :meth:`run` returns when every config has its outcome and the winner is decided.

    It measures only between :meth:`grant_lanes` and :meth:`withdraw_lanes`.

    Args:
        on_stage: Called when the job reaches a stage, perhaps more than once.
        follows_same_kernel: Whether another job of the same kernel runs already. A strategy that learns then waits for
            that job's results and begins with them.
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
        follows_same_kernel: bool = False,
    ) -> None:
        self.brief = brief
        brief.traces.add_follower(brief)
        self._outcomes = Outcomes(brief, store=store, publish=publish, pace=fleet.pace)
        self.progress = self._outcomes.progress
        self._fleet = fleet
        self._lanes = list(lanes)
        self._store = store
        self._publish = publish
        self._report_stage = on_stage
        self._access = LaneAccess()
        self._follows_same_kernel = follows_same_kernel
        self._knows_served = False
        self._refresh_lock = anyio.Lock()
        self._compiling = CompileStage(brief, fleet, artifacts, on_all_begun=lambda: on_stage(JobStage.COMPILING))
        self._prior = PriorResults(brief, store)
        self._measuring = MeasureStage(brief, self._lanes, self._compiling, artifacts, self._prior)
        self._start_lane: Callable[[Lane], None] | None = None
        self._machine = brief.make_trial_machine()
        self._batch_size = BatchSize(LANE_S)
        self._learns = True
        self._was_offered = False
        self._has_fresh = anyio.Event()
        self._is_ending = False
        self._to_bench: MemoryObjectSendStream[Attempt] | None = None

    def describe_channels(self) -> dict[str, ChannelInfo]:
        """Return how full each channel is, and how many configs are ``ahead``: proposed, but without an outcome."""
        most_ahead = self._most_under_way + self._question_size
        return {
            "ahead": ChannelInfo(len(self._outcomes.under_way), most_ahead),
            "compile": self._compiling.describe_channel(),
            "bench": ChannelInfo(0, 0) if self._to_bench is None else describe_stream(self._to_bench),
        }

    def conclude_job(self) -> tuple[JobState, str]:
        """Return the final state of a job that ran to its end, and its message."""
        return self._outcomes.conclude_job()

    @property
    def is_hopeless(self) -> bool:
        """True if another job on this space would fail in the same way."""
        return self._outcomes.hopelessness.is_proven

    def grant_lanes(self) -> None:
        """Let the job measure from now on."""
        if not self._access.held_s:
            self.progress.began = monotonic()
        self._access.grant_lanes()

    def withdraw_lanes(self) -> None:
        """Let the job begin no further batch; those on a lane are finished."""
        self._access.withdraw_lanes()

    def add_lanes(self, lanes: Sequence[Lane]) -> None:
        """Measure on these new lanes, too; do nothing once all configs are measured."""
        start_lane = self._start_lane
        if start_lane is not None:
            for lane in lanes:
                if lane not in self._lanes:
                    self._lanes.append(lane)
                    start_lane(lane)

    async def run(self) -> None:
        """Try configs until the space or the budget is exhausted, then let the finalists decide.

        Raises:
            WorkerError: No config can be tried at all; with code ``source_changed`` if a file changed meanwhile.
            StoreError: Nothing can be recorded.
            ExceptionGroup: Several of these.
        """
        began = monotonic()
        try:
            if await self._outcomes.take_shared_winner():
                return
            async with anyio.create_task_group() as openings:
                # If nothing was ever measured in this context, there will certainly be something to compile. So start
                # the workers while the space is opened.
                if not self._store.load_past_searches(self.brief.context, 1, 1):
                    self._has_fresh.set()
                    openings.start_soon(self._start_compilers)
                for lane in self._lanes:
                    openings.start_soon(self._open_lane_early, lane)
                # Try the configs.
                self._knows_served = self._access.is_granted
                await self._outcomes.open_job()
                await self._try_configs()
                await self._measure_beside_others()
                await self._outcomes.acquit_mismatches()
                if self._was_offered:
                    self._outcomes.skip_unoffered_served()
                # Let the finalists decide, unless a served config has no outcome: nothing may take its place then.
                if self._outcomes.served_configs.are_judged:
                    # A hopeless job needs no lanes: it has no finalists, and its client waits for the message.
                    if not self._outcomes.hopelessness.reason:
                        await self._await_lanes()
                    self._report_stage(JobStage.DECIDING)
                    is_judged = not self._outcomes.is_default_doubtful
                    final_round = FinalRound(self._outcomes, self._measuring, self._fleet)
                    await final_round.run(is_judged=is_judged, ends_at=monotonic() + self._remaining_s)
                else:
                    await self._outcomes.elect_provisional_winner()
                # A lane that is still being opened was not needed.
                openings.cancel_scope.cancel()
        finally:
            self.progress.add_cost("wall_s", monotonic() - began)
            await self._compiling.close()
            await record_stopped_trials(self.brief, self._store, self._outcomes.under_way)

    async def _try_configs(self) -> None:
        """Run the tasks of the search, until each config has its outcome or the job ends early.

        An early end has two steps, so there are two scopes. ``producing`` holds the strategy and the compiles, and is
        cancelled first. ``tasks`` also holds the lanes, whose trials get a little more time.
        """
        # Room for the next batches of each lane, and for a whole group, so that its compiler can begin another one.
        to_bench, bench_from = anyio.create_memory_object_stream[Attempt](
            2 * len(self._lanes) * MAX_BATCH + self.brief.group_size + OPENING_AHEAD
        )
        self._to_bench = to_bench

        async def pass_on(group: Sequence[Attempt], ends: Sequence[End]) -> None:
            await self._outcomes.record_ends(ends)
            for attempt in group:
                if attempt.is_compiled:
                    await to_bench.send(attempt)

        def lanes_starve() -> bool:
            return not to_bench.statistics().current_buffer_used

        producing = anyio.CancelScope()
        try:
            async with bench_from, anyio.create_task_group() as ending:
                async with anyio.create_task_group() as tasks:

                    def start_lane(lane: Lane) -> None:
                        tasks.start_soon(self._measure_on_lane, lane, bench_from.clone())

                    # Lanes may be added later. Each has its own end of the channel, which closes with the last compile.
                    self._start_lane = start_lane
                    ending.start_soon(self._end_job_early, producing, tasks.cancel_scope)
                    for lane in self._lanes:
                        start_lane(lane)
                    with to_bench, producing:
                        async with anyio.create_task_group() as stragglers:
                            stragglers.start_soon(self._end_stragglers)
                            await self._compiling.run(self._propose_configs, pass_on, lanes_starve)
                            stragglers.cancel_scope.cancel()
                ending.cancel_scope.cancel()
        finally:
            self._start_lane = None

    async def _measure_beside_others(self) -> None:
        """Measure some contended configs once more and keep their figures, if the job has nothing better to offer."""
        trials = self._outcomes.take_contended()
        if not trials:
            return
        configs = [trial.config for trial in trials]
        with anyio.CancelScope(shield=True):
            ids = await self._store.begin_trials(
                self.brief.context, self.brief.specialized_problem, self.brief.job.id, configs
            )
        attempts = [
            Attempt(
                number,
                trial.config,
                requests.UnitRef(trial.artifact or "", trial.detail.compiled.build),
                cores=trial.detail.profile.cores,
            )
            for number, trial in zip(ids, trials, strict=True)
        ]
        self._outcomes.under_way |= {attempt.trial: attempt for attempt in attempts}
        await self._outcomes.record_ends(await self._compiling.compile_attempts(attempts))
        await self._await_lanes()
        self._measuring.judges_contention = False
        await self._measuring.measure_batch(
            self._measuring.choose_well_lane(),
            [attempt for attempt in attempts if attempt.is_compiled],
            self.progress.find_best,
            self._outcomes.record_disturbed_ends,
        )
        self._measuring.judges_contention = self.brief.judge_contention

    async def _end_job_early(self, producing: anyio.CancelScope, trying: anyio.CancelScope) -> None:
        """Wait until the time is up or the job is hopeless; then end the compiles, and later the trials on lanes."""
        while self._remaining_s > 0 and not self._outcomes.hopelessness.given_up.is_set():
            # Only time with the lanes counts, so the limit may not be reached after this wait.
            with anyio.move_on_after(max(LEAST_WAIT_S, min(self._remaining_s, MOST_WAIT_S))):
                await self._outcomes.hopelessness.given_up.wait()
        self._is_ending = True
        producing.cancel()
        await anyio.sleep(ENDING_S)
        trying.cancel()

    @property
    def _remaining_s(self) -> float:
        """The seconds that remain until the job's time limit."""
        seconds = self.brief.job.plan.time_limit_s
        return inf if seconds is None else seconds - self._access.held_s

    @property
    def _most_under_way(self) -> int:
        """The strategy is not asked while more configs than this are under way."""
        return limit_configs_under_way(
            slots=self._compiling.slots,
            group=self.brief.group_size,
            lanes=len(self._lanes),
            batch=1 if self._learns else self._batch_size.next_size,
            is_opening=self._waits_for_lanes,
        )

    @property
    def _waits_for_lanes(self) -> bool:
        """True while nothing is measured yet, if it is certain that all configs compiled meanwhile will be measured."""
        plan = self.brief.job.plan
        is_bounded = plan.until == "budget" and plan.time_limit_s is None
        return is_bounded and not self._learns and not self.progress.has_measured

    @property
    def _question_size(self) -> int:
        if self._learns:
            return ASK_AT_ONCE
        return limit_question_size(lanes=len(self._lanes), batch=self._batch_size.next_size)

    async def _propose_configs(self, enqueue: Enqueue) -> None:
        """Ask the strategy for configs until it has no more, and start each."""
        plan, outcomes = self.brief.job.plan, self._outcomes
        async with self._fleet.lend_worker(Role.EXPLORE, self.brief.environment) as worker:
            found, first = await self._open_space(worker)
            explorer = Explorer(worker, found.strategy, self.brief.deadlines)
            asked, fruitful_at = 0, monotonic()
            is_exhausted = False
            while asked < plan.trials:
                # Back-pressure. Probes are exempt: a job that may be hopeless must find out soon.
                while len(outcomes.under_way) > self._most_under_way and not outcomes.hopelessness.wants_probes:
                    await outcomes.await_next_outcome()
                # Ask, and start the proposed configs.
                is_probing = outcomes.hopelessness.wants_probes
                count = min(self._question_size, plan.trials - asked)
                count = min(count, PROBES) if is_probing else count
                answer = await self._request_proposals(explorer, count, anywhere=is_probing)
                outcomes.hopelessness.record_proposed(
                    [proposal.config for proposal in answer.proposals], are_probes=is_probing
                )
                asked += len(answer.proposals)
                await self._start_configs(answer.proposals, enqueue)
                self._was_offered |= answer.finished or asked > first
                # Stop where no more configs are needed.
                if answer.finished:
                    is_exhausted = True
                    break
                if plan.until == "converged" and answer.converged:
                    outcomes.summary.converged = True
                    break
                # A strategy may wait for outcomes. If it proposes nothing while no trial is under way, it is stuck.
                if answer.proposals or outcomes.under_way:
                    fruitful_at = monotonic()
                elif monotonic() - fruitful_at > self.brief.deadlines["inspect"]:
                    raise self._no_config_error(found.strategy)
                if not answer.proposals and outcomes.under_way:
                    await outcomes.await_tried_config()
            self.progress.total = asked
            outcomes.hopelessness.record_last_proposed(is_exhausted=is_exhausted)

    async def _open_space(self, worker: Worker) -> tuple[replies.Explored, int]:
        """Open the job's space in a worker; return its reply, and the number of configs before the strategy's own.

        If another job of the kernel measures first, a strategy that learns is opened again once this job has the lanes:
        the second request contains the other job's results.
        """
        outcomes = self._outcomes
        while True:
            is_early = self._follows_same_kernel and not self._access.is_granted
            served = outcomes.served_configs.configs
            order = self._prior.plan_order(served, slots=self._compiling.slots)
            request = self.brief.make_explore_request(order.first, order.last, served=served)
            async with (
                self._fleet.gate.hold_for_computing(COURTESY_S),
                self.brief.in_hand.hold_trials(self.brief.job.id),
            ):
                found = await open_space(worker, request, self.brief.kernel, self.brief.deadlines)
            await self.brief.learn_names(found.observed)
            self._measuring.reference.set_candidates(found.references)
            if not (is_early and found.learns):
                break
            await self._await_lanes()
        outcomes.summary.record_space(found)
        self._learns = found.learns
        is_bounded = found.size is not None and not found.is_estimate
        trials = self.brief.job.plan.trials
        self.progress.total = min(found.size or 0, trials) if is_bounded else trials
        return found, len(order.first)

    def _no_config_error(self, strategy: str) -> WorkerError:
        kernel = self.brief.kernel
        return WorkerError(
            f"{kernel.file}:{kernel.line}: no config of kernel {kernel.kernel!r} was found in "
            f"{self.brief.deadlines['inspect']:.3g} s: `where` refuses all, or the strategy {strategy!r} proposes none",
            hint="loosen `where`, give a space that yields the valid configs, or name another strategy",
        )

    async def _end_stragglers(self) -> None:
        """Once only compiles are left, end those that take the preset's multiple of the longest finished compile.

        An example: one of a tuner's 85 configs compiled for 18 s, the others for 2 to 9 s, while somebody waited for
        the winner. The config is not lost: a job of the given-up configs follows, which waits for them.
        """
        times = self.brief.preset.straggler_times
        if times is None or self.brief.job.plan.configs:
            return
        await self._compiling.has_all.wait()
        while True:
            if self.progress.has_measured and self._compiling.running_configs == len(self._outcomes.under_way):
                self._compiling.end_stragglers(times)
            await anyio.sleep(STRAGGLER_LOOK_S)

    async def _request_proposals(self, explorer: Explorer, count: int, *, anywhere: bool) -> replies.Proposals:
        tried = self._outcomes.collect_tried_configs()
        # A strategy's computing would disturb a timing that uses every core.
        async with self._fleet.gate.hold_for_computing(), self.brief.in_hand.hold_trials(self.brief.job.id):
            answer = await explorer.ask_for_configs(tried, count, anywhere=anywhere)
        await self.brief.learn_names(answer.observed)
        return answer

    async def _start_configs(self, proposals: Sequence[replies.Proposal], enqueue: Enqueue) -> None:
        """Start the new configs; those whose outcome the store knows need neither compiler nor lane."""
        # Leave out configs with a known outcome. A config that only lacks a figure is launched again for that figure.
        self.brief.admission.remember_admitted_configs(
            self.brief.kernel, self.brief.problem, [proposal.config for proposal in proposals]
        )
        fresh = []
        lacking: dict[str, Trial] = {}
        tries: dict[str, int] = {}
        for proposal in proposals:
            known = self._store.find_trial(self.brief.context, proposal.config)
            if known is not None and self._outcomes.outcome_stands(known):
                self._outcomes.record_known_trial(known)
                continue
            fresh.append(proposal)
            if known is not None and known.detail.failure.tries:
                tries[canonical(known.config)] = known.detail.failure.tries
            if known is not None and self.brief.lacks_figure(known) and not self.brief.job.plan.again:
                lacking[canonical(known.config)] = known
        if not fresh:
            return
        if any(proposal.build is not None for proposal in fresh):
            self._has_fresh.set()
        # Compiles are speculative while the strategy does not know the outcomes of its earlier proposals.
        is_first = not self._outcomes.under_way
        self.progress.add_cost("speculative", sum(proposal.build is not None for proposal in fresh[is_first:]))
        configs = [proposal.config for proposal in fresh]
        # Enter the trials. Shielded, because each row that was entered needs an attempt that leads to its outcome.
        with anyio.CancelScope(shield=True):
            ids = await self._store.begin_trials(
                self.brief.context, self.brief.specialized_problem, self.brief.job.id, configs
            )
        attempts = [
            self._make_attempt(trial, proposal, lacking.get(text := canonical(proposal.config)), tries.get(text, 0))
            for trial, proposal in zip(ids, fresh, strict=True)
        ]
        self._outcomes.under_way |= {attempt.trial: attempt for attempt in attempts}
        # A config without a Build has its outcome already; the others go to the compilers.
        for attempt, proposal in zip(attempts, fresh, strict=True):
            if proposal.build is None:
                await self._outcomes.record_ends(select_ends(self._machine.handle(NotBuilt(attempt, proposal))))
        for attempt in attempts:
            if attempt.trial in self._outcomes.under_way:
                await enqueue(attempt)

    def _make_attempt(self, trial: int, proposal: replies.Proposal, known: Trial | None, tries: int) -> Attempt:
        unit = requests.UnitRef("", {}) if proposal.build is None else self.brief.make_unit(proposal.build)
        return Attempt(
            trial,
            proposal.config,
            unit,
            cores=proposal.cores,
            declares_cores=proposal.cores is not None,
            known=known,
            tries=tries,
            expected_s=self._prior.predict_compile_s(proposal.config),
        )

    async def _await_lanes(self) -> None:
        """Wait until the job may measure. The first time, refresh the opening: other jobs may have measured since."""
        await self._access.await_lanes()
        async with self._refresh_lock:
            if not self._knows_served and not self.progress.has_measured:
                await self._outcomes.refresh_served_configs()
            self._knows_served = True

    async def _start_compilers(self) -> None:
        """Start compile workers while the kernel file is imported, but not in other jobs' quiet windows."""
        async with self._fleet.gate.hold_for_compile():
            await self._compiling.start_workers()

    async def _open_lane_early(self, lane: Lane) -> None:
        """Open a lane, if it is free, while the first configs still compile.

        Opening takes seconds if nothing was measured lately. Like a compile, it keeps out of other jobs' quiet windows.
        """
        # Nothing is opened for a job whose configs are all known.
        await self._has_fresh.wait()
        gate = lane.gate
        if self._access.is_granted:
            async with gate.hold_for_compile():
                lane.prepare_worker(self.brief.find_environment(lane.device), self.brief.kernel.backend)
        # The reference may be compiled while another job has the lanes.
        await self._measuring.reference.prepare_artifact()
        await self._await_lanes()
        async with gate.hold_for_compile():
            if lane.state == "ready":
                async with lane.hold(self.brief.job.id):
                    began = monotonic()
                    try:
                        await self._measuring.open_lane(lane, is_early=True)
                    except LaneSick:
                        # The lane is left alone until there is something to measure.
                        pass
                    except ReferenceUnusable as error:
                        # The next candidate is prepared before there is something to measure.
                        self._measuring.reference.replace_unusable(error)
                    self.progress.add_cost("open_s", monotonic() - began)

    async def _measure_on_lane(self, lane: Lane, channel: MemoryObjectReceiveStream[Attempt]) -> None:
        # Recording a result does not disturb a GPU's timings, so a GPU's lane measures on meanwhile; it waits only if
        # the results before are still being recorded. A CPU's timings would be disturbed, so its lane always waits.
        is_free = anyio.Semaphore(1)
        async with channel, anyio.create_task_group() as recording:

            async def commit_ends(ends: Sequence[End]) -> None:
                try:
                    await self._outcomes.record_ends(ends)
                finally:
                    is_free.release()

            async def record_ends(ends: Sequence[End]) -> None:
                for end in ends:
                    self._batch_size.record_request(1, end.result.lane_s)
                if lane.device.kind == "cpu":
                    await self._outcomes.record_ends(ends)
                    return
                await is_free.acquire()
                recording.start_soon(commit_ends, ends)

            async for first in channel:
                await self._await_lanes()
                if not self._is_ending:
                    batch = self._collect_batch(first, channel)
                    await self._measuring.measure_batch(lane, batch, self.progress.find_best, record_ends)

    def _collect_batch(self, first: Attempt, channel: MemoryObjectReceiveStream[Attempt]) -> list[Attempt]:
        """Return ``first`` with a lane's share of the waiting configs, at most one batch."""
        most = limit_share(1 + channel.statistics().current_buffer_used, len(self._lanes))
        return receive_waiting(first, channel, min(self._batch_size.next_size, most))
