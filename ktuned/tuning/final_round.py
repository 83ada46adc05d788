"""The finalists' decision: the best few are checked on other inputs, and measured again, in turns, while nothing
compiles.

A config that is right only for the inputs of its trial wins nothing: the next best takes its place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic

import msgspec
import structlog

from ktuned.fleet import ALL_CORES, CannotOpen, Fleet, Lane, LaneSick
from ktuned.ipc import requests
from ktuned.model import (
    ENERGY,
    LATENCY,
    Config,
    Outcome,
    Trial,
    TrialResult,
    Winner,
    WorkerError,
    is_latency,
    is_nondeterministic,
    median,
    strip_numerics,
)
from ktuned.store import Store
from ktuned.tuning.anchor import Anchor
from ktuned.tuning.deadlines import for_trial
from ktuned.tuning.finalists import (
    FEWEST_ROUNDS,
    MOST_TIMES,
    Figure,
    Range,
    Rounds,
    chosen,
    elected,
    figures,
    is_implausible,
    is_open,
    remaining,
)
from ktuned.tuning.measure_stage import MeasureStage
from ktuned.tuning.prior_results import admitted_prior_trials
from ktuned.tuning.progress import Progress, Publish, publish_winner
from ktuned.tuning.trial_detail import TrialDetail, completed_result, interval
from ktuned.tuning.trial_lifecycle import Attempt
from ktuned.tuning.work import Work

_log = structlog.get_logger()

SEEDS = (1, 2)
"""Seeds of the inputs besides the trials' own, which is 0. Two: what one other set of numbers hides, two seldom do."""


class _Finalist(msgspec.Struct):
    """A measured trial that competes, with what its rounds found, or the result that ended its part.

    ``spreads`` and ``latencies`` are in µs; ``metrics`` stand beside the cost that they gave.
    """

    trial: Trial
    unit: requests.UnitRef
    detail: TrialDetail
    spreads: list[float] = msgspec.field(default_factory=list)
    latencies: list[float] = msgspec.field(default_factory=list)
    metrics: list[tuple[float, Mapping[str, float]]] = msgspec.field(default_factory=list)
    compared: int = 0
    failed: TrialResult | None = None

    @classmethod
    def of(cls, trial: Trial) -> _Finalist:
        detail = TrialDetail.from_json(trial.detail)
        return cls(trial, requests.UnitRef(trial.artifact or "", detail.build or {}), detail)

    def attempt(self) -> Attempt:
        """Return the trial as one that is measured again, on the cores that it was measured on."""
        attempt = Attempt.finalist(self.trial, self.unit)
        attempt.cores = self.detail.cores
        return attempt

    def take(self, result: TrialResult, cost: float) -> None:
        """Take what one round found."""
        self.compared += result.detail.get("compared") or 0
        if is_nondeterministic(result.detail):
            self.detail = replace(self.detail, nondeterministic=True, same_bits=False)
        if result.latency_us is not None and result.spread_us is not None:
            self.latencies.append(result.latency_us)
            self.spreads.append(result.spread_us)
        if result.metrics:
            self.metrics.append((cost, result.metrics))

    def result(self, work: Work, contest: Rounds, found: Mapping[int | None, Figure]) -> TrialResult:
        """Return the figure of all rounds; the old one if all were disturbed."""
        if self.failed is not None:
            return self.failed
        if is_latency(work.objective):
            return self._timed_result(contest, found)
        return self._judged_result(work, contest, found.get(self.trial.id))

    def _judged_result(self, work: Work, contest: Rounds, figure: Figure | None) -> TrialResult:
        """Return the result of rounds that were not decided by the latency: of energies, that is as it was."""
        trial = self.trial
        costs = tuple(one[trial.id] for one in contest if trial.id in one)
        decided = replace(self.detail, round_costs=costs, compared=self._all_compared)
        if work.needs_energy:
            decided = replace(decided, energy_rounds=len(contest))
        else:
            decided = replace(decided, rounds=len(contest))
        if figure is not None:
            decided = replace(decided, metrics=self._metrics_at(figure.latency_us), beaten=None)
        energies = [metrics[ENERGY] for _, metrics in self.metrics if ENERGY in metrics]
        if energies:
            decided = replace(decided, energy_low=min(energies), energy_high=max(energies))
        spread_us = median(self.spreads) if self.spreads else trial.spread_us
        if self.latencies:
            decided = replace(decided, low_us=min(self.latencies), high_us=max(self.latencies))
        return TrialResult(
            Outcome.MEASURED,
            median(self.latencies) if self.latencies else trial.latency_us,
            spread_us,
            trial.compile_s,
            trial.lane_s,
            self._message(figure),
            artifact=trial.artifact,
            detail={**trial.detail, **decided.to_json()},
        )

    def _timed_result(self, contest: Rounds, found: Mapping[int | None, Figure]) -> TrialResult:
        trial, figure, reference = self.trial, found.get(self.trial.id), found.get(None)
        medians = [one[trial.id] for one in contest if trial.id in one]
        # One that every round was disturbed for has been decided by none.
        decided = replace(
            self.detail,
            rounds=len(contest) if medians else None,
            round_medians_us=tuple(medians),
            first_latency_us=trial.latency_us,
            compared=self._all_compared,
        )
        if figure is not None:
            medians.append(figure.latency_us)
            decided = replace(decided, low_us=min(medians), high_us=max(medians), beaten=None)
            decided = replace(decided, metrics=self._metrics_at(figure.latency_us))
        if reference is not None:
            decided = replace(decided, reference_us=reference.latency_us, reference_spread_us=reference.spread_us)
        return TrialResult(
            Outcome.MEASURED,
            trial.latency_us if figure is None else figure.latency_us,
            # Between rounds a device drifts, and within them single launches differ: the wider one is the doubt.
            trial.spread_us if figure is None else max(figure.spread_us, median(self.spreads)),
            trial.compile_s,
            trial.lane_s,
            self._message(figure),
            artifact=trial.artifact,
            # Fields that a newer version has stored stay.
            detail={**trial.detail, **decided.to_json()},
        )

    @property
    def _all_compared(self) -> int | None:
        """The launches that were compared, those of the trial included."""
        return (self.detail.compared or 0) + self.compared or None

    def _message(self, figure: Figure | None) -> str:
        """Return the trial's message; that of a race which the figure of this round has corrects is true no longer."""
        return "" if figure is not None and self.detail.beaten else self.trial.message

    def _metrics_at(self, cost: float) -> Mapping[str, float] | None:
        """Return the metrics of the round whose cost is the nearest."""
        nearest = min(self.metrics, key=lambda one: abs(one[0] - cost), default=None)
        return self.detail.metrics if nearest is None else nearest[1]


class FinalRound:
    """Measures a job's finalists again and makes the best of them the winner; ``fault`` says where that failed."""

    def __init__(
        self,
        work: Work,
        progress: Progress,
        fleet: Fleet,
        lanes: Sequence[Lane],
        store: Store,
        measuring: MeasureStage,
        publish: Publish,
    ) -> None:
        self._work = work
        self._progress = progress
        self._fleet = fleet
        self._lanes = lanes
        self._store = store
        self._measuring = measuring
        self._publish = publish
        self.fault = ""

    async def run(self, *, is_judged: bool = True, ends_at: float = math.inf) -> None:
        """Decide, unless there is nothing to decide or it has been decided; outputs count if they can be judged.

        After ``ends_at`` (by ``monotonic``) no more rounds are run than a decision needs.
        """
        began = monotonic()
        await self._find_bits()
        finalists = [_Finalist.of(trial) for trial in await self._finalists()]
        rounds = self._work.preset.finalist_rounds
        if not finalists:
            return
        if all(self._rounds(finalist.trial) >= rounds for finalist in finalists):
            decided: Trial | None = min((finalist.trial for finalist in finalists), key=self._cost)
        else:
            decided = await self._decided(rounds)
        if decided is not None:
            detail = TrialDetail.from_json(decided.detail)
            self._progress.reference_us, self._progress.reference_spread_us = (
                detail.reference_us,
                detail.reference_spread_us,
            )
            await self._reinstate(decided)
            return
        if is_judged:
            finalists = [_Finalist.of(trial) for trial in await self._check_on_other_inputs()]
        if not finalists:
            return
        checked = monotonic()
        async with self._fleet.quiet(lane.device for lane in self._lanes):
            is_quiet = monotonic()
            contest = await self._contest(rounds, finalists, ends_at)
        quiet_s = monotonic() - is_quiet
        # The wait for other jobs' compiles is no cost of these finalists.
        self._progress.spend("finalists_s", checked - began + quiet_s)
        self._progress.spend("quiet_s", quiet_s)
        await self._settle(contest)

    async def _find_bits(self) -> None:
        """Have those that may be finalists launched on all inputs, where numerics are exact.

        Most trials have shown their bits on the first inputs alone. One that then leaves others than the anchor makes
        way for the next best.

        Raises:
            RequestFailed: with code ``source_changed``.
        """
        anchor, asked = self._work.anchor, set[int]()
        while anchor is not None and anchor.bits:
            likely = await self._likely_finalists(anchor)
            trial = next((one for one in likely if not anchor.is_sure_of(one) and one.id not in asked), None)
            if trial is None:
                return
            asked.add(trial.id)
            result = completed_result(trial, await self._launch_on_all_inputs(trial, anchor))
            if result.outcome is not Outcome.MEASURED:
                await self._lose(trial, result)
                continue
            winner = await self._store.finish_trial(trial.id, result, objective=self._work.objective)
            if winner is not None:
                publish_winner(self._publish, self._work.kernel, winner, self._work.job.id)

    async def _likely_finalists(self, anchor: Anchor) -> list[Trial]:
        """Return those that will be finalists if their bits are the anchor's on all inputs."""
        work = self._work
        best = await admitted_prior_trials(
            self._store,
            work.admission,
            work.kernel,
            work.problem,
            work.context,
            strip_numerics(work.objective),
            work.preset.finalists * MOST_TIMES,
            anchor.may_have_bits,
        )
        costs = [(trial, cost) for trial in best if (cost := work.expected_cost(trial)) is not None]
        ranges = [_range(trial, cost, by_energy=work.needs_energy) for trial, cost in costs]
        return [costs[place][0] for place in chosen(ranges, work.preset.finalists)]

    async def _launch_on_all_inputs(self, trial: Trial, anchor: Anchor) -> TrialResult:
        finalist, work = _Finalist.of(trial), self._work
        request = requests.Trial(
            (finalist.unit,),
            work.preset,
            judge_contention=False,
            known_us=(trial.latency_us,),
            same_bits=replace(anchor.request, on_all_inputs=True),
        )
        deadlines = for_trial(work.deadlines, work.preset, trial.latency_us)
        while True:
            with suppress(LaneSick):
                return await self._measuring.measure_alone(
                    self._measuring.choose_well_lane, finalist.attempt(), request, deadlines
                )

    async def _check_on_other_inputs(self) -> list[Trial]:
        """Return finalists that are right for all seeds: whichever is not makes way for the next best.

        One that was decided before has been checked then. Captured inputs have no seed, and without a reference and a
        check nothing can be found wrong.

        Raises:
            RequestFailed: with code ``source_changed``.
        """
        passed: dict[int, set[int]] = {seed: set() for seed in SEEDS}
        while True:
            found = await self._finalists()
            unchecked = {
                seed: [
                    trial
                    for trial in found
                    if trial.id not in passed[seed] and not TrialDetail.from_json(trial.detail).rounds
                ]
                for seed in SEEDS
            }
            # A seed's inputs are made once for all that wait for them, those that come up meanwhile included.
            seed = next((seed for seed in SEEDS if unchecked[seed]), None)
            if seed is None or self._work.captured or not self._work.kernel.is_judged:
                return found
            for trial in unchecked[seed]:
                result = await self._check_with_seed(trial, seed)
                if result is None:
                    passed[seed].add(trial.id)
                else:
                    await self._lose(trial, result)

    async def _check_with_seed(self, trial: Trial, seed: int) -> TrialResult | None:
        """Check one finalist on a seed's inputs; return the result that ends its trial, if there is one."""
        unit = requests.UnitRef(trial.artifact or "", TrialDetail.from_json(trial.detail).build or {})
        attempt, request = Attempt.finalist(trial, unit), requests.Check(unit)
        while True:
            try:
                result = await self._measuring.measure_alone(
                    self._measuring.choose_well_lane, attempt, request, self._work.deadlines, seed
                )
            except LaneSick:
                continue
            except CannotOpen as error:
                # Made of other numbers the problem may be one that its reference refuses. No config is to blame.
                _log.warning("seed_not_checked", kernel=self._work.kernel.name, seed=seed, reason=error.message)
                return None
            if result.outcome is Outcome.MEASURED:
                return None
            return replace(
                result, message=f"right for its first inputs, not for others (seed {seed}): {result.message}"
            )

    async def _contest(self, rounds: int, finalists: Sequence[_Finalist], ends_at: float) -> _Contest:
        """Let the finalists compete on one device; if that fails meanwhile, start again on another that works."""
        while True:
            lane = self._measuring.choose_well_lane()
            contest = _Contest(self._work, lane, self._measuring, [_Finalist.of(one.trial) for one in finalists])
            try:
                for turn in range(max(rounds, self._work.preset.most_rounds)):
                    is_doubtful = is_open(contest.rounds, contest.rivals) or is_implausible(
                        contest.rounds, contest.rivals
                    )
                    if turn >= rounds and not is_doubtful:
                        break
                    if turn >= FEWEST_ROUNDS and monotonic() > ends_at:
                        break
                    self._announce(turn, max(rounds, turn + 1), len(finalists))
                    await contest.run_round(turn)
            except LaneSick:
                continue
            return contest

    async def _decided(self, rounds: int) -> Trial | None:
        """Return the trial that won before, if nothing was measured since.

        Among many that are equally fast, a finalist's figure may now be above that of another: no reason to repeat.
        """
        if self._progress.has_measured:
            return None
        context = self._work.context
        seated = self._incumbent()
        if seated is None:
            best = self._store.best_trials(
                context,
                1,
                objective=self._work.objective,
                rounds=rounds,
                rounds_name=self._work.rounds_name,
            )
            if self._work.objective != LATENCY:
                # Rounds by one figure have had other finalists than those that are the best by another.
                top = self._store.best_trials(context, 1, objective=self._work.objective)
                best = best if best == top else []
            return best[0] if best and await self._is_admitted(best[0].config) else None
        won = self._store.get_trial(seated.trial) if await self._is_admitted(seated.config) else None
        return None if won is None or self._rounds(won) < rounds else won

    def _rounds(self, trial: Trial) -> int:
        """Return in how many rounds a trial was a finalist, by what decides here."""
        return int(trial.detail.get(self._work.rounds_name) or 0)

    def _cost(self, measured: Trial | TrialResult) -> float:
        cost = self._work.cost(measured)
        return math.inf if cost is None else cost

    async def _reinstate(self, best: Trial) -> None:
        """Make the decided trial the winner again, if another has won since: an edit was undone."""
        seated = self._incumbent()
        if seated is None or not await self._is_admitted(seated.config):
            publish_winner(self._publish, self._work.kernel, await self._decide(best), self._work.job.id)

    async def _decide(self, best: Trial) -> Winner:
        work = self._work
        await work.admission.store_verdict(work.kernel, work.problem, best.config)
        return await self._store.decide_winner(best.id, objective=work.objective)

    def _incumbent(self) -> Winner | None:
        """Return the winner of this very context."""
        incumbent = self._store.get_winner(self._work.key)
        return None if incumbent is None or incumbent.context != self._work.context else incumbent

    async def _is_admitted(self, config: Config) -> bool:
        (is_admitted,) = await self._work.admitted([config])
        return is_admitted

    async def _finalists(self) -> list[Trial]:
        """Return the fastest trials whose configs the space still holds, with the incumbent and the default."""
        work = self._work
        best = await admitted_prior_trials(
            self._store,
            work.admission,
            work.kernel,
            work.problem,
            work.context,
            work.objective,
            work.preset.finalists * MOST_TIMES,
        )
        best = [trial for trial in best if work.cost(trial) is not None]
        ranges = [_range(trial, self._cost(trial), by_energy=work.needs_energy) for trial in best]
        best = [best[place] for place in chosen(ranges, work.preset.finalists)]
        incumbent, default = self._incumbent(), work.kernel.default
        # The incumbent's figure may be that of a slower hour, and it gives way only where it is measured as well. With
        # the default, the speed-up over it is of the same quiet window.
        for config in (None if incumbent is None else incumbent.config, default):
            if config is None or any(trial.config == config for trial in best) or not await self._is_admitted(config):
                continue
            known = self._store.known_trial(work.context, config)
            if known is not None and known.outcome is Outcome.MEASURED and work.cost(known) is not None:
                best.append(known)
        return best

    def _announce(self, turn: int, rounds: int, finalists: int) -> None:
        self._publish(
            "refining",
            kernel=self._work.job.kernel,
            job=self._work.job.id,
            round=turn + 1,
            rounds=rounds,
            finalists=finalists,
        )

    async def _settle(self, contest: _Contest) -> None:
        found = figures(contest.rounds, contest.rivals)
        if contest.rivals and not any(rival in found for rival in contest.rivals):
            self.fault = (
                "the final round could measure nothing, as other programs used the device: the winner stands by its "
                "first measurement alone"
            )
        if None in found:
            self._progress.reference_us = found[None].latency_us
            self._progress.reference_spread_us = found[None].spread_us
        results = {one.trial.id: one.result(self._work, contest.rounds, found) for one in contest.finalists}
        still = {trial: result for trial, result in results.items() if result.outcome is Outcome.MEASURED}
        costs = {trial: cost for trial, result in still.items() if (cost := self._cost(result)) < math.inf}
        incumbent = self._incumbent()
        best = elected(costs, found, None if incumbent is None else incumbent.trial)
        if best is not None:
            config = next(one.trial.config for one in contest.finalists if one.trial.id == best)
            await self._work.admission.store_verdict(self._work.kernel, self._work.problem, config)
        winner = await self._store.settle_final_round(list(results.items()), best, objective=self._work.objective)
        for trial, result in results.items():
            if trial not in still:
                self._lost(result)
        if winner is None or best is None:
            return
        self._progress.lead(still[best])
        for one in contest.finalists:
            if one.trial.id in still and one.trial.config == self._work.kernel.default:
                self._progress.compare_with(results[one.trial.id])
        publish_winner(self._publish, self._work.kernel, winner, self._work.job.id)

    async def _lose(self, trial: Trial, result: TrialResult) -> None:
        """Record that a measured trial is none; the best that is left is the best."""
        await self._store.finish_trial(trial.id, result, objective=self._work.objective)
        self._lost(result)

    def _lost(self, result: TrialResult) -> None:
        best = self._store.best_trials(self._work.context, 1, objective=self._work.objective)
        self._progress.lose(result, best[0] if best else None)


class _Contest:
    """The rounds: each finalist once a round, in an order that rotates, so that a drift affects all alike."""

    def __init__(self, work: Work, lane: Lane, measuring: MeasureStage, finalists: Sequence[_Finalist]) -> None:
        self.finalists = list(finalists)
        self._work = work
        self._lane = lane
        self._measuring = measuring
        # Beside an application all are disturbed alike: figures are compared within a round.
        self._judges_contention = work.judge_contention and not lane.applications
        self._deadlines = for_trial(work.deadlines, work.preset, finalists[0].trial.latency_us)
        self.rounds: list[dict[int | None, float]] = []

    @property
    def rivals(self) -> list[int]:
        """The trials that still compete."""
        return [finalist.trial.id for finalist in self.finalists if finalist.failed is None]

    async def run_round(self, turn: int) -> None:
        """Measure every finalist that may still win, and in the first rounds the reference, once."""
        left = remaining(self.rounds, self.rivals)
        self.rounds.append({})
        first = turn % len(self.finalists)
        for finalist in self.finalists[first:] + self.finalists[:first]:
            if finalist.trial.id in left:
                await self._time(finalist)
        is_reference_known = turn >= FEWEST_ROUNDS and not is_implausible(self.rounds, [])
        if not is_latency(self._work.objective) or is_reference_known:
            # A reference has no other figure to compare.
            return
        try:
            async with self._measuring.holding(self._lane):
                await self._lane.use_cores(1 if self._lane.device.kind != "cpu" else ALL_CORES)
                request = requests.TimeReference(self._work.preset, self._judges_contention)
                measured, _ = await self._lane.exchange(request, self._work.deadlines)
        except WorkerError:
            # A reference that ran before and fails now decides nothing about the finalists.
            return
        if measured.latency_us is not None:
            self.rounds[-1][None] = measured.latency_us

    async def _time(self, finalist: _Finalist) -> None:
        known_us = finalist.trial.latency_us if self._work.needs_energy else None
        request = requests.Time(finalist.unit, self._work.preset, self._judges_contention, known_us)
        result = await self._measuring.measure_alone(lambda: self._lane, finalist.attempt(), request, self._deadlines)
        if result.outcome is not Outcome.MEASURED:
            finalist.failed = result
        elif (cost := self._work.cost_of_round(result)) is not None:
            self.rounds[-1][finalist.trial.id] = cost
            finalist.take(result, cost)


def _range(trial: Trial, cost: float, *, by_energy: bool) -> Range:
    """Return the costs that a measured config may have, by the interval and the spread of what it was measured by."""
    low, high = interval(trial.detail, trial.latency_us, by_energy=by_energy) or (1.0, 1.0)
    spread = 0.0 if by_energy or not trial.latency_us else (trial.spread_us or 0.0) / trial.latency_us
    return Range.of(cost, cost * spread, (cost * low, cost * high))
