"""The finalists' check on other inputs: a config that is right only for the inputs of its trial wins nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import structlog

from ktuned.fleet import CannotOpen, LaneSick
from ktuned.ipc import requests
from ktuned.model import Outcome, Trial, TrialResult
from ktuned.tuning.measure_stage import MeasureStage
from ktuned.tuning.trial_detail import TrialDetail
from ktuned.tuning.trial_lifecycle import Attempt
from ktuned.tuning.work import Work

_log = structlog.get_logger()

SEEDS = (1, 2)
"""Seeds of the inputs besides the trials' own, which is 0. Two: what one other set of numbers hides, two seldom do."""

Finalists = Callable[[], Awaitable[list[Trial]]]
"""Returns the present finalists; once one has lost, another takes its place."""

Lose = Callable[[Trial, TrialResult], Awaitable[None]]
"""Records the end of a trial that was measured, and is wrong."""


class SeedCheck:
    """Checks each finalist once for each seed; one that was decided before has been checked then."""

    def __init__(self, work: Work, measuring: MeasureStage, *, finalists: Finalists, lose: Lose) -> None:
        self._work = work
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
