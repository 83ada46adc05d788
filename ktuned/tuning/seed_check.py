"""The finalists' check on other inputs: a config that is right only for the inputs of its trial wins nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import structlog

from ktuned.fleet import CannotOpen, DeadlineExpired, Lane, LaneSick, Output, RequestFailed, WorkerDied
from ktuned.ipc import replies, requests
from ktuned.model import Event, Outcome, Trial, TrialResult
from ktuned.tuning.attempt import Attempt
from ktuned.tuning.measure_stage import MeasureStage
from ktuned.tuning.trial_detail import TrialDetail
from ktuned.tuning.work import Work

_log = structlog.get_logger()

SEEDS = (1, 2)
"""Seeds of the inputs besides the trials' own, which is 0. Two: what one other set of numbers hides, two seldom do."""

_TRIES = 3
"""Tries of one check whose worker was killed from outside, or may have been damaged by the config before."""

_EVENTS: Mapping[Outcome | None, Event] = {
    Outcome.MISMATCH: Event.WRONG,
    Outcome.LAUNCH_ERROR: Event.RAISED,
    Outcome.UNSUPPORTED: Event.CANNOT_RUN,
}

Finalists = Callable[[], Awaitable[list[Trial]]]
"""Returns the present finalists; once one has lost, another takes its place."""

Lose = Callable[[Trial, TrialResult], Awaitable[None]]
"""Records the end of a trial that was measured, and is wrong."""


class SeedCheck:
    """Checks each finalist once for each seed; one that was decided before has been checked then."""

    def __init__(
        self, work: Work, lanes: Sequence[Lane], measuring: MeasureStage, *, finalists: Finalists, lose: Lose
    ) -> None:
        self._work = work
        self._lanes = lanes
        self._measuring = measuring
        self._finalists = finalists
        self._lose = lose
        self._passed: dict[int, set[int]] = {seed: set() for seed in SEEDS}

    async def run(self) -> list[Trial]:
        """Return finalists that are right for all seeds: whichever is not makes way for the next best.

        Captured inputs have no seed, and without a reference and a check nothing can be found wrong.

        Raises:
            RequestFailed: with code ``source_changed``.
        """
        while True:
            found = await self._finalists()
            # A seed's inputs are made once for all that wait for them, those that come up meanwhile included.
            seed = next((seed for seed in SEEDS if self._waiting(found, seed)), None)
            if seed is None or self._work.captured or not self._work.kernel.is_judged:
                return found
            for trial in self._waiting(found, seed):
                result = await self._check(trial, seed)
                if result is None:
                    self._passed[seed].add(trial.id)
                else:
                    await self._lose(trial, result)

    def _waiting(self, found: Sequence[Trial], seed: int) -> list[Trial]:
        return [
            trial
            for trial in found
            if trial.id not in self._passed[seed] and not TrialDetail.from_json(trial.detail).rounds
        ]

    async def _check(self, trial: Trial, seed: int) -> TrialResult | None:
        """Check one finalist; return the result that ends its trial, if there is one."""
        unit = requests.UnitRef(trial.artifact or "", TrialDetail.from_json(trial.detail).build or {})
        attempt = Attempt.again(trial, unit)
        for left in reversed(range(_TRIES)):
            lane = next((lane for lane in self._lanes if not lane.health.is_sick), self._lanes[0])
            try:
                async with self._measuring.holding(lane, seed):
                    is_doubtful, lane.is_doubtful = lane.is_doubtful, False
                    try:
                        measured, output = await lane.exchange(requests.Check(unit), self._work.deadlines)
                    except (WorkerDied, DeadlineExpired, RequestFailed) as error:
                        if isinstance(error, RequestFailed) and error.code == "source_changed":
                            raise
                        if left and (is_doubtful or (isinstance(error, WorkerDied) and error.is_outside_kill)):
                            continue
                        return attempt.failure(error, expired=Event.EXPIRED, refused=Event.RAISED)
                    event = _EVENTS.get(measured.outcome)
                    if event is None:
                        return None
                    if measured.is_unsound or is_doubtful or measured.outcome is Outcome.LAUNCH_ERROR:
                        lane.drop()
                    else:
                        lane.is_doubtful = measured.is_guilty
                    if not (left and is_doubtful):
                        return self._ended(attempt, event, measured, output, seed)
            except LaneSick:
                continue
            except CannotOpen as error:
                # Made of other numbers the problem may be one that its reference refuses. No config is to blame.
                _log.warning("seed_not_checked", kernel=self._work.kernel.name, seed=seed, reason=error.message)
                return None
        return None

    def _ended(
        self, attempt: Attempt, event: Event, measured: replies.Measurement, output: Output, seed: int
    ) -> TrialResult:
        message = f"right for its first inputs, not for others (seed {seed}): {measured.message}"
        return attempt.result(event, message, detail=TrialDetail.of(measured), output=output)
