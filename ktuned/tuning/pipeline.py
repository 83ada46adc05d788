"""The way of a config: strategy → compile channel → compile workers → bench channel → lanes → store → strategy.

Both channels are bounded, so back-pressure reaches the strategy and memory does not grow with the space. The first
compiled config is measured while the rest still compile. A result is committed before it is published.

Several jobs may run on one device model, and one of them has its lanes. The others fill their bench channels meanwhile,
and then back-pressure stops them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from time import monotonic

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ktuned.fleet import COURTESY_S, Fleet, Lane, ReferenceUnusable
from ktuned.ipc import replies, requests
from ktuned.model import JobState, Role, Trial, WorkerError, canonical
from ktuned.store import Artifacts, Store
from ktuned.tuning.batches import LANE_S, MAX_BATCH, OPENING_AHEAD, BatchSize, ahead, asked_at_once, share
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.exploration import Explorer, opened
from ktuned.tuning.final_round import FinalRound
from ktuned.tuning.hopeless import PROBES
from ktuned.tuning.measure_stage import MeasureStage
from ktuned.tuning.outcomes import Outcomes
from ktuned.tuning.prior_results import PriorResults
from ktuned.tuning.progress import Publish
from ktuned.tuning.stages import JobStage, LaneAccess, StageReport
from ktuned.tuning.trial_lifecycle import Attempt
from ktuned.tuning.trial_machine import End, NotBuilt, ends_among
from ktuned.tuning.work import Work

STRAGGLER_LOOK_S = 0.2
"""Interval at which the last compiles are looked at."""

ASK_AT_ONCE = 4
"""Configs that a strategy that learns is asked for at once: few, so that it proposes with fresh knowledge."""

ENDING_S = 2.0
"""Time that the trials on the lanes have to end when the job's own time is up."""

LEAST_WAIT_S, MOST_WAIT_S = 0.05, 60.0
"""Intervals at which a job with a limit of time looks at it: what others take of the lanes' time does not count."""


class Pipeline:
    """One job on its way; :meth:`run` returns when every config has its outcome and the winner is decided.

    ``on_stage`` is called when the job reaches its next stage. It measures only between :meth:`grant_lanes` and
    :meth:`withdraw_lanes`. ``is_after_kin`` says that a job of the same kernel has the lanes before it, whose results a
    strategy that learns is to begin with.
    """

    def __init__(
        self,
        work: Work,
        *,
        fleet: Fleet,
        lanes: Sequence[Lane],
        store: Store,
        artifacts: Artifacts,
        publish: Publish,
        on_stage: Callable[[JobStage], None],
        is_after_kin: bool = False,
    ) -> None:
        self.work = work
        work.traces.add_follower(work)
        self._outcomes = Outcomes(work, store=store, publish=publish, pace=fleet.pace)
        self.progress = self._outcomes.progress
        self._fleet = fleet
        self._lanes = list(lanes)
        self._store = store
        self._publish = publish
        self._stages = StageReport(on_stage)
        self._access = LaneAccess()
        self._is_after_kin = is_after_kin
        self._knows_served = False
        self._looking = anyio.Lock()
        self._compiling = CompileStage(work, fleet, artifacts, on_begun=self._note_begun)
        self._prior = PriorResults(work, store)
        self._measuring = MeasureStage(work, self._lanes, self._compiling, artifacts, self._prior)
        self._begin_on: Callable[[Lane], None] | None = None
        self._machine = work.trial_machine()
        self._batch_size = BatchSize(LANE_S)
        self._learns = True
        self._was_offered = False
        self._has_asked_all = False
        self._has_fresh = anyio.Event()
        self._is_ending = False
        self._channels: dict[str, MemoryObjectSendStream[Attempt]] = {}

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return how full each channel is, and how many configs are ``ahead``: proposed, and without an outcome yet."""
        found = {"ahead": {"used": len(self._outcomes.under_way), "size": self._most_ahead + self._ask_at_once}}
        for name, stream in self._channels.items():
            now = stream.statistics()
            found[name] = {"used": now.current_buffer_used, "size": int(now.max_buffer_size)}
        return found

    @property
    def verdict(self) -> tuple[JobState, str]:
        """The final state of a job that ran to its end, and its message."""
        return self._outcomes.verdict

    def grant_lanes(self) -> None:
        """Let the job measure from now on."""
        if not self._access.held_s:
            self.progress.began = monotonic()
        self._access.grant()

    def withdraw_lanes(self) -> None:
        """Let the job measure nothing more, after the batches that are being measured."""
        self._access.withdraw()

    def join(self, lanes: Sequence[Lane]) -> None:
        """Measure on these lanes, too, from now on: they have come. Once all configs are measured, on none."""
        begin_on = self._begin_on
        if begin_on is not None:
            for lane in lanes:
                if lane not in self._lanes:
                    self._lanes.append(lane)
                    begin_on(lane)

    async def run(self) -> None:
        """Try configs until the space or the budget is exhausted, then let the finalists decide.

        Raises:
            WorkerError: no config can be tried at all; with code ``source_changed`` when a file changed meanwhile.
            StoreError: nothing can be recorded.
            ExceptionGroup: of these.
        """
        began = monotonic()
        final_round = FinalRound(
            self.work, self.progress, self._fleet, self._lanes, self._store, self._measuring, self._publish
        )
        try:
            async with anyio.create_task_group() as openings:
                if not self._store.load_past_searches(self.work.context, 1, 1):
                    # Nothing was ever measured, so that there will be something to compile.
                    self._has_fresh.set()
                    openings.start_soon(self._open_compilers)
                for lane in self._lanes:
                    openings.start_soon(self._open_early, lane)
                self._knows_served = self._access.is_granted
                await self._outcomes.begin()
                await self._try_all()
                await self._outcomes.acquit()
                if self._was_offered:
                    self._outcomes.pass_over()
                if self._outcomes.opening.is_over:
                    # Others may measure first, so that the finalists of several jobs compete in one quiet window.
                    self._access.withdraw()
                    self._stages.reach(JobStage.MEASURED)
                    if not self._outcomes.hopelessness.reason:
                        # Nothing is to be decided of a job without any hope, whose message is due now.
                        await self._await_lanes()
                    self._stages.reach(JobStage.DECIDING)
                    is_judged = not self._outcomes.is_default_doubtful
                    await final_round.run(is_judged=is_judged, ends_at=monotonic() + self._left_s)
                    self._outcomes.final_fault = final_round.fault
                # A lane that is not open yet was not needed.
                openings.cancel_scope.cancel()
        finally:
            self.progress.spend("wall_s", monotonic() - began)
            await self._compiling.close()
            await self._outcomes.abandon_rest()

    async def _try_all(self) -> None:
        slots = self._compiling.slots
        # How many are asked for is the bound that follows the pace; these are those of the fastest.
        to_compile, compile_from = anyio.create_memory_object_stream[Attempt](
            slots * max(self.work.group_size, MAX_BATCH)
        )
        # Besides what each lane takes next, a whole group: its worker goes on with another one meanwhile.
        to_bench, bench_from = anyio.create_memory_object_stream[Attempt](
            2 * len(self._lanes) * MAX_BATCH + self.work.group_size + OPENING_AHEAD
        )
        self._channels = {"compile": to_compile, "bench": to_bench}
        producing = anyio.CancelScope()
        try:
            async with bench_from, anyio.create_task_group() as ending:
                async with anyio.create_task_group() as tasks:

                    def begin_on(lane: Lane) -> None:
                        tasks.start_soon(self._bench, lane, bench_from.clone())

                    self._begin_on = begin_on
                    ending.start_soon(self._end_early, producing, tasks.cancel_scope)
                    for lane in self._lanes:
                        begin_on(lane)
                    with to_compile, compile_from, to_bench, producing:
                        async with anyio.create_task_group() as producers:
                            producers.start_soon(self._ask, to_compile)
                            for _ in range(self._compiling.groups):
                                producers.start_soon(self._compile, compile_from.clone(), to_bench.clone())
                            for stream in (compile_from, to_bench):
                                stream.close()
                ending.cancel_scope.cancel()
        finally:
            self._begin_on = None

    async def _end_early(self, producing: anyio.CancelScope, trying: anyio.CancelScope) -> None:
        """Once the job's time is up or it is hopeless, drop what is queued or compiles, and soon what is on a lane."""
        while self._left_s > 0 and not self._outcomes.given_up.is_set():
            # The time counts while the job has the lanes.
            with anyio.move_on_after(max(LEAST_WAIT_S, min(self._left_s, MOST_WAIT_S))):
                await self._outcomes.given_up.wait()
        self._is_ending = True
        producing.cancel()
        await anyio.sleep(ENDING_S)
        trying.cancel()

    @property
    def _left_s(self) -> float:
        """The time that the job's limit leaves it."""
        seconds = self.work.job.plan.seconds
        return inf if seconds is None else seconds - self._access.held_s

    @property
    def _most_ahead(self) -> int:
        """The number of configs under way from which on no more are asked for."""
        return ahead(
            slots=self._compiling.slots,
            group=self.work.group_size,
            lanes=len(self._lanes),
            batch=1 if self._learns else self._batch_size.now,
            is_opening=self._waits_for_lanes,
        )

    @property
    def _waits_for_lanes(self) -> bool:
        """True while nothing is measured yet, and whatever is compiled meanwhile will be."""
        plan = self.work.job.plan
        is_bounded = plan.until == "budget" and plan.seconds is None
        return is_bounded and not self._learns and not self.progress.has_measured

    @property
    def _ask_at_once(self) -> int:
        return ASK_AT_ONCE if self._learns else asked_at_once(lanes=len(self._lanes), batch=self._batch_size.now)

    async def _ask(self, channel: MemoryObjectSendStream[Attempt]) -> None:
        plan, deadlines, outcomes = self.work.job.plan, self.work.deadlines, self._outcomes
        leading = outcomes.lead.configs
        hopelessness = outcomes.hopelessness
        async with channel, self._fleet.lend_worker(Role.EXPLORE, self.work.environment) as explorer:
            while True:
                is_early = self._is_after_kin and not self._access.is_granted
                served = outcomes.opening.served
                order = self._prior.order(served, leading, slots=self._compiling.slots)
                request = self.work.explore_request(order.first, order.last, order.earlier, served=served)
                async with self._fleet.gate.hold_for_computing(COURTESY_S):
                    found = await opened(explorer, request, self.work.kernel, deadlines)
                await self.work.learn(found.observed)
                self._measuring.reference.propose(found.references)
                if not (is_early and found.learns):
                    break
                await self._await_lanes()
            outcomes.summary.open(found)
            self._learns = found.learns
            exploring = Explorer(explorer, found.strategy, deadlines)
            is_bounded = found.size is not None and not found.is_estimate
            self.progress.total = min(found.size or 0, plan.trials) if is_bounded else plan.trials
            asked = 0
            lead = len(leading)
            fruitful = monotonic()
            while asked < plan.trials:
                while len(outcomes.under_way) > self._most_ahead and not hopelessness.wants_probes:
                    await outcomes.next_change()
                most = min(self._ask_at_once, plan.trials - asked, lead or self._ask_at_once)
                is_probing = hopelessness.wants_probes
                answer = await self._ask_some(exploring, min(most, PROBES) if is_probing else most, anywhere=is_probing)
                outcomes.propose([proposal.config for proposal in answer.proposals], are_probes=is_probing)
                asked += len(answer.proposals)
                await self._admit(answer.proposals, channel)
                self._was_offered |= answer.finished or asked > len(order.first)
                if answer.finished:
                    break
                if lead:
                    lead = max(0, lead - len(answer.proposals))
                    if not lead and await self._is_over_with_lead():
                        break
                if plan.until == "converged" and answer.converged:
                    outcomes.summary.converged = True
                    break
                if answer.proposals or outcomes.under_way:
                    fruitful = monotonic()
                elif monotonic() - fruitful > deadlines["inspect"]:
                    raise WorkerError(
                        f"{self.work.kernel.file}:{self.work.kernel.line}: no config of kernel "
                        f"{self.work.kernel.kernel!r} was found in {deadlines['inspect']:.3g} s: `where` refuses all, "
                        f"or the strategy {found.strategy!r} proposes none",
                        hint="loosen `where`, give a space that yields the valid configs, or name another strategy",
                    )
                if not answer.proposals and outcomes.under_way:
                    await outcomes.changed()
            self.progress.total = asked
            # There are no more: these are all that can be known of the space.
            outcomes.propose((), are_probes=True)
        self._has_asked_all = True
        self._note_begun()
        if self.work.preset.straggler_times is not None:
            await self._end_stragglers(self.work.preset.straggler_times)

    async def _end_stragglers(self, times: float) -> None:
        """Where nothing but compiles is left, wait for none that takes many ``times`` as long as the others.

        One config of a tuner's 85 compiled for 18 s, the others for 2 to 9, and somebody waits for the winner. It is
        not lost: a job tries it again, and one with another preset has the patience for it.
        """
        while under_way := self._outcomes.under_way:
            if self.progress.has_measured and self._compiling.running == len(under_way):
                self._compiling.end_stragglers(times)
            await anyio.sleep(STRAGGLER_LOOK_S)

    def _note_begun(self) -> None:
        """Say so once no config waits to be compiled any more."""
        in_channel = self._channels["compile"].statistics().current_buffer_used
        if self._has_asked_all and not self._compiling.has_waiting(in_channel):
            self._stages.reach(JobStage.COMPILING)

    async def _is_over_with_lead(self) -> bool:
        """Wait for the outcomes of what was proposed; return whether they make a search needless."""
        while self._outcomes.under_way:
            await self._outcomes.next_change()
        return self._outcomes.lead.ends_job

    async def _ask_some(self, explorer: Explorer, n: int, *, anywhere: bool) -> replies.Proposals:
        tried = self._outcomes.take_tried()
        # A strategy computes, and so keeps off the cores of a timing that has them all.
        async with self._fleet.gate.hold_for_computing():
            answer = await explorer.ask(tried, n, anywhere=anywhere)
        await self.work.learn(answer.observed)
        return answer

    async def _admit(self, proposals: Sequence[replies.Proposal], channel: MemoryObjectSendStream[Attempt]) -> None:
        """Start the new configs; those that the store knows already need neither compiler nor lane."""
        self.work.admission.note_admitted(
            self.work.kernel, self.work.problem, [proposal.config for proposal in proposals]
        )
        fresh = []
        lacking: dict[str, Trial] = {}
        for proposal in proposals:
            known = self._store.known_trial(self.work.context, proposal.config)
            if known is not None and self._outcomes.stands(known):
                self._outcomes.note_known(known)
                continue
            fresh.append(proposal)
            if known is not None and self.work.lacks_figure(known) and not self.work.job.plan.again:
                lacking[canonical(known.config)] = known
        if not fresh:
            return
        if any(proposal.build is not None for proposal in fresh):
            self._has_fresh.set()
        # Compiled before the strategy knows what became of those that it proposed before.
        is_first = not self._outcomes.under_way
        self.progress.spend("speculative", sum(proposal.build is not None for proposal in fresh[is_first:]))
        configs = [proposal.config for proposal in fresh]
        # Shielded: a row that was entered has an attempt that gives it its outcome.
        with anyio.CancelScope(shield=True):
            ids = await self._store.begin_trials(self.work.context, self.work.specialized, self.work.job.id, configs)
        attempts = [
            self._attempt(trial, proposal, lacking.get(canonical(proposal.config)))
            for trial, proposal in zip(ids, fresh, strict=True)
        ]
        self._outcomes.under_way |= {attempt.trial: attempt for attempt in attempts}
        for attempt, proposal in zip(attempts, fresh, strict=True):
            if proposal.build is None:
                await self._outcomes.record(ends_among(self._machine.handle(NotBuilt(attempt, proposal))))
        for attempt in attempts:
            if attempt.trial in self._outcomes.under_way:
                await channel.send(attempt)

    def _attempt(self, trial: int, proposal: replies.Proposal, known: Trial | None) -> Attempt:
        unit = requests.UnitRef("", {}) if proposal.build is None else self.work.unit(proposal.build)
        return Attempt(
            trial,
            proposal.config,
            unit,
            cores=proposal.cores,
            declares_cores=proposal.cores is not None,
            known=known,
            expected_s=self._prior.expected_compile_s(proposal.config),
        )

    async def _compile(
        self, channel: MemoryObjectReceiveStream[Attempt], onward: MemoryObjectSendStream[Attempt]
    ) -> None:
        async with channel, onward:
            while (first := await self._compiling.next(channel)) is not None:
                await self._fleet.pace.wait_for_step()
                lanes_starve = not onward.statistics().current_buffer_used
                group = self._compiling.group(first, channel, lanes_starve=lanes_starve)
                await self._outcomes.record(await self._compiling.compile(group))
                for attempt in group:
                    if attempt.is_compiled:
                        await onward.send(attempt)

    async def _await_lanes(self) -> None:
        """Wait until the job may measure, and begin with what is served then: others have measured meanwhile."""
        await self._access.wait()
        async with self._looking:
            if not self._knows_served and not self.progress.has_measured:
                await self._outcomes.open_again()
            self._knows_served = True

    async def _open_compilers(self) -> None:
        """Have compile workers start while the strategy's worker imports the kernel file; not in other jobs' quiet."""
        async with self._fleet.gate.hold_for_compile():
            await self._compiling.open()

    async def _open_early(self, lane: Lane) -> None:
        """Open a lane, if it is free, while the first configs still compile: where nothing was measured lately, that
        takes seconds. Like a compile it keeps out of other jobs' quiet windows.
        """
        await self._has_fresh.wait()
        gate = lane.gate
        if self._access.is_granted:
            async with gate.hold_for_compile():
                lane.prepare_worker(self.work.environment_on(lane.device), self.work.kernel.backend)
        # Compiled while another job has the lanes.
        await self._measuring.reference.prepare()
        await self._await_lanes()
        async with gate.hold_for_compile():
            if lane.state == "ready":
                async with lane.hold(self.work.job.id):
                    began = monotonic()
                    try:
                        await self._measuring.open_early(lane)
                    except ReferenceUnusable as error:
                        # The next one is ready when there is something to measure.
                        self._measuring.reference.replace(error)
                    self.progress.spend("open_s", monotonic() - began)

    async def _bench(self, lane: Lane, channel: MemoryObjectReceiveStream[Attempt]) -> None:
        # A GPU's timings do not suffer from the daemon's own work, so its lane goes on while a result is recorded: at
        # most one waits for that. A CPU's would.
        is_free = anyio.Semaphore(1)
        async with channel, anyio.create_task_group() as recording:

            async def commit(ends: Sequence[End]) -> None:
                try:
                    await self._outcomes.record(ends)
                finally:
                    is_free.release()

            async def record(ends: Sequence[End]) -> None:
                for end in ends:
                    self._batch_size.took(1, end.result.lane_s)
                if lane.device.kind == "cpu":
                    await self._outcomes.record(ends)
                    return
                await is_free.acquire()
                recording.start_soon(commit, ends)

            async for first in channel:
                await self._await_lanes()
                if not self._is_ending:
                    batch = self._batch(lane, first, channel)
                    await self._measuring.measure(lane, batch, lambda: self.progress.best_us, record)

    def _batch(self, lane: Lane, first: Attempt, channel: MemoryObjectReceiveStream[Attempt]) -> list[Attempt]:
        """Return ``first`` and a lane's share of those that wait, as many as are measured in no time."""
        batch = [first]
        size = share(
            waiting=1 + channel.statistics().current_buffer_used,
            lanes=len(self._lanes),
            batch=self._batch_size.now,
        )
        for _ in range(size - 1):
            try:
                batch.append(channel.receive_nowait())
            except (anyio.WouldBlock, anyio.EndOfStream):
                break
        return batch
