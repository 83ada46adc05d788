"""Outcomes of a job's configs: committed, counted and published; and the winner that follows from them.

*A trial's end* is committed to the store first, together with others that came at the same time. If it makes a new
winner, that is announced next. Then the end is counted, which may show that the job is hopeless; it is kept for the
strategy's next question; and it is published.

*When a winner may change.* Nothing becomes the winner before the config that lookups get now has an outcome, because it
might be worse. Until then ends are committed one by one. From then on a config that beats the winner replaces it at
once. The final round has the last word.

*Three judgements need the results of several configs* (:mod:`~ktuned.tuning.judgements`). Exact numerics compare bits
with the anchor's, so a new anchor re-marks all trials so far. Where the default's own outputs prove nothing, mismatches
are taken back. And if all configs fail alike, the job is given up.

*When the job is stopped*, trials without an outcome are recorded as stopped. That is shielded from cancellation, and
bounded in time, because a broken store may be the reason for the stop.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import anyio
import structlog
from msgspec.structs import replace

from ktuned.catalog import complete_config
from ktuned.fleet import Pace
from ktuned.ipc import requests
from ktuned.model import (
    Bits,
    Config,
    Outcome,
    StoreError,
    TrialResult,
    canonical,
    is_exact,
    needs_metric,
    spell_values,
    strip_numerics,
)
from ktuned.protocol import AnswersChanged, JobState, PublishEvent, Trial, format_notice
from ktuned.store import IMPORTED, BitClasses, Store, Winner, describe_quarantine, find_stand_ins
from ktuned.tuning.evidence import is_outcome_final
from ktuned.tuning.exploration import SearchSummary
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.judgements import (
    DisputedOutputs,
    Findings,
    Hopelessness,
    ServedConfigs,
    choose_served_configs,
    surely_beats,
)
from ktuned.tuning.prior_results import complete_result, load_admitted_trials, restore_winner
from ktuned.tuning.progress import Progress, make_trial, publish_trial, publish_winner
from ktuned.tuning.trial_machine import Attempt, End, Stopped, select_ends

_log = structlog.get_logger()

_STOP_S = 5.0
"""Time to record the trials of a job that is stopped."""

MOST_COMPARED = 2_000
"""Most configs whose bits are compared for a job's message: reading them takes a tenth of a second."""


async def record_stopped_trials(brief: JobBrief, store: Store, under_way: dict[int, Attempt]) -> None:
    """Record the trials under way as stopped, which says nothing about their configs. Bounded, raises nothing."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(_STOP_S):
        # An attempt here that has an outcome could not be recorded; the next job tries its config again.
        stopped = [attempt for attempt in under_way.values() if attempt.outcome is None]
        under_way.clear()
        machine = brief.make_trial_machine()
        try:
            for end in [end for attempt in stopped for end in select_ends(machine.handle(Stopped(attempt)))]:
                if end.attempt.known is None:
                    await store.finish_trial(end.attempt.trial, end.result)
        except StoreError as error:
            _log.warning("record_trials_failed", job=brief.job.id, reason=error.message)


class Outcomes:
    """The outcomes of one job's configs so far.

    Attributes:
        store: The store to which outcomes are committed.
        publish: Publishes an event.
        progress: The job's figures so far.
        summary: The search in one line, for the job's message.
        under_way: The attempts without an outcome, by trial.
        served_configs: The configs that lookups get now, which are tried first.
        hopelessness: Decides whether the job is given up.
        final_fault: Why the final round decided nothing, or empty.
    """

    def __init__(self, brief: JobBrief, *, store: Store, publish: PublishEvent, pace: Pace) -> None:
        self.progress = Progress(time_limit_s=brief.job.plan.time_limit_s, objective=brief.objective)
        self.summary = SearchSummary(brief.search_objective)
        self.under_way: dict[int, Attempt] = {}
        self.served_configs = ServedConfigs()
        self._brief = brief
        self.store = store
        self.publish = publish
        self._pace = pace
        self.hopelessness = Hopelessness()
        self._findings = Findings()
        self._disputed_outputs = DisputedOutputs(brief.kernel.default)
        self.final_fault = ""
        self._shared = ""
        self._first_failure = ""
        self._first_unjudged = ""
        self._has_winner = False
        self._provisional = ""
        self._compared_with: Bits = ()
        self._contended: list[Trial] = []
        self._tried: list[requests.TriedConfig] = []
        self._changed = anyio.Event()

    def conclude_job(self) -> tuple[JobState, str]:
        """Return the final state of a job that ran to its end, and its message."""
        failure = self._describe_failure()
        return (JobState.FAILED, failure) if failure else (JobState.DONE, self._describe_success())

    def _describe_failure(self) -> str:
        """Return why the job has no winner; empty if it has one."""
        awaited, seconds = self.served_configs.awaited_config, self._brief.job.plan.time_limit_s
        if self.progress.best_cost is not None:
            if awaited is None or self._provisional:
                return ""
            words = spell_values(awaited)
            return (
                f"the machine was too busy to measure {words} reliably: lookups keep it for now; "
                "run `ktuned tune` again when it is quieter"
            )
        if self.hopelessness.reason:
            return self.hopelessness.reason
        if self.final_fault:
            return f"no config has a figure by {self._brief.objective}; {self.final_fault}"
        if self._first_unjudged:
            return f"no config has a figure by {self._brief.objective}; {self._first_unjudged}"
        if seconds is not None and self.progress.is_out_of_time and not self._first_failure:
            return f"no config was measured within {seconds:g} s"
        return f"no config could be measured{f'; {self.progress.lost}' if self.progress.lost else self._first_failure}"

    def _describe_success(self) -> str:
        """Return the result of the search in words, with the notices about its results."""
        headline = self._shared or self.summary.describe_search(self.progress.done, self.progress.best)
        notices = (
            self.summary.prior_fault,
            self._disputed_outputs.describe_dispute(),
            *self._findings.describe_findings(),
            self.final_fault,
            self._provisional,
            *self._find_classes().describe_classes(),
            *describe_quarantine(self.store.list_suspects(self._brief.kernel.name)),
        )
        return "\n".join(filter(None, (headline, *map(format_notice, filter(None, notices)))))

    def _find_classes(self) -> BitClasses:
        """Return the classes of configs with equal bits; empty unless numerics are exact."""
        if self._brief.wanted_bits is None:
            return BitClasses()
        by = strip_numerics(self._brief.search_objective)
        return BitClasses.from_trials(self.store.list_best_trials(self._brief.context, MOST_COMPARED, objective=by))

    @property
    def is_default_doubtful(self) -> bool:
        """True if the default's outputs prove nothing."""
        return self._disputed_outputs.is_default_doubtful

    async def open_job(self) -> None:
        """Find what the job begins with; make the best known config the winner if it is certainly no worse."""
        await self._find_anchor()
        await self.refresh_served_configs()

    async def take_shared_winner(self) -> bool:
        """Wait for the team's winners; return whether one of this very context leaves the job nothing to do."""
        brief, plan = self._brief, self._brief.job.plan
        # A job for certain configs, or for measuring again, was asked for more.
        if brief.await_shared is None or plan.configs or plan.again:
            return False
        winner = self.store.get_winner(brief.key) if await brief.await_shared(brief.present_key) else None
        trial = None if winner is None or winner.context != brief.context else self.store.get_trial(winner.trial)
        if (
            trial is None
            or trial.detail.failure.phase != IMPORTED
            or await brief.check_configs([trial.config]) != [True]
        ):
            return False
        self._shared = "the team's store has a winner for this very context: nothing was searched"
        self.record_known_trial(trial)
        return True

    async def _find_anchor(self) -> None:
        """Take the anchor's bits from an earlier job's trial, if there is one, and compare all trials with them."""
        anchor = self._brief.anchor
        if anchor is None:
            return
        known = self.store.find_trial(self._brief.context, anchor.config)
        # Until the anchor has run on all inputs, compare on those that are there.
        if known is not None and (known.detail.numerics.bits or self.outcome_stands(known)):
            anchor.record_trial_end(known)
        if anchor.bits or anchor.fault:
            await self._compare_with_anchor()

    async def _compare_with_anchor(self) -> None:
        """Mark all trials so far by whether they have the anchor's bits.

        This also stores a client's choice of the anchor. If that config cannot be the anchor, the job is given up, and
        everything stays as it was, including an earlier choice.
        """
        anchor, chosen = self._brief.anchor, self._brief.job.plan.anchor
        assert anchor is not None
        if anchor.fault:
            self.hopelessness.give_job_up(anchor.fault)
            return
        self._compared_with = anchor.bits
        if chosen is not None:
            is_declared = canonical(chosen) == canonical(self._brief.declared_default or {})
            await self.store.anchors.choose_anchor(self._brief.key, None if is_declared else chosen)
            self.publish(AnswersChanged(kernel=self._brief.key.kernel))
        await self.store.mark_same_bits(self._brief.context, anchor.bits)

    async def refresh_served_configs(self) -> None:
        """Look again at the served configs, before anything is measured: another job may have changed them."""
        served = await self._find_served_configs()
        if served is None:
            self._has_winner, served = True, ServedConfigs()
        if served.configs != self.served_configs.configs:
            self.served_configs = served
        await self._elect_winner(decided_only=not self.served_configs.are_judged)

    def outcome_stands(self, known: Trial) -> bool:
        """Return whether a known outcome needs no new try in this job."""
        if self._brief.job.plan.again or self._brief.lacks_figure(known):
            return False
        return is_outcome_final(known, self._brief.grants)

    def record_known_trial(self, known: Trial) -> None:
        """Count a config whose known outcome stands, so that it needs neither compiler nor lane."""
        self.progress.reused += 1
        self.progress.add_cost("reused", 1)
        self._findings.record_result(known.config, known.detail)
        self._count_outcome(known)

    def collect_tried_configs(self) -> list[requests.TriedConfig]:
        """Return the configs that were tried since the last call, with their outcomes."""
        tried, self._tried = self._tried, []
        self._changed = anyio.Event()
        return tried

    async def await_tried_config(self) -> None:
        """Wait until :meth:`collect_tried_configs` has something to return. Only the task that proposes configs may."""
        await self._changed.wait()

    async def await_next_outcome(self) -> None:
        """Wait until another config has its outcome. Only the task that proposes configs may."""
        self._changed = anyio.Event()
        await self._changed.wait()

    async def record_ends(self, ends: Sequence[End]) -> None:
        """Commit outcomes together, then publish them; one by one until the served configs are judged."""
        while ends and not self.served_configs.are_judged:
            await self._record_batch(ends[:1])
            ends = ends[1:]
        if ends:
            await self._record_batch(ends)

    async def _record_batch(self, ends: Sequence[End]) -> None:
        keeps_winner = not self.served_configs.are_judged
        kept = [
            (attempt, result if attempt.known is None else complete_result(attempt.known, result))
            for attempt, result in ((end.attempt, self._brief.grants.note_grants(end.result)) for end in ends)
        ]
        # Shielded: cancelling must not lose a result that a worker has reported.
        with anyio.CancelScope(shield=True):
            winner = await self.store.finish_trials(
                [(attempt.trial, result) for attempt, result in kept],
                objective=self._brief.objective,
                keeps_winner=keeps_winner,
            )
        await self._update_anchor(kept)
        # Many tasks wait for one commit, and all continue at once; give lookups a turn first.
        await self._pace.wait_for_step()
        are_judged_now = False
        for end in ends:
            self._charge_costs(end)
            assert end.result.outcome is not None
            are_judged_now |= self.served_configs.record_outcome(end.attempt.config, end.result.outcome)
        # Announce the winner. If a result beats the present winner, the store has made it the new one. If these ends
        # judge the served configs, or there was no winner yet, the best of all known trials becomes the winner.
        has_measured = any(result.outcome is Outcome.MEASURED for _, result in kept)
        if winner is not None:
            await self._announce_winner(winner)
        elif are_judged_now or (not keeps_winner and not self._has_winner and has_measured):
            await self._elect_winner()
        # Publish after the winner, so that a client that hears of the trial can look the winner up.
        for attempt, result in kept:
            self._findings.record_result(attempt.config, result.detail)
            self._count_outcome(make_trial(self._brief, attempt, result))

    async def _update_anchor(self, kept: Sequence[tuple[Attempt, TrialResult]]) -> None:
        """Compare all trials with the anchor again, if its own trial is among these and changes what its bits are."""
        anchor = self._brief.anchor
        if anchor is None:
            return
        for attempt, result in kept:
            anchor.record_trial_end(make_trial(self._brief, attempt, result))
        if anchor.fault or anchor.bits != self._compared_with:
            await self._compare_with_anchor()

    def _charge_costs(self, end: End) -> None:
        """Count what a trial has cost in this job; another job paid for a carried-over figure."""
        attempt, result = end.attempt, end.result
        del self.under_way[attempt.trial]
        self.progress.charge_attempt(attempt, result)
        if result.detail.timing.carried_from:
            self.progress.add_cost("reused", 1)
        if result.outcome in (Outcome.HUNG, Outcome.CRASHED):
            _log.warning(f"trial_{result.outcome}", trial=attempt.trial, config=dict(attempt.config))

    def take_contended(self) -> list[Trial]:
        """Return the contended trials that are needed although the machine is busy, and count them as under way.

        They are needed if nothing was measured, or if the config that lookups get has no figure to beat. That config
        and the default come first, then those with the fastest timings, because disturbance only adds time.
        """
        awaited = self.served_configs.awaited_config
        if not self._contended or (self.progress.outcomes[Outcome.MEASURED] and awaited is None):
            return []

        def rank(trial: Trial) -> tuple[bool, float]:
            is_first = trial.config in (awaited, self._brief.kernel.default)
            return not is_first, trial.detail.timing.low_us or math.inf

        chosen = sorted(self._contended, key=rank)[: self._brief.preset.finalists]
        self._contended.clear()
        self.progress.retract_contended(len(chosen))
        return chosen

    async def record_disturbed_ends(self, ends: Sequence[End]) -> None:
        """Record ends as :meth:`record_ends` does, with figures of a busy machine: the winner is provisional."""
        self._provisional = (
            "the winner is provisional: other programs used the device while its configs were measured; "
            "it is measured again when the machine is quieter"
        )
        await self.record_ends(
            [
                replace(end, result=end.result.add_facts("timing", disturbed=True))
                if end.result.outcome is Outcome.MEASURED
                else end
                for end in ends
            ]
        )

    async def acquit_mismatches(self) -> None:
        """Take mismatches back if the default's outputs prove nothing; let the fastest config win."""
        acquitted = self._disputed_outputs.find_acquitted()
        for trial, result in acquitted:
            await self.store.finish_trial(trial.id, result, objective=self._brief.objective)
            self.progress.count_acquittal(result)
            published = replace(trial, outcome=result.outcome, detail=result.detail)
            publish_trial(self.publish, self._brief, self.progress, published)
        if acquitted and self.served_configs.are_judged:
            await self._elect_winner()

    def _count_outcome(self, trial: Trial) -> None:
        """Count a trial that has ended, keep it for the strategy, and publish it."""
        assert trial.outcome is not None
        config, outcome = trial.config, trial.outcome
        if outcome is not Outcome.MEASURED and trial.message and not self._first_failure:
            self._first_failure = f"; {outcome}: {trial.message.splitlines()[0]}"
        if outcome is Outcome.MEASURED and self._brief.compute_cost(trial) is None and not self._first_unjudged:
            figure = trial.figure(self._brief.search_objective)
            why = f"its figure is {figure:.4g}" if figure is not None else "its figure is not finite"
            self._first_unjudged = trial.message.partition("\n")[0] or f"{why}, and must be finite and above 0"
        if outcome is Outcome.CONTENDED:
            self._contended.append(trial)
        is_default = config == self._brief.kernel.default
        self.progress.count_outcome(trial, is_default=is_default)
        self._disputed_outputs.record_trial(trial)
        # A config whose only fault is to differ from the default's outputs may be acquitted: no reason to give up.
        is_disputed = trial.detail.checks.undisputed is not None
        self.hopelessness.record_outcome(
            config, Outcome.MEASURED if is_disputed else outcome, trial.message, trial.detail.failure.phase
        )
        self.summary.record_best(self.progress.done, self.progress.best)
        doubt = trial.doubt()
        self._tried.append(requests.TriedConfig(config, outcome, self._brief.estimate_cost(trial), doubt))
        self._changed.set()
        publish_trial(self.publish, self._brief, self.progress, trial)

    def skip_unoffered_served(self) -> None:
        """Stop waiting for served configs that the strategy did not offer, because the space does not hold them."""
        while (config := self.served_configs.awaited_config) is not None:
            if self.store.find_trial(self._brief.context, config) is not None:
                return
            self.served_configs.record_outcome(config, Outcome.UNSUPPORTED)

    async def _find_served_configs(self) -> ServedConfigs | None:
        """Return the configs that lookups get now; ``None`` if this context has a winner."""
        brief = self._brief
        kernel, winners = brief.kernel, brief.served()
        # This may be another checkout's winner; a job here must find its own winner, which must be no worse.
        incumbent = next((winner for winner in winners if winner.key == brief.key), None)
        own = self.store.get_winner(brief.key)
        if is_exact(brief.objective):
            # Until the anchor's bits are known, no other config is known to be right.
            winners, incumbent = [], None
        stand_ins = find_stand_ins(brief.key, brief.specialized_problem, winners)
        near = [complete_config(kernel, winner.config) for winner in stand_ins]
        before = None if incumbent is None else complete_config(kernel, incumbent.config)
        asked = [config for config in (before, *near, kernel.default) if config is not None]
        verdicts = dict(zip(map(canonical, asked), await brief.check_configs(asked), strict=True))
        if own is not None and own.context == brief.context and await brief.check_configs([own.config]) == [True]:
            return None
        served = choose_served_configs(before, near, kernel.default, lambda config: verdicts[canonical(config)])
        return ServedConfigs(served, self._find_known_outcome)

    def _find_known_outcome(self, config: Config) -> Outcome | None:
        known = self.store.find_trial(self._brief.context, config)
        return known.outcome if known is not None and self.outcome_stands(known) else None

    async def _elect_winner(self, *, decided_only: bool = False) -> None:
        """Make the best known config of this context the winner, unless it has one that is still admitted."""
        brief = self._brief
        winner = await restore_winner(
            self.store, brief.admission, brief.present_key, brief.preset.finalists, decided_only=decided_only
        )
        if winner is not None:
            await self._announce_winner(winner)

    async def elect_provisional_winner(self) -> None:
        """Serve the best config if it surely beats the served one, which this busy machine could not measure."""
        brief, awaited = self._brief, self.served_configs.awaited_config
        if awaited is None or needs_metric(brief.objective) or is_exact(brief.objective):
            return
        best = await load_admitted_trials(self.store, brief.admission, brief.present_key, 1)
        before = next((one for one in brief.served() if one.key == brief.key and one.config == awaited), None)
        if not best or not surely_beats(best[0], self.store.find_trial(brief.context, awaited), before):
            return
        winner = await self.store.decide_winner(best[0].id, objective=brief.objective, is_final=False)
        await self._announce_winner(winner)
        words = spell_values(awaited)
        self._provisional = (
            f"the winner is provisional: the machine was too busy to measure {words}, which was served before; "
            "run `ktuned tune` again when it is quieter"
        )

    async def _announce_winner(self, winner: Winner) -> None:
        """Publish a new winner, and remember that the space holds its config."""
        self._has_winner = True
        await self._brief.admission.store_verdict(self._brief.kernel, self._brief.problem, winner.config)
        self.publish_winner(winner)

    def publish_winner(self, winner: Winner) -> None:
        """Publish a new winner of the job."""
        self._provisional = "" if winner.is_final else self._provisional
        publish_winner(self.publish, self._brief.kernel, winner, self._brief.job.id)
