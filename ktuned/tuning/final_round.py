"""The finalists' decision: the best few are measured again, in turns, while nothing compiles."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from time import monotonic
from typing import Any

from ktuned.fleet import DeadlineExpired, Fleet, Lane, LaneSick, WorkerDied, is_outside_kill
from ktuned.model import Event, Life, Outcome, Trial, TrialResult, WorkerError
from ktuned.store import Store
from ktuned.tuning.attempt import Attempt, Progress, Work
from ktuned.tuning.deadlines import for_trial
from ktuned.tuning.job_events import Publish, publish_winner
from ktuned.tuning.measure_stage import Measuring


class Deciding:
    """Measures a job's finalists again and makes the best of them the winner."""

    def __init__(
        self,
        work: Work,
        progress: Progress,
        fleet: Fleet,
        lanes: Sequence[Lane],
        store: Store,
        measuring: Measuring,
        publish: Publish,
    ) -> None:
        self._work = work
        self._progress = progress
        self._fleet = fleet
        self._lanes = lanes
        self._store = store
        self._measuring = measuring
        self._publish = publish

    async def run(self) -> None:
        """Decide, unless there is nothing to decide or it has been decided."""
        finalists = self._finalists()
        rounds = self._work.preset.finalist_rounds
        if not finalists:
            return
        if all(trial.detail.get("rounds", 0) >= rounds for trial in finalists):
            decided: Trial | None = min(finalists, key=lambda trial: trial.latency_us or 0.0)
        else:
            decided = self._decided(rounds)
        if decided is not None:
            self._progress.reference_us = decided.detail.get("reference_us")
            await self._seat_again(decided)
            return
        began = monotonic()
        async with self._fleet.gate.quiet():
            contest = await self._contest(rounds, finalists)
        self._progress.spend("finalists_s", monotonic() - began)
        await self._settle(contest)

    async def _contest(self, rounds: int, finalists: list[Trial]) -> _Contest:
        """Let the finalists compete on one device; if that fails meanwhile, all over again on another that works."""
        while True:
            lane = next((lane for lane in self._lanes if not lane.health.is_sick), self._lanes[0])
            contest = _Contest(self._work, lane, self._measuring, finalists)
            try:
                for turn in range(rounds):
                    self._announce(turn, rounds, finalists)
                    await contest.run_round(turn)
            except LaneSick:
                continue
            return contest

    def _decided(self, rounds: int) -> Trial | None:
        """Return who won before, if nothing was measured since.

        Where many are as fast a finalist's figure may now be above that of one that was none: no reason to ask anew.
        """
        if self._progress.has_measured:
            return None
        context = self._work.context
        seated = self._store.winner(context.key)
        if seated is None or seated.context != context:
            return next(iter(self._store.best_trials(context, 1, rounds=rounds)), None)
        won = self._store.trial(seated.trial)
        return won if won is not None and won.detail.get("rounds", 0) >= rounds else None

    async def _seat_again(self, best: Trial) -> None:
        """Seat again what was decided on this ground, if another has won since: an edit was undone."""
        context = self._work.context
        seated = self._store.winner(context.key)
        if seated is None or seated.context != context:
            publish_winner(self._publish, await self._store.decide_winner(best.id), self._work.job.id)

    def _finalists(self) -> list[Trial]:
        best = self._store.best_trials(self._work.context, self._work.preset.finalists)
        default = self._work.kernel.default
        if default is not None and all(trial.config != default for trial in best):
            known = self._store.known_trial(self._work.context, default)
            # The default runs along, so that the speed-up over it is told from the same quiet window.
            if known is not None and known.outcome is Outcome.MEASURED:
                best.append(known)
        return best

    def _announce(self, turn: int, rounds: int, finalists: list[Trial]) -> None:
        self._publish(
            "refining",
            kernel=self._work.job.kernel,
            job=self._work.job.id,
            round=turn + 1,
            rounds=rounds,
            finalists=len(finalists),
        )

    async def _settle(self, contest: _Contest) -> None:
        self._progress.reference_us = contest.reference_us
        for trial in contest.finalists:
            result = contest.result(trial)
            await self._store.finish_trial(trial.id, result)
            if result.outcome is not Outcome.MEASURED:
                self._progress.outcomes[Outcome.MEASURED] -= 1
                self._progress.outcomes[result.outcome] += 1
        still = [trial for trial in contest.finalists if contest.result(trial).outcome is Outcome.MEASURED]
        if not still:
            return
        best = min(still, key=lambda trial: contest.result(trial).latency_us or 0.0)
        winner = await self._store.decide_winner(best.id)
        self._progress.best_us = winner.latency_us
        for trial in still:
            if trial.config == self._work.kernel.default:
                self._progress.default_us = contest.result(trial).latency_us
        publish_winner(self._publish, winner, self._work.job.id)


class _Contest:
    """The rounds: each finalist once a round, in an order that turns, so that a drift hits all alike."""

    def __init__(self, work: Work, lane: Lane, measuring: Measuring, finalists: list[Trial]) -> None:
        self.finalists = finalists
        self._work = work
        self._lane = lane
        self._measuring = measuring
        self._deadlines = for_trial(work.deadlines, work.preset, finalists[0].latency_us)
        self._medians: dict[int, list[float]] = {trial.id: [] for trial in finalists}
        self._spreads: dict[int, list[float]] = {trial.id: [] for trial in finalists}
        self._failed: dict[int, TrialResult] = {}
        self._reference: list[float] = []

    @property
    def reference_us(self) -> float | None:
        """What the reference took, measured among the finalists; ``None`` without one."""
        return statistics.median(self._reference) if self._reference else None

    async def run_round(self, turn: int) -> None:
        """Measure every finalist, and the reference, once."""
        first = turn % len(self.finalists)
        for trial in self.finalists[first:] + self.finalists[:first]:
            if trial.id not in self._failed:
                await self._time(trial)
        async with self._lane.seat(self._work.job.id):
            try:
                await self._measuring.open(self._lane)
                request = self._measuring.request("time_reference", self._lane, _attempt(self.finalists[0]))
                answer, _ = await self._lane.ask(request, self._work.deadlines)
            except WorkerError:
                # A reference that ran before and fails now decides nothing about the finalists.
                return
        if answer["latency_us"] is not None:
            self._reference.append(answer["latency_us"])

    async def _time(self, trial: Trial) -> None:
        attempt = _attempt(trial)
        attempt.life = Life(Outcome.MEASURED)
        attempt.life.tell(Event.CHOSEN)
        async with self._lane.seat(self._work.job.id):
            await self._measuring.open(self._lane)
            try:
                answer, output = await self._lane.ask(
                    self._measuring.request("time", self._lane, attempt), self._deadlines
                )
            except (WorkerDied, DeadlineExpired) as error:
                # One that was killed from outside ran before and will run in the other rounds: this one is lost, as a
                # disturbed one is.
                if not is_outside_kill(error):
                    self._failed[trial.id] = attempt.failure(error, expired=Event.EXPIRED, refused=Event.RAISED)
                return
        if answer["outcome"] == Outcome.LAUNCH_ERROR:
            self._lane.drop()
            self._failed[trial.id] = attempt.result(Event.RAISED, answer["message"], output=output)
        elif answer["latency_us"] is not None:
            self._medians[trial.id].append(answer["latency_us"])
            self._spreads[trial.id].append(answer["spread_us"])

    def result(self, trial: Trial) -> TrialResult:
        """Return what the rounds say of a finalist: the median of its medians; its old figure if all were disturbed."""
        if trial.id in self._failed:
            return self._failed[trial.id]
        medians = self._medians[trial.id]
        detail: dict[str, Any] = {**trial.detail, "rounds": self._work.preset.finalist_rounds}
        detail |= {"round_medians_us": medians, "first_latency_us": trial.latency_us}
        if self.reference_us is not None:
            detail["reference_us"] = self.reference_us
        return TrialResult(
            Outcome.MEASURED,
            statistics.median(medians) if medians else trial.latency_us,
            statistics.median(self._spreads[trial.id]) if medians else trial.spread_us,
            trial.compile_s,
            trial.lane_s,
            artifact=trial.artifact,
            detail=detail,
        )


def _attempt(trial: Trial) -> Attempt:
    build = trial.detail.get("build", {})
    return Attempt(trial.id, trial.config, build, trial.artifact or "", compile_s=trial.compile_s, lane_s=trial.lane_s)
