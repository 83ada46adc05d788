"""Outcomes of a job's configs: committed, counted and published; and the winner that follows from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import time

import anyio
import structlog

from ktuned.catalog import complete_config
from ktuned.fleet import Pace
from ktuned.ipc import requests
from ktuned.model import (
    LATENCY,
    BitClasses,
    Bits,
    Config,
    JobState,
    Outcome,
    StoreError,
    Trial,
    TrialResult,
    Winner,
    canonical,
    find_stand_ins,
    format_notice,
    is_exact,
    strip_numerics,
)
from ktuned.store import Store
from ktuned.tuning.exploration import SearchSummary
from ktuned.tuning.findings import Dissent, Findings
from ktuned.tuning.hopeless import Hopelessness
from ktuned.tuning.opening import Opening, served_configs
from ktuned.tuning.prior_results import restore
from ktuned.tuning.progress import Progress, Publish, publish_trial, publish_winner
from ktuned.tuning.shared_lead import SharedLead
from ktuned.tuning.trial_detail import completed_result, doubt
from ktuned.tuning.trial_lifecycle import Attempt
from ktuned.tuning.trial_machine import End, Stopped, ends_among, is_settled
from ktuned.tuning.work import Work

_log = structlog.get_logger()

_STOP_S = 5.0

MOST_COMPARED = 2_000
"""Configs whose bits are compared for a job's message: to read them takes a tenth of a second."""


class Outcomes:
    """The outcomes of one job's configs so far.

    ``under_way`` are its attempts without an outcome, by trial; ``opening`` and ``lead`` what it begins with;
    ``hopelessness`` says whether to go on, and ``given_up`` is set once it says no. ``final_fault`` is why the final
    round decided nothing.
    """

    def __init__(self, work: Work, *, store: Store, publish: Publish, pace: Pace) -> None:
        self.progress = Progress(budget_s=work.job.plan.seconds, objective=work.objective)
        self.summary = SearchSummary(work.objective)
        self.under_way: dict[int, Attempt] = {}
        self.opening = Opening(())
        self.lead = SharedLead(objective=work.objective)
        self._work = work
        self._store = store
        self._publish = publish
        self._pace = pace
        self.given_up = anyio.Event()
        self.hopelessness = Hopelessness(keeps_going=work.job.plan.keep_going)
        self._findings = Findings()
        self._dissent = Dissent(work.kernel.default)
        self.final_fault = ""
        self._first_failure = ""
        self._first_unjudged = ""
        self._has_winner = False
        self._compared_with: Bits = ()
        self._tried: list[requests.TriedConfig] = []
        self._changed = anyio.Event()

    @property
    def verdict(self) -> tuple[JobState, str]:
        """The final state of a job that ran to its end, and its message."""
        if self.progress.best_cost is None:
            if self.hopelessness.reason:
                return JobState.FAILED, self.hopelessness.reason
            if self._first_unjudged:
                return JobState.FAILED, f"no config has a figure by {self._work.objective}; {self._first_unjudged}"
            if self._work.job.plan.seconds is not None and self.progress.is_out_of_time and not self._first_failure:
                return JobState.FAILED, f"no config was measured within {self._work.job.plan.seconds:g} s"
            lost = f"; {self.progress.lost}" if self.progress.lost else self._first_failure
            return JobState.FAILED, f"no config could be measured{lost}"
        if (unknown := self.opening.waits_for) is not None:
            words = ", ".join(f"{name}={value}" for name, value in unknown.items())
            return JobState.FAILED, f"lookups go on with {words}, which could not be measured here: tune again"
        words = self.lead.words() if self.lead.ends_job else self.summary.words(self.progress.done, self.progress.best)
        shared = "" if self.lead.ends_job else self.lead.words()
        lines = filter(
            None,
            (
                *(shared, self.summary.prior_fault, self._dissent.line(), *self._findings.lines(), self.final_fault),
                *self._find_classes().describe_classes(),
            ),
        )
        return JobState.DONE, "\n".join(filter(None, (words, *map(format_notice, lines))))

    def _find_classes(self) -> BitClasses:
        """Return the classes of equal bits that are known, where numerics are exact."""
        if self._work.wanted_bits is None:
            return BitClasses()
        by = strip_numerics(self._work.objective)
        return BitClasses.from_trials(self._store.best_trials(self._work.context, MOST_COMPARED, objective=by))

    @property
    def is_default_doubtful(self) -> bool:
        """True where the outputs of the default prove nothing."""
        return self._dissent.is_default_doubtful

    async def begin(self) -> None:
        """Make the best known config the winner where that is certain to be no worse than what is served now."""
        await self._find_anchor()
        await self.open_again()
        self.lead = await self._shared_lead()

    async def _find_anchor(self) -> None:
        """Take the anchor's bits from an earlier job's trial, if there is one, and compare what is known with them."""
        anchor = self._work.anchor
        if anchor is None:
            return
        known = self._store.known_trial(self._work.context, anchor.config)
        # With fewer bits than are wanted they are the anchor's still, until there are more.
        if known is not None and (known.detail.get("bits") or self.stands(known)):
            anchor.note_end(known)
        if anchor.bits or anchor.fault:
            await self._compare_with_anchor()

    async def _compare_with_anchor(self) -> None:
        """Note on all trials so far whether they have the anchor's bits.

        The choice of an anchor holds from here on. A job whose anchor can be none is given up, and all stays as it was,
        an earlier choice too.
        """
        anchor, chosen = self._work.anchor, self._work.job.plan.anchor
        assert anchor is not None
        if anchor.fault:
            self.hopelessness.give_up(anchor.fault)
            self._give_up_if_hopeless()
            return
        self._compared_with = anchor.bits
        if chosen is not None:
            is_declared = canonical(chosen) == canonical(self._work.declared_default or {})
            await self._store.anchors.choose_anchor(self._work.key, None if is_declared else chosen)
        await self._store.mark_same_bits(self._work.context, anchor.bits)

    async def open_again(self) -> None:
        """Look again at what is served, before anything is measured: another job may have changed it meanwhile."""
        opening = await self._opened()
        if opening.served != self.opening.served:
            self.opening = opening
        await self._elect(decided_only=not self.opening.is_over)

    def stands(self, known: Trial) -> bool:
        """Return whether a known outcome says enough about its config, and is not to be found out again."""
        if self._work.job.plan.again or self._work.lacks_figure(known):
            return False
        return is_settled(known, self._work.deadlines["compile"])

    def note_known(self, known: Trial) -> None:
        """Count a config whose outcome stands, and needs neither compiler nor lane."""
        self.progress.reused += 1
        self.progress.spend("reused", 1)
        self._findings.note(known.config, known.detail)
        self._note_outcome(known)

    def propose(self, configs: Iterable[Config], *, are_probes: bool) -> None:
        """Take note of configs that are about to be tried; those drawn from anywhere in the space are probes."""
        self.hopelessness.propose(configs, are_probes=are_probes)
        self._give_up_if_hopeless()

    def _give_up_if_hopeless(self) -> None:
        if self.hopelessness.reason:
            self.given_up.set()

    def take_tried(self) -> list[requests.TriedConfig]:
        """Return what was tried since this was asked last."""
        tried, self._tried = self._tried, []
        self._changed = anyio.Event()
        return tried

    async def changed(self) -> None:
        """Wait until something was tried since :meth:`take_tried`."""
        await self._changed.wait()

    async def next_change(self) -> None:
        """Wait until something more is tried."""
        self._changed = anyio.Event()
        await self._changed.wait()

    async def record(self, ends: Sequence[End]) -> None:
        """Commit outcomes together, then publish them; one by one as long as each may end the opening."""
        while ends and not self.opening.is_over:
            await self._record_together(ends[:1])
            ends = ends[1:]
        if ends:
            await self._record_together(ends)

    async def _record_together(self, ends: Sequence[End]) -> None:
        is_opening = not self.opening.is_over
        kept = [
            (end.attempt, end.result if end.attempt.known is None else completed_result(end.attempt.known, end.result))
            for end in ends
        ]
        with anyio.CancelScope(shield=True):
            winner = await self._store.finish_trials(
                [(attempt.trial, result) for attempt, result in kept],
                objective=self._work.objective,
                is_opening=is_opening,
            )
        anchor = self._work.anchor
        if anchor is not None:
            for attempt, result in kept:
                anchor.note_end(self._trial(attempt, result))
            if anchor.fault or anchor.bits != self._compared_with:
                await self._compare_with_anchor()
        # Many wait for one commit, and all go on when it is over.
        await self._pace.step()
        is_over_now = False
        for attempt, result in [(end.attempt, end.result) for end in ends]:
            del self.under_way[attempt.trial]
            self.progress.spend("compile_s", result.compile_s)
            self.progress.spend("open_s", attempt.open_s)
            self.progress.spend("lane_s", result.lane_s)
            if "carried_from" in result.detail:
                self.progress.spend("reused", 1)
            if result.outcome in (Outcome.HUNG, Outcome.CRASHED):
                _log.warning(f"trial_{result.outcome}", trial=attempt.trial, config=dict(attempt.config))
            is_over_now |= self.opening.end(attempt.config, result.outcome)
        has_measured = any(result.outcome is Outcome.MEASURED for _, result in kept)
        if winner is not None:
            await self._announce(winner)
        elif is_over_now or (not is_opening and not self._has_winner and has_measured):
            await self._elect()
        for attempt, result in kept:
            self._findings.note(attempt.config, result.detail)
            self._note_outcome(self._trial(attempt, result))

    async def acquit(self) -> None:
        """Take mismatches back where the default's outputs prove nothing, and let the fastest config win."""
        acquitted = self._dissent.acquitted()
        for trial, result in acquitted:
            await self._store.finish_trial(trial.id, result, objective=self._work.objective)
            self.progress.acquit(result)
            published = replace(trial, outcome=result.outcome, detail=result.detail)
            publish_trial(self._publish, self._work, self.progress, published)
        if acquitted and self.opening.is_over:
            await self._elect()

    def _trial(self, attempt: Attempt, result: TrialResult) -> Trial:
        """Return a trial as it was just recorded."""
        work = self._work
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
        if outcome is Outcome.MEASURED and self._work.cost(trial) is None and not self._first_unjudged:
            figure = trial.figure(self._work.objective)
            why = f"its figure is {figure:.4g}" if figure is not None else "its figure is not finite"
            self._first_unjudged = trial.message.partition("\n")[0] or f"{why}, and must be finite and above 0"
        is_default = config == self._work.kernel.default
        self.progress.count(trial, is_default=is_default)
        self._dissent.note(trial)
        # One that only differs from the default's outputs may be acquitted in the end.
        is_disputed = trial.detail.get("undisputed") is not None
        self.hopelessness.note(
            config, Outcome.MEASURED if is_disputed else outcome, trial.message, trial.detail.get("phase")
        )
        self._give_up_if_hopeless()
        self.lead.note(trial)
        self.summary.note(self.progress.done, self.progress.best)
        known = doubt(trial.detail, trial.latency_us, by_energy=self._work.needs_energy)
        # One that was given up has a latency, and no figure by another objective.
        cost = trial.latency_us if self._work.objective == LATENCY else self._work.expected_cost(trial)
        self._tried.append(requests.TriedConfig(config, outcome, cost, known))
        self._changed.set()
        publish_trial(self._publish, self._work, self.progress, trial)

    def pass_over(self) -> None:
        """Wait no more for served configs that should have come first and did not: the walked space lacks them."""
        while (config := self.opening.waits_for) is not None:
            if self._store.known_trial(self._work.context, config) is not None:
                return
            self.opening.end(config, Outcome.UNSUPPORTED)

    async def abandon_rest(self) -> None:
        """Record the trials under way as stopped, which says nothing about their configs."""
        if not self.under_way:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(_STOP_S):
            # One that has its outcome could not be recorded with it: the next job tries it again.
            stopped = [attempt for attempt in self.under_way.values() if attempt.outcome is None]
            self.under_way.clear()
            machine = self._work.trial_machine()
            try:
                for end in [end for attempt in stopped for end in ends_among(machine.handle(Stopped(attempt)))]:
                    if end.attempt.known is None:
                        await self._store.finish_trial(end.attempt.trial, end.result)
            except StoreError as error:
                _log.warning("trials_not_recorded", job=self._work.job.id, reason=error.message)

    async def _opened(self) -> Opening:
        """Return the configs that lookups are answered with now, unless a winner of this context is."""
        work = self._work
        kernel, winners = work.kernel, work.served()
        # It may be that of another checkout: a job here is to have a winner of its own that is no worse.
        incumbent = next((winner for winner in winners if winner.key == work.key), None)
        own = self._store.get_winner(work.key)
        if is_exact(work.objective):
            # Nothing but the anchor, until its bits and those of others are known.
            winners, incumbent = [], None
        # As the ladder of answers does: a portfolio takes the place of near problems.
        leaves = () if is_exact(work.objective) else work.portfolio()
        near = [complete_config(kernel, config) for config in leaves] or [
            complete_config(kernel, winner.config) for winner in find_stand_ins(work.key, work.specialized, winners)
        ]
        before = None if incumbent is None else complete_config(kernel, incumbent.config)
        asked = [config for config in (before, *near, kernel.default) if config is not None]
        verdicts = dict(zip(map(canonical, asked), await work.admitted(asked), strict=True))
        if own is not None and own.context == work.context and await work.admitted([own.config]) == [True]:
            self._has_winner = True
            return Opening(())
        served = served_configs(before, near, kernel.default, lambda config: verdicts[canonical(config)])
        return Opening(served, self._known_outcome)

    async def _shared_lead(self) -> SharedLead:
        """Return what the job begins with if others share a winner of its context."""
        work, plan = self._work, self._work.job.plan
        if work.shared is None or work.kernel.batch_invariant or plan.no_share or plan.configs or plan.again:
            return SharedLead(objective=work.objective)
        candidate = await work.shared.best(work.kernel, work.context, work.objective)
        served = [*self.opening.served, *([] if work.kernel.default is None else [work.kernel.default])]
        # A job for a context that has a winner is to find a better one.
        return SharedLead(candidate, served, objective=work.objective, is_decisive=not self._has_winner)

    def _known_outcome(self, config: Config) -> Outcome | None:
        known = self._store.known_trial(self._work.context, config)
        return known.outcome if known is not None and self.stands(known) else None

    async def _elect(self, *, decided_only: bool = False) -> None:
        """Make the best known config of this context the winner, unless an admitted one is."""
        work = self._work
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
        await self._work.admission.store_verdict(self._work.kernel, self._work.problem, winner.config)
        publish_winner(self._publish, self._work.kernel, winner, self._work.job.id)
