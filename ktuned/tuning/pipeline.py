"""The way of a config: strategy → compile channel → compile workers → bench channel → lanes → store → strategy.

Both channels are bounded, so back-pressure reaches the strategy and memory does not grow with the space. The first
compiled config is measured while the rest still compile. A result is committed before it is published.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic, time

import anyio
import structlog
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ktuned.catalog import completed
from ktuned.fleet import COURTESY_S, Fleet, Lane
from ktuned.ipc import replies, requests
from ktuned.model import (
    LATENCY,
    RETRIED_BY_NEXT_JOB,
    Config,
    Event,
    JobState,
    Outcome,
    Role,
    StoreError,
    Trial,
    TrialResult,
    Winner,
    WorkerError,
    as_notice,
    canonical,
    stand_ins,
)
from ktuned.store import Artifacts, Store
from ktuned.tuning.attempt import Attempt, Compiled, Ended
from ktuned.tuning.batches import LANE_S, MAX_BATCH, OPENING_AHEAD, BatchSize, ahead, asked_at_once, may_reserve, share
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.dissent import Dissent
from ktuned.tuning.exploration import Explorer, SearchSummary, opened
from ktuned.tuning.final_round import FinalRound
from ktuned.tuning.findings import Findings
from ktuned.tuning.job_events import Publish, publish_trial, publish_winner
from ktuned.tuning.measure_stage import MeasureStage
from ktuned.tuning.opening import Opening, served_configs
from ktuned.tuning.prior_results import PriorResults, restore
from ktuned.tuning.progress import Progress
from ktuned.tuning.shared_lead import SharedLead
from ktuned.tuning.trial_detail import TrialDetail, completed_result, doubt
from ktuned.tuning.work import Work

_log = structlog.get_logger()

ASK_AT_ONCE = 4
"""Configs that a strategy that learns is asked for at once: few, so that it proposes with fresh knowledge."""

_STOP_S = 5.0


class Pipeline:
    """One job on its way; :meth:`run` returns when every config has its outcome and the winner is decided."""

    def __init__(
        self, work: Work, *, fleet: Fleet, lanes: Sequence[Lane], store: Store, artifacts: Artifacts, publish: Publish
    ) -> None:
        self.work = work
        work.traces.follow(work)
        self.progress = Progress(budget_s=work.job.plan.seconds, objective=work.objective)
        self.summary = SearchSummary(work.objective)
        self._findings = Findings()
        self._dissent = Dissent(work.kernel.default)
        self._fleet = fleet
        self._lanes = list(lanes)
        self._store = store
        self._publish = publish
        self._compiling = CompileStage(work, fleet, artifacts)
        self._measuring = MeasureStage(work, self._lanes, self._compiling, artifacts)
        self._begin_on: Callable[[Lane], None] | None = None
        self._prior = PriorResults(work, store)
        self._under_way: dict[int, Attempt] = {}
        self._batch_size = BatchSize(LANE_S)
        self._learns = True
        self._prior_fault = ""
        self._first_failure = ""
        self._first_unjudged = ""
        self._opening = Opening(())
        self._was_offered = False
        self._lead = SharedLead(objective=work.objective)
        self._has_winner = False
        self._tried: list[requests.Tried] = []
        self._has_fresh = anyio.Event()
        self._news = anyio.Event()
        self._channels: dict[str, MemoryObjectSendStream[Attempt] | MemoryObjectSendStream[Compiled]] = {}

    def statistics(self) -> dict[str, dict[str, int]]:
        """Return how full each channel is, and how many configs are ``ahead``: proposed, and without an outcome yet."""
        found = {"ahead": {"used": len(self._under_way), "size": self._most_ahead + self._ask_at_once}}
        for name, stream in self._channels.items():
            now = stream.statistics()
            found[name] = {"used": now.current_buffer_used, "size": int(now.max_buffer_size)}
        return found

    @property
    def verdict(self) -> tuple[JobState, str]:
        """The final state of a job that ran to its end, and its message."""
        if self.progress.best_cost is None:
            if self._first_unjudged:
                return JobState.FAILED, f"no config has a figure by {self.work.objective}; {self._first_unjudged}"
            lost = f"; {self.progress.lost}" if self.progress.lost else self._first_failure
            return JobState.FAILED, f"no config could be measured{lost}"
        if (unknown := self._opening.waits_for) is not None:
            words = ", ".join(f"{name}={value}" for name, value in unknown.items())
            return JobState.FAILED, f"lookups go on with {words}, which could not be measured here: tune again"
        words = (
            self._lead.words() if self._lead.ends_job else self.summary.words(self.progress.done, self.progress.best)
        )
        shared = "" if self._lead.ends_job else self._lead.words()
        lines = filter(None, (shared, self._prior_fault, self._dissent.line(), *self._findings.lines()))
        return JobState.DONE, "\n".join(filter(None, (words, *map(as_notice, lines))))

    def join(self, lanes: Sequence[Lane]) -> None:
        """Measure on these lanes, too, from now on: their node has come. Once all configs are measured, on none."""
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
                if not self._store.past(self.work.context, 1, 1):
                    # Nothing was ever measured, so that there will be something to compile.
                    self._has_fresh.set()
                    openings.start_soon(self._open_compilers)
                for lane in self._lanes:
                    openings.start_soon(self._open_early, lane)
                await self._restore()
                self._lead = await self._shared_lead()
                await self._try_all()
                await self._acquit()
                self._pass_over()
                if self._opening.is_over:
                    await final_round.run(is_judged=not self._dissent.is_default_doubtful)
                # A lane that is not open yet was not needed.
                openings.cancel_scope.cancel()
        finally:
            self.progress.spend("wall_s", monotonic() - began)
            await self._compiling.close()
            await self._abandon_rest()

    async def _try_all(self) -> None:
        slots = self._slots
        # How many are asked for is the bound that follows the pace; these are those of the fastest.
        to_compile, compile_from = anyio.create_memory_object_stream[Attempt](
            slots * max(self.work.group_size, MAX_BATCH)
        )
        # Besides what each lane takes next, a whole group: its worker goes on with another one meanwhile.
        to_bench, bench_from = anyio.create_memory_object_stream[Compiled](
            2 * len(self._lanes) * MAX_BATCH + self.work.group_size + OPENING_AHEAD
        )
        self._channels = {"compile": to_compile, "bench": to_bench}
        try:
            async with bench_from, anyio.create_task_group() as tasks:

                def begin_on(lane: Lane) -> None:
                    tasks.start_soon(self._bench, lane, bench_from.clone())

                self._begin_on = begin_on
                tasks.start_soon(self._ask, to_compile)
                for _ in range(slots):
                    tasks.start_soon(self._compile, compile_from.clone(), to_bench.clone())
                for lane in self._lanes:
                    begin_on(lane)
                for stream in (compile_from, to_bench):
                    stream.close()
        finally:
            self._begin_on = None

    @property
    def _slots(self) -> int:
        return sum(self._fleet.slots_of(one.environment.node).total_tokens for one in self.work.compilers)

    @property
    def _most_ahead(self) -> int:
        """The number of configs under way from which on no more are asked for."""
        return ahead(
            slots=self._slots,
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
        plan = self.work.job.plan
        deadlines = self.work.deadlines
        order = self._prior.order(self._opening.served, self._lead.configs)
        began = monotonic()
        async with channel, self._fleet.lend(Role.EXPLORE, self.work.environment) as explorer:
            request = self.work.explore_request(order.first, order.last, order.earlier, served=self._opening.served)
            async with self._fleet.gate.computing(COURTESY_S):
                found = await opened(explorer, request, self.work.kernel, deadlines)
            await self.work.learn(found.observed)
            self.summary.size, self.summary.strategy = found.size, found.strategy
            self.summary.notice, self.summary.size_is_estimate = found.notice, found.is_estimate
            self._learns, self._prior_fault = found.learns, found.prior_fault
            exploring = Explorer(explorer, found.strategy, deadlines)
            is_bounded = found.size is not None and not found.is_estimate
            self.progress.total = min(found.size or 0, plan.trials) if is_bounded else plan.trials
            asked = 0
            lead = len(self._lead.configs)
            fruitful = monotonic()
            while asked < plan.trials and (plan.seconds is None or monotonic() - began < plan.seconds):
                while len(self._under_way) > self._most_ahead:
                    self._news = anyio.Event()
                    await self._news.wait()
                most = min(self._ask_at_once, plan.trials - asked, lead or self._ask_at_once)
                answer = await self._ask_some(exploring, most)
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
                    self.summary.converged = True
                    break
                if answer.proposals or self._under_way:
                    fruitful = monotonic()
                elif monotonic() - fruitful > deadlines["inspect"]:
                    raise WorkerError(
                        f"{self.work.kernel.file}:{self.work.kernel.line}: no config of kernel "
                        f"{self.work.kernel.kernel!r} was found in {deadlines['inspect']:.3g} s: `where` refuses all, "
                        f"or the strategy {found.strategy!r} proposes none",
                        hint="loosen `where`, give a space that yields the valid configs, or name another strategy",
                    )
                if not answer.proposals and self._under_way:
                    await self._news.wait()
            self.progress.total = asked

    async def _shared_lead(self) -> SharedLead:
        """Return what the job begins with if others share a winner of its context."""
        work, plan = self.work, self.work.job.plan
        if work.team is None or plan.no_team or plan.configs or plan.again:
            return SharedLead(objective=work.objective)
        candidate = await work.team.best(work.kernel, work.context, work.objective)
        served = [*self._opening.served, *([] if work.kernel.default is None else [work.kernel.default])]
        # A job for a context that has a winner is to find a better one.
        return SharedLead(candidate, served, objective=work.objective, is_decisive=not self._has_winner)

    async def _is_over_with_lead(self) -> bool:
        """Wait for the outcomes of what was proposed; return whether they make a search needless."""
        while self._under_way:
            self._news = anyio.Event()
            await self._news.wait()
        return self._lead.ends_job

    async def _restore(self) -> None:
        """Make the best known config the winner where that is certain to be no worse than what is served now."""
        self._opening = await self._opened()
        await self._elect(decided_only=not self._opening.is_over)

    async def _opened(self) -> Opening:
        """Return the configs that lookups are answered with now, unless a winner of this context is."""
        work = self.work
        kernel, winners = work.kernel, work.served()
        # It may be that of another checkout: a job here is to have a winner of its own that is no worse.
        incumbent = next((winner for winner in winners if winner.key == work.key), None)
        own = self._store.winner(work.key)
        near = [completed(kernel, winner.config) for winner in stand_ins(work.key, work.specialized, winners)]
        before = None if incumbent is None else completed(kernel, incumbent.config)
        asked = [config for config in (before, *near, kernel.default) if config is not None]
        verdicts = dict(zip(map(canonical, asked), await work.admitted(asked), strict=True))
        if own is not None and own.context == work.context and await work.admitted([own.config]) == [True]:
            self._has_winner = True
            return Opening(())
        served = served_configs(before, near, kernel.default, lambda config: verdicts[canonical(config)])
        return Opening(served, self._known_outcome)

    def _pass_over(self) -> None:
        """Wait no more for served configs that should have come first and did not: the walked space lacks them."""
        while self._was_offered and (config := self._opening.waits_for) is not None:
            if self._store.known_trial(self.work.context, config) is not None:
                return
            self._opening.end(config, Outcome.UNSUPPORTED)

    def _known_outcome(self, config: Config) -> Outcome | None:
        known = self._store.known_trial(self.work.context, config)
        return None if known is None or self._is_tried_again(known) else known.outcome

    async def _elect(self, *, decided_only: bool = False) -> None:
        """Make the best known config of this context the winner, unless an admitted one is."""
        work = self.work
        winner = await restore(
            self._store,
            work.admission,
            work.kernel,
            work.problem,
            work.context,
            work.objective,
            work.preset.finalists,
            decided_only=decided_only,
        )
        if winner is not None:
            await self._announce(winner)

    async def _announce(self, winner: Winner) -> None:
        """Keep a new winner's config as admitted, and publish it."""
        self._has_winner = True
        await self.work.admission.keep(self.work.kernel, self.work.problem, winner.config)
        publish_winner(self._publish, self.work.kernel, winner, self.work.job.id)

    async def _ask_some(self, explorer: Explorer, n: int) -> replies.Proposals:
        tried, self._tried = self._tried, []
        self._news = anyio.Event()
        # A strategy computes, and so keeps off the cores of a timing that has them all.
        async with self._fleet.gate.computing():
            answer = await explorer.ask(tried, n)
        await self.work.learn(answer.observed)
        return answer

    async def _admit(self, proposals: Sequence[replies.Proposal], channel: MemoryObjectSendStream[Attempt]) -> None:
        """Start the new configs; those that the store knows already need neither compiler nor lane."""
        self.work.admission.note(self.work.kernel, self.work.problem, [proposal.config for proposal in proposals])
        fresh = []
        lacking: dict[str, Trial] = {}
        for proposal in proposals:
            known = self._store.known_trial(self.work.context, proposal.config)
            if known is None or known.outcome is None or self._is_tried_again(known):
                fresh.append(proposal)
                if known is not None and self.work.lacks_figure(known) and not self.work.job.plan.again:
                    lacking[canonical(known.config)] = known
            else:
                self.progress.reused += 1
                self._findings.note(known.config, known.detail)
                self._note_outcome(known)
        if not fresh:
            return
        if any(proposal.build is not None for proposal in fresh):
            self._has_fresh.set()
        # Compiled before the strategy knows what became of those that it proposed before.
        is_first = not self._under_way
        self.progress.spend("speculative", sum(proposal.build is not None for proposal in fresh[is_first:]))
        configs = [proposal.config for proposal in fresh]
        # Shielded: a row that was entered has an attempt that gives it its outcome.
        with anyio.CancelScope(shield=True):
            ids = await self._store.begin_trials(self.work.context, self.work.specialized, self.work.job.id, configs)
        attempts = [
            self._attempt(trial, proposal, lacking.get(canonical(proposal.config)))
            for trial, proposal in zip(ids, fresh, strict=True)
        ]
        self._under_way |= {attempt.trial: attempt for attempt in attempts}
        for attempt, proposal in zip(attempts, fresh, strict=True):
            if proposal.build is None:
                await self._record([(attempt, attempt.unbuilt(proposal))])
        for attempt in attempts:
            if attempt.trial in self._under_way:
                await channel.send(attempt)

    def _is_tried_again(self, known: Trial) -> bool:
        """Return whether an old outcome says too little about the config, or is to be found out again."""
        if self.work.job.plan.again or self.work.lacks_figure(known):
            return True
        if known.outcome is Outcome.COMPILE_TIMEOUT:
            after_s = TrialDetail.from_json(known.detail).after_s
            return self.work.deadlines["compile"] > (after_s or 0.0)
        return known.outcome in RETRIED_BY_NEXT_JOB

    def _attempt(self, trial: int, proposal: replies.Proposal, known: Trial | None) -> Attempt:
        unit = requests.UnitRef("", {}) if proposal.build is None else self.work.unit(proposal.build)
        return Attempt(
            trial,
            proposal.config,
            unit,
            cores=proposal.cores,
            declares_cores=proposal.cores is not None,
            known=known,
        )

    async def _compile(
        self, channel: MemoryObjectReceiveStream[Attempt], onward: MemoryObjectSendStream[Compiled]
    ) -> None:
        async with channel, onward:
            async for first in channel:
                await self._fleet.pace.step()
                lanes_starve = not onward.statistics().current_buffer_used
                group = self._compiling.group(first, channel, lanes_starve=lanes_starve)
                for done in await self._compiling.compile(group):
                    if isinstance(done, Ended):
                        await self._record([(done.attempt, done.result)])
                    elif (result := None if self.work.job.plan.again else self._prior.carried(done)) is not None:
                        await self._record([(done.attempt, result)])
                    else:
                        await onward.send(done)

    async def _open_compilers(self) -> None:
        """Have compile workers start while the strategy's worker imports the kernel file; not in other jobs' quiet."""
        async with self._fleet.gate.compiling():
            await self._compiling.open()

    async def _open_early(self, lane: Lane) -> None:
        """Open a lane, if it is free, while the first configs still compile: where nothing was measured lately, that
        takes seconds. Like a compile it keeps out of other jobs' quiet windows.
        """
        await self._has_fresh.wait()
        async with self._fleet.gate_of(lane.device.node).compiling():
            cores = len(os.sched_getaffinity(0)) // len(self._lanes)
            lane.prepare(self.work.environment_on(lane.device), self.work.kernel.backend, cores)
            if lane.state == "ready":
                async with lane.hold(self.work.job.id):
                    began = monotonic()
                    await self._measuring.open_early(lane)
                    self.progress.spend("open_s", monotonic() - began)

    async def _bench(self, lane: Lane, channel: MemoryObjectReceiveStream[Compiled]) -> None:
        # A GPU's timings do not suffer from the daemon's own work, so its lane goes on while a result is recorded: at
        # most one waits for that. A CPU's would.
        recorded = anyio.Event()
        recorded.set()
        async with channel, anyio.create_task_group() as recording:

            async def done(results: Sequence[tuple[Attempt, TrialResult]]) -> None:
                nonlocal recorded
                for _, result in results:
                    self._batch_size.took(1, result.lane_s)
                if lane.device.kind == "cpu":
                    await self._record(results)
                    return
                await recorded.wait()
                recorded = anyio.Event()
                recording.start_soon(self._record_measured, results, recorded)

            async for first in channel:
                batch = self._batch(lane, first, channel)
                while batch:
                    coming = self._coming(lane, channel)
                    if coming:
                        recording.start_soon(self._measuring.expect, lane, coming, self.progress.best_us)
                    await self._measuring.measure(lane, batch, lambda: self.progress.best_us, done)
                    batch = coming

    def _batch(self, lane: Lane, first: Compiled, channel: MemoryObjectReceiveStream[Compiled]) -> list[Compiled]:
        """Return ``first`` and a lane's share of those that wait, as many as are measured in no time."""
        batch = [first]
        size = share(
            waiting=1 + channel.statistics().current_buffer_used,
            lanes=len(self._lanes),
            batch=self._batch_size.now,
            takes_ahead=_takes_ahead(lane),
        )
        for _ in range(size - 1):
            try:
                batch.append(channel.receive_nowait())
            except (anyio.WouldBlock, anyio.EndOfStream):
                break
        return batch

    def _coming(self, lane: Lane, channel: MemoryObjectReceiveStream[Compiled]) -> list[Compiled]:
        """Return what a lane on a node measures next, which travels while it measures, as long as the other lanes have
        enough.
        """
        waiting = channel.statistics().current_buffer_used
        if not _takes_ahead(lane) or not may_reserve(waiting=waiting, lanes=len(self._lanes)):
            return []
        return self._batch(lane, channel.receive_nowait(), channel)

    async def _record_measured(self, results: Sequence[tuple[Attempt, TrialResult]], recorded: anyio.Event) -> None:
        await self._record(results)
        recorded.set()

    async def _record(self, results: Sequence[tuple[Attempt, TrialResult]]) -> None:
        """Commit outcomes together, then publish them; one by one as long as each may end the opening."""
        while results and not self._opening.is_over:
            await self._record_together(results[:1])
            results = results[1:]
        if results:
            await self._record_together(results)

    async def _record_together(self, results: Sequence[tuple[Attempt, TrialResult]]) -> None:
        is_opening = not self._opening.is_over
        kept = [
            (attempt, result if attempt.known is None else completed_result(attempt.known, result))
            for attempt, result in results
        ]
        with anyio.CancelScope(shield=True):
            winner = await self._store.finish_trials(
                [(attempt.trial, result) for attempt, result in kept],
                objective=self.work.objective,
                is_opening=is_opening,
            )
        # Many wait for one commit, and all go on when it is over.
        await self._fleet.pace.step()
        is_over_now = False
        for attempt, result in results:
            del self._under_way[attempt.trial]
            self.progress.spend("compile_s", result.compile_s)
            self.progress.spend("open_s", attempt.open_s)
            self.progress.spend("lane_s", result.lane_s)
            if result.outcome in (Outcome.HUNG, Outcome.CRASHED):
                _log.warning(f"trial_{result.outcome}", trial=attempt.trial, config=dict(attempt.config))
            is_over_now |= self._opening.end(attempt.config, result.outcome)
        has_measured = any(result.outcome is Outcome.MEASURED for _, result in kept)
        if winner is not None:
            await self._announce(winner)
        elif is_over_now or (not is_opening and not self._has_winner and has_measured):
            await self._elect()
        for attempt, result in kept:
            self._findings.note(attempt.config, result.detail)
            self._note_outcome(self._trial(attempt, result))

    async def _acquit(self) -> None:
        """Take mismatches back where the default's outputs prove nothing, and let the fastest config win."""
        acquitted = self._dissent.acquitted()
        for trial, result in acquitted:
            await self._store.finish_trial(trial.id, result, objective=self.work.objective)
            self.progress.acquit(result)
            published = replace(trial, outcome=result.outcome, detail=result.detail)
            publish_trial(self._publish, self.work, self.progress, published)
        if acquitted and self._opening.is_over:
            await self._elect()

    def _trial(self, attempt: Attempt, result: TrialResult) -> Trial:
        """Return a trial as it was just recorded."""
        work = self.work
        return Trial(
            id=attempt.trial,
            job=work.job.id,
            kernel=work.job.kernel,
            problem=work.specialized,
            device=work.context.device,
            config=attempt.config,
            outcome=result.outcome,
            latency_us=result.latency_us,
            spread_us=result.spread_us,
            compile_s=result.compile_s,
            lane_s=result.lane_s,
            message=result.message,
            artifact=result.artifact,
            digest=work.context.digest,
            updated=time(),
            detail=result.detail,
        )

    def _note_outcome(self, trial: Trial) -> None:
        """Count a trial that has ended, keep it for the strategy, and publish it."""
        assert trial.outcome is not None
        config, outcome = trial.config, trial.outcome
        if outcome is not Outcome.MEASURED and trial.message and not self._first_failure:
            self._first_failure = f"; {outcome}: {trial.message.splitlines()[0]}"
        if outcome is Outcome.MEASURED and self.work.cost(trial) is None and not self._first_unjudged:
            figure = trial.figure(self.work.objective)
            why = f"its figure is {figure:.4g}" if figure is not None else "its figure is not finite"
            self._first_unjudged = trial.message.partition("\n")[0] or f"{why}, and must be finite and above 0"
        is_default = config == self.work.kernel.default
        self.progress.count(trial, is_default=is_default)
        self._dissent.note(trial)
        self._lead.note(trial)
        self.summary.note(self.progress.done, self.progress.best)
        known = doubt(trial.detail, trial.latency_us, by_energy=self.work.needs_energy)
        # One that was given up has a latency, and no figure by another objective.
        cost = trial.latency_us if self.work.objective == LATENCY else self.work.cost(trial)
        self._tried.append(requests.Tried(config, outcome, cost, known))
        self._news.set()
        publish_trial(self._publish, self.work, self.progress, trial)

    async def _abandon_rest(self) -> None:
        """Record the trials under way as stopped, which says nothing about their configs."""
        if not self._under_way:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(_STOP_S):
            # One that has its outcome could not be recorded with it: the next job tries it again.
            stopped = [attempt for attempt in self._under_way.values() if attempt.life.outcome is None]
            self._under_way.clear()
            try:
                for attempt in stopped:
                    result = attempt.result(Event.CANCELLED, "stopped before it had an outcome")
                    if attempt.known is None:
                        await self._store.finish_trial(attempt.trial, result)
            except StoreError as error:
                _log.warning("trials_not_recorded", job=self.work.job.id, reason=error.message)


def _takes_ahead(lane: Lane) -> bool:
    """Return whether a lane has its next batch while it measures one: its way takes time, and disturbs no timing."""
    return bool(lane.device.node) and lane.device.kind != "cpu"
