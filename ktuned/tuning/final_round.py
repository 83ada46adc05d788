"""The final round of a job: its finalists are checked on more inputs and measured again, in turns; the best one wins.

The figures of trials cannot decide fairly: trials are minutes apart, and meanwhile clocks change and other programs
come and go. So the best few compete under equal conditions. The steps, each of which may make the later ones needless:

1. *Bits.* Where numerics are exact, likely finalists are launched on all inputs, to find out whose bits equal the
   anchor's.
2. *Known decision.* If the same finalists have had their rounds, or nothing was measured since the winner won, nothing
   is measured now. One such case is an undone edit: the job began by restoring the best known trial as the winner.
3. *Other inputs.* A config that is right only for the inputs of its trial must not win: each finalist is checked with
   the :data:`SEEDS`, and if it fails, the next best config takes its place.
4. *Rounds.* In a quiet window, in which no job compiles, each finalist is timed once per round, and so is the
   reference. The order rotates, so that a drift affects all alike. More rounds follow while they contradict each other
   (:mod:`~ktuned.tuning.finalists`), up to the preset's limit, or until the job's time is up.
5. *Settling.* All figures and the winner are stored in one transaction, then published.

The incumbent and the default always compete: the incumbent is replaced only by a config that was measured in the same
window, and the speed-up is relative to the default's figure of that window. If the lane's device fails, the rounds
start again on another device. If every round was disturbed, the finalists keep their first figures, and the job's
message says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic

import msgspec
import structlog
from msgspec.structs import replace

from ktuned.fleet import ALL_CORES, CannotOpen, Fleet, Lane, LaneSick
from ktuned.ipc import requests
from ktuned.model import (
    ENERGY,
    Config,
    Outcome,
    TrialResult,
    WorkerError,
    median,
    needs_metric,
    needs_own_launches,
    strip_numerics,
)
from ktuned.protocol import Refining, Trial
from ktuned.store import Winner
from ktuned.tuning.finalists import (
    FEWEST_ROUNDS,
    MOST_TIMES,
    ROBUST_ROUNDS,
    Figure,
    Range,
    Rounds,
    are_rounds_contradictory,
    are_rounds_noisy,
    choose_finalists,
    compute_figures,
    elect_winner,
    find_remaining_rivals,
    is_reference_implausible,
)
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.judgements import Anchor
from ktuned.tuning.limits import shorten_for_trial
from ktuned.tuning.measure_stage import MeasureStage
from ktuned.tuning.outcomes import Outcomes
from ktuned.tuning.prior_results import complete_result, load_admitted_trials
from ktuned.tuning.trial_machine import Attempt

_log = structlog.get_logger()

SEEDS = (1, 2)
"""Seeds of the additional inputs; the trials' own seed is 0. A fault that one more set of numbers hides, two rarely do.
"""


class _Finalist(msgspec.Struct):
    """A measured trial that competes.

    Attributes:
        trial: The trial as it was measured before.
        unit: The trial's Build and the key of its artifact.
        rounds: The cost and the result of each of its rounds.
        failed: The result of the round in which it failed, if it did.
    """

    trial: Trial
    unit: requests.UnitRef
    rounds: list[tuple[float, TrialResult]] = []
    failed: TrialResult | None = None

    @classmethod
    def from_trial(cls, trial: Trial) -> _Finalist:
        return cls(trial, requests.UnitRef(trial.artifact or "", trial.detail.compiled.build))

    def make_attempt(self) -> Attempt:
        """Return an attempt that measures the trial again, on the same number of cores."""
        attempt = Attempt.from_finalist(self.trial, self.unit)
        attempt.cores = self.trial.detail.profile.cores
        return attempt

    def make_result(self, brief: JobBrief, contest: Rounds, found: Mapping[int | None, Figure]) -> TrialResult:
        """Return the result of all rounds; the trial keeps its old figure if all were disturbed."""
        if self.failed is not None:
            return self.failed
        trial, figure, reference = self.trial, found.get(self.trial.id), found.get(None)
        timed = [timed for _, timed in self.rounds]
        compared = sum(one.detail.checks.compared for one in (trial.result, *timed))
        result = trial.result.add_facts("checks", compared=compared)
        if any(one.detail.numerics.nondeterministic for one in timed):
            result = result.add_facts("numerics", nondeterministic=True, same_bits=False)
        if reference is not None:
            result = result.add_facts(
                "final", reference_us=reference.latency_us, reference_spread_us=reference.spread_us
            )
        if figure is None:
            return result
        # The message may say that the config lost a race; but the rounds have measured it in full since.
        message = "" if result.detail.timing.beaten else result.message
        # The metrics are those of the round whose cost is nearest to the figure.
        with_metrics = [(abs(cost - figure.latency_us), one.metrics) for cost, one in self.rounds if one.metrics]
        metrics = min(with_metrics, key=lambda one: one[0], default=(0.0, {}))[1]
        result = replace(result, message=message, metrics={**result.metrics, **metrics})
        spread_us = median([one.spread_us for one in timed if one.spread_us is not None])
        if needs_metric(brief.objective):
            medians = tuple(one.latency_us for one in timed if one.latency_us is not None)
            latency_us = median(medians)
        else:
            # A device drifts between rounds, and launches differ within a round: the wider of the two spreads counts.
            latency_us, spread_us = figure.latency_us, max(figure.spread_us or 0.0, spread_us)
            medians = tuple(one[trial.id] for one in contest if trial.id in one)
        ends = (*medians, latency_us)
        result = result.add_facts(
            "timing", beaten=False, disturbed=False, low_us=min(ends), high_us=max(ends)
        ).add_facts("final", rounds=len(contest), round_medians_us=medians, first_latency_us=trial.latency_us)
        return replace(result, latency_us=latency_us, spread_us=spread_us)


class FinalRound:
    """Lets a job's finalists compete, and makes the best of them the winner."""

    def __init__(self, outcomes: Outcomes, measuring: MeasureStage, fleet: Fleet) -> None:
        self._brief = measuring.brief
        self._outcomes = outcomes
        self._progress = outcomes.progress
        self._store = outcomes.store
        self._measuring = measuring
        self._fleet = fleet

    async def run(self, *, is_judged: bool = True, ends_at: float = math.inf) -> None:
        """Decide who wins, unless there are no finalists or they have competed already.

        Args:
            is_judged: Whether outputs can be judged; only then are finalists checked on other inputs.
            ends_at: A time by ``monotonic``, after which only the fewest rounds for a decision are run.
        """
        began = monotonic()
        # Choose who competes.
        await self._complete_bits()
        finalists = [_Finalist.from_trial(trial) for trial in await self._choose_finalists()]
        rounds = self._brief.preset.finalist_rounds
        if not finalists:
            return
        # Stop if this is decided already.
        have_competed = all(self._count_rounds(finalist.trial) >= rounds for finalist in finalists)
        served = self._find_incumbent()
        incumbent = None if served is None else self._store.get_trial(served.trial)
        if served is not None and incumbent is not None and (have_competed or self._is_decided(incumbent, rounds)):
            if not served.is_final:
                # It took over its figure, and its rounds, from a trial with equal content.
                winner = await self._store.decide_winner(served.trial, objective=self._brief.objective)
                self._outcomes.publish_winner(winner)
            # The best of the search may be another config: it is the fastest one, and only finalists have the metric.
            if needs_own_launches(self._brief.objective) and self._progress.best_us is not None:
                self._progress.set_best(incumbent)
            self._progress.reference_us = incumbent.detail.final.reference_us
            self._progress.reference_spread_us = incumbent.detail.final.reference_spread_us
            return
        # Check that they are right on other inputs, too.
        if is_judged:
            finalists = [_Finalist.from_trial(trial) for trial in await self._check_on_other_inputs()]
        if not finalists:
            return
        # Let them compete in a quiet window, and store the result.
        checked = monotonic()
        # An application is never quiet, and its lane waits between the rounds: compiles go on beside it.
        async with self._fleet.hold_quiet(lane.device for lane in self._measuring.lanes if not lane.applications):
            is_quiet = monotonic()
            contest = await self._hold_contest(rounds, finalists, ends_at)
        quiet_s = monotonic() - is_quiet
        # The wait for other jobs' compiles to end is not a cost of these finalists.
        self._progress.add_cost("finalists_s", checked - began + quiet_s)
        self._progress.add_cost("quiet_s", quiet_s)
        await self._settle_contest(contest)

    async def _complete_bits(self) -> None:
        """Launch likely finalists on all inputs, where numerics are exact.

        Most trials were launched on the first inputs only. A config whose bits on the others differ from the anchor's
        is replaced by the next best.

        Raises:
            RequestFailed: With code ``source_changed``.
        """
        anchor, asked = self._brief.anchor, set[int]()
        while anchor is not None and anchor.bits:
            likely = await self._find_likely_finalists(anchor)
            trial = next((one for one in likely if not anchor.has_all_bits(one) and one.id not in asked), None)
            if trial is None:
                return
            asked.add(trial.id)
            result = complete_result(trial, await self._launch_on_all_inputs(trial, anchor))
            if result.outcome is not Outcome.MEASURED:
                await self._record_loss(trial, result)
                continue
            winner = await self._store.finish_trial(trial.id, result, objective=self._brief.objective)
            if winner is not None:
                self._outcomes.publish_winner(winner)

    async def _find_likely_finalists(self, anchor: Anchor) -> list[Trial]:
        """Return the trials that will be finalists if their bits equal the anchor's on all inputs."""
        brief = self._brief
        best = await load_admitted_trials(
            self._store,
            brief.admission,
            msgspec.structs.replace(brief.present_key, objective=strip_numerics(brief.search_objective)),
            brief.preset.finalists * MOST_TIMES,
            anchor.may_equal_anchor,
        )
        costs = [(trial, cost) for trial in best if (cost := brief.estimate_cost(trial)) is not None]
        ranges = [_estimate_range(trial, cost) for trial, cost in costs]
        return [costs[place][0] for place in choose_finalists(ranges, brief.preset.finalists)]

    async def _launch_on_all_inputs(self, trial: Trial, anchor: Anchor) -> TrialResult:
        finalist, brief = _Finalist.from_trial(trial), self._brief
        request = requests.Trial(
            (finalist.unit,),
            brief.preset,
            judge_contention=False,
            known_us=(trial.latency_us,),
            same_bits=replace(anchor.request, on_all_inputs=True),
        )
        deadlines = shorten_for_trial(brief.deadlines, brief.preset, trial.launch_s)
        while True:
            with suppress(LaneSick):
                return await self._measuring.measure_alone(
                    self._measuring.choose_well_lane, finalist.make_attempt(), request, deadlines
                )

    async def _check_on_other_inputs(self) -> list[Trial]:
        """Return finalists that are right for all seeds; a finalist that is not is replaced by the next best.

        A trial that has had rounds was checked before them. Nothing is checked if the kernel has
        neither a reference nor a check.

        Raises:
            RequestFailed: With code ``source_changed``.
        """
        passed: dict[int, set[int]] = {seed: set() for seed in SEEDS}
        while True:
            found = await self._choose_finalists()
            unchecked = {
                seed: [trial for trial in found if trial.id not in passed[seed] and not trial.detail.final.rounds]
                for seed in SEEDS
            }
            # Seed by seed: making a seed's inputs is expensive, so all finalists are checked on them at once.
            seed = next((seed for seed in SEEDS if unchecked[seed]), None)
            if seed is None or not self._brief.kernel.is_judged:
                return found
            for trial in unchecked[seed]:
                result = await self._check_with_seed(trial, seed)
                if result is None:
                    passed[seed].add(trial.id)
                else:
                    await self._record_loss(trial, result)

    async def _check_with_seed(self, trial: Trial, seed: int) -> TrialResult | None:
        """Check a finalist on a seed's inputs; return the result that ends its trial, or ``None`` if it passed."""
        finalist = _Finalist.from_trial(trial)
        attempt, request = Attempt.from_finalist(trial, finalist.unit), requests.Check(finalist.unit)
        while True:
            try:
                result = await self._measuring.measure_alone(
                    self._measuring.choose_well_lane, attempt, request, self._brief.deadlines, seed
                )
            except LaneSick:
                continue
            except CannotOpen as error:
                # The reference may refuse the numbers of this seed. No config is to blame for that.
                _log.warning("check_seed_failed", kernel=self._brief.kernel.name, seed=seed, reason=error.message)
                return None
            if result.outcome is Outcome.MEASURED:
                return None
            return replace(
                result, message=f"right on its first inputs, wrong on others (seed {seed}): {result.message}"
            )

    async def _hold_contest(self, rounds: int, finalists: Sequence[_Finalist], ends_at: float) -> _Contest:
        """Let the finalists compete on one device; if that device fails, start again on another."""
        while True:
            lane = self._measuring.choose_well_lane()
            contest = _Contest(
                self._brief, lane, self._measuring, [_Finalist.from_trial(one.trial) for one in finalists]
            )
            try:
                for turn in range(max(rounds, self._brief.preset.most_rounds, ROBUST_ROUNDS)):
                    if turn >= rounds and not contest.needs_another_round:
                        break
                    if turn >= FEWEST_ROUNDS and monotonic() > ends_at:
                        break
                    self._publish_round(turn, max(rounds, turn + 1), len(finalists))
                    # Configs are compared within rounds only, so the next round may be on another lane.
                    contest.lane = self._measuring.choose_well_lane()
                    await contest.run_round(turn)
            except LaneSick:
                continue
            return contest

    def _is_decided(self, incumbent: Trial, rounds: int) -> bool:
        """Return whether the winner has had its rounds, and nothing was measured since.

        Among many equally fast configs another may have a figure below the winner's: that is no reason to repeat them.
        """
        return not self._progress.has_measured and self._count_rounds(incumbent) >= rounds

    def _count_rounds(self, trial: Trial) -> int:
        """Return the number of rounds in which a trial competed by this job's figure."""
        return 0 if self._brief.compute_final_cost(trial) is None else trial.detail.final.rounds

    def _find_incumbent(self) -> Winner | None:
        """Return the present winner, if it is of exactly this context."""
        incumbent = self._store.get_winner(self._brief.key)
        return None if incumbent is None or incumbent.context != self._brief.context else incumbent

    async def _is_admitted(self, config: Config) -> bool:
        (is_admitted,) = await self._brief.check_configs([config])
        return is_admitted

    async def _choose_finalists(self) -> list[Trial]:
        """Return the best trials whose configs the space still holds, with the incumbent and the default."""
        brief = self._brief
        best = await load_admitted_trials(
            self._store,
            brief.admission,
            msgspec.structs.replace(brief.present_key, objective=brief.search_objective),
            brief.preset.finalists * MOST_TIMES,
        )
        costs = [(trial, cost) for trial in best if (cost := brief.compute_cost(trial)) is not None]
        ranges = [_estimate_range(trial, cost) for trial, cost in costs]
        best = [costs[place][0] for place in choose_finalists(ranges, brief.preset.finalists)]
        incumbent, default = self._find_incumbent(), brief.kernel.default
        # The incumbent's figure may come from a slower hour, so it is measured beside the configs that may replace it.
        # The default is measured too, so that the speed-up over it is of the same quiet window.
        for config in (None if incumbent is None else incumbent.config, default):
            if config is None or any(trial.config == config for trial in best) or not await self._is_admitted(config):
                continue
            known = self._store.find_trial(brief.context, config)
            if known is not None and known.outcome is Outcome.MEASURED and brief.compute_cost(known) is not None:
                best.append(known)
        return best

    def _publish_round(self, turn: int, rounds: int, finalists: int) -> None:
        job = self._brief.job
        self._outcomes.publish(
            Refining(kernel=job.kernel, job=job.id, round=turn + 1, rounds=rounds, finalists=finalists)
        )

    async def _settle_contest(self, contest: _Contest) -> None:
        found = compute_figures(contest.rounds, contest.rivals)
        if contest.rivals and not any(rival in found for rival in contest.rivals):
            fault = "the final round measured nothing, because other programs used the device"
            if not needs_own_launches(self._brief.objective):
                fault += ": the winner has only its first measurement"
            self._outcomes.final_fault = fault
        if None in found:
            self._progress.reference_us = found[None].latency_us
            self._progress.reference_spread_us = found[None].spread_us
        results = {one.trial.id: one.make_result(self._brief, contest.rounds, found) for one in contest.finalists}
        results |= await self._recompute_metrics(contest, results)
        still = {trial: result for trial, result in results.items() if result.outcome is Outcome.MEASURED}
        known = {trial: self._brief.compute_final_cost(result) for trial, result in still.items()}
        costs = {trial: cost for trial, cost in known.items() if cost is not None}
        incumbent = self._find_incumbent()
        best = elect_winner(costs, found, None if incumbent is None else incumbent.trial)
        if best is not None:
            config = next(one.trial.config for one in contest.finalists if one.trial.id == best)
            await self._brief.admission.store_verdict(self._brief.kernel, self._brief.problem, config)
        winner = await self._store.settle_final_round(
            list(results.items()), best, objective=self._brief.objective, is_final=best in found
        )
        for trial, result in results.items():
            if trial not in still:
                self._count_loss(result)
        if winner is None or best is None:
            return
        self._progress.set_best(still[best])
        for one in contest.finalists:
            if one.trial.id in still and one.trial.config == self._brief.kernel.default:
                self._progress.set_default(results[one.trial.id])
        self._outcomes.publish_winner(winner)

    async def _recompute_metrics(self, contest: _Contest, results: Mapping[int, TrialResult]) -> dict[int, TrialResult]:
        """Return the results with metrics of the latency that is shown, which no single round has measured."""
        shown = {
            trial: one.latency_us
            for trial, one in results.items()
            if one.latency_us is not None and one.metrics.keys() - {ENERGY}
        }
        if not shown:
            return {}
        request = requests.EvaluateMetrics(tuple(shown.values()))
        try:
            async with self._measuring.hold_open_lane(contest.lane):
                computed, _ = await contest.lane.send_request(request, self._brief.deadlines)
        except WorkerError as error:
            # The metrics of single rounds stay.
            _log.warning("compute_metrics_failed", kernel=self._brief.kernel.name, reason=error.message)
            return {}
        return {
            trial: replace(results[trial], metrics={**results[trial].metrics, **metrics})
            for trial, metrics in zip(shown, computed.figures, strict=True)
        }

    async def _record_loss(self, trial: Trial, result: TrialResult) -> None:
        """Store that a measured trial has failed after all, and count it."""
        await self._store.finish_trial(trial.id, result, objective=self._brief.objective)
        self._count_loss(result)

    def _count_loss(self, result: TrialResult) -> None:
        best = self._store.list_best_trials(self._brief.context, 1, objective=self._brief.search_objective)
        self._progress.count_loss(result, best[0] if best else None)


class _Contest:
    """The rounds: each finalist once per round, all on the same lane, in an order that rotates."""

    def __init__(self, brief: JobBrief, lane: Lane, measuring: MeasureStage, finalists: Sequence[_Finalist]) -> None:
        self.finalists = list(finalists)
        self._brief = brief
        self.lane = lane
        self._measuring = measuring
        # An application disturbs all finalists alike, and figures are compared only within a round.
        self._judges_contention = brief.judge_contention and not lane.applications
        self._deadlines = shorten_for_trial(brief.deadlines, brief.preset, finalists[0].trial.launch_s)
        self.rounds: list[dict[int | None, float]] = []

    @property
    def rivals(self) -> list[int]:
        """The trials that still compete."""
        return [finalist.trial.id for finalist in self.finalists if finalist.failed is None]

    @property
    def needs_another_round(self) -> bool:
        """True if the reference must be timed again, or the result is in doubt and the preset allows more rounds."""
        if is_reference_implausible(self.rounds, self.rivals):
            return True
        is_doubtful = are_rounds_contradictory(self.rounds, self.rivals) or are_rounds_noisy(self.rounds, self.rivals)
        # Beside an application rounds often contradict each other, and more of them would, too.
        return is_doubtful and len(self.rounds) < self._brief.preset.most_rounds and not self.lane.applications

    async def run_round(self, turn: int) -> None:
        """Measure each finalist that may still win once; in the first rounds the reference, too."""
        competing = find_remaining_rivals(self.rounds, self.rivals)
        self.rounds.append({})
        first = turn % len(self.finalists)
        for finalist in self.finalists[first:] + self.finalists[:first]:
            if finalist.trial.id in competing:
                await self._time_finalist(finalist)
        is_reference_known = turn >= FEWEST_ROUNDS and not (
            are_rounds_noisy(self.rounds, []) or is_reference_implausible(self.rounds, self.rivals)
        )
        if needs_metric(self._brief.objective) or is_reference_known:
            # Skip the reference if its latency is known well enough, or if a metric decides: it only has a latency.
            return
        try:
            async with self._measuring.hold_open_lane(self.lane):
                await self.lane.reserve_cores(1 if self.lane.device.kind != "cpu" else ALL_CORES)
                request = requests.TimeReference(self._brief.preset, self._judges_contention)
                measured, _ = await self.lane.send_request(request, self._brief.deadlines)
        except WorkerError:
            # The reference is only shown beside the winner: its failure decides nothing.
            return
        if measured.result.latency_us is not None:
            self.rounds[-1][None] = measured.result.latency_us

    async def _time_finalist(self, finalist: _Finalist) -> None:
        request = requests.Time(finalist.unit, self._brief.preset, self._judges_contention)
        result = await self._measuring.measure_alone(
            lambda: self.lane, finalist.make_attempt(), request, self._deadlines
        )
        if result.outcome is not Outcome.MEASURED:
            finalist.failed = result
        elif (cost := self._brief.compute_round_cost(result)) is not None:
            self.rounds[-1][finalist.trial.id] = cost
            finalist.rounds.append((cost, result))


def _estimate_range(trial: Trial, cost: float) -> Range:
    """Return the range in which a measured config's cost may lie, from the interval and the spread of its latency."""
    low, high = trial.interval() or (1.0, 1.0)
    spread = 0.0 if not trial.latency_us else (trial.spread_us or 0.0) / trial.latency_us
    return Range.from_measurement(cost, cost * spread, (cost * low, cost * high))
