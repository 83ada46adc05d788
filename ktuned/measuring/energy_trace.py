"""Readings of an energy counter while a kernel runs over and over, and the energy of a launch that they show. No IO.

A counter moves in steps, an H100's some ten times a second, so that a single reading may be a whole step old. But the
energy between two steps is exact, and the number of launches between them is known to within one reading. The longer
the run, the less that one reading matters.
"""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from ktuned.ipc import replies
from ktuned.measuring.race import MARGIN, RELATIVE_CI, Cost, Ending

SETTLED_S = 0.1
"""Time in s before the first reading counts: power follows the kernel with a delay, and the counter follows it."""

PIECES = 8
"""Number of parts into which the run is divided, to see how much the energy of a launch varies."""

FEWEST_PIECES = 3
"""With fewer parts, the variation is unknown."""

PATIENCE = 6
"""Multiple of a config's time after which a counter that has not moved twice counts as broken."""

_T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
"""Student's t for 95 %, by the number of values."""


class CounterStopped(Exception):
    """The energy counter does not move while a kernel runs."""


class Energy(msgspec.Struct, frozen=True):
    """The energy of one launch in J, with its 95 % interval."""

    joules: float
    low: float
    high: float


class _Step(msgspec.Struct, frozen=True):
    """A reading in which the counter had moved: launches so far, joules, and launches since the reading before."""

    launches: float
    joules: float
    late_by: float


class EnergyTrace:
    """One config's readings: :meth:`add_reading` takes each, until ``ending`` is set.

    Args:
        limit_s: the time for the config, in s.
        incumbent: the best config so far, to race against.
        cost: returns the cost of a launch by its energy in J.
        restoring_j: the part of each launch's energy that is not the kernel's, in J.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        incumbent: replies.CostRange | None = None,
        cost: Cost = lambda joules: joules,
        restoring_j: float = 0.0,
    ) -> None:
        self.ending: Ending | None = None
        self._limit_s = limit_s
        self._incumbent = incumbent
        self._cost = cost
        self._restoring_j = restoring_j
        self._steps: list[_Step] = []
        self._last: tuple[float, float] | None = None

    def wants_reading(self) -> bool:
        """Return whether to take more readings."""
        return self.ending is None

    def add_reading(self, launches: float, joules: float, elapsed_s: float) -> None:
        """Add a reading of ``joules`` after so many launches, ``elapsed_s`` after the first launch.

        Raises:
            CounterStopped: the counter does not move.
        """
        last, self._last = self._last, (launches, joules)
        if last is not None and joules > last[1] and elapsed_s >= SETTLED_S:
            self._steps.append(_Step(launches, joules, launches - last[0]))
            self._decide_ending(elapsed_s)
        elif len(self._steps) < 2 and elapsed_s > PATIENCE * self._limit_s:
            raise CounterStopped(f"it did not move in {elapsed_s:.1f} s of work")

    def _decide_ending(self, elapsed_s: float) -> None:
        energy = self.energy
        if energy is None:
            return
        if self._incumbent is not None and len(self._steps) > FEWEST_PIECES:
            lowest = min(
                (cost for end in (energy.low, energy.high) if (cost := self._cost(end)) is not None), default=0.0
            )
            if lowest > self._incumbent.high * (1 + MARGIN):
                self.ending = Ending.BEATEN
                return
        if elapsed_s >= self._limit_s:
            self.ending = Ending.OUT_OF_TIME
        elif len(self._steps) > PIECES and (energy.high - energy.low) / 2 <= RELATIVE_CI * energy.joules:
            self.ending = Ending.KNOWN

    @property
    def energy(self) -> Energy | None:
        """The energy of one launch as known so far; ``None`` until the counter has moved twice."""
        steps = self._steps
        if len(steps) < 2 or steps[-1].launches <= steps[0].launches:
            return None
        first, last = steps[0], steps[-1]
        launches = last.launches - first.launches
        joules = (last.joules - first.joules) / launches
        # At each end, the count of launches is uncertain by those since the previous reading.
        doubt = joules * (first.late_by + last.late_by) / 2 / launches
        energies = self._compute_piece_energies()
        if len(energies) >= FEWEST_PIECES:
            # Imported here because it loads fractions and decimal, and few tunings measure energy.
            from statistics import stdev

            error = _T95[len(energies)] * stdev(energies) / math.sqrt(len(energies))
            doubt = max(doubt, error)
        kernel_j = joules - self._restoring_j
        return Energy(kernel_j, kernel_j - doubt, kernel_j + doubt)

    def _compute_piece_energies(self) -> list[float]:
        """Return the energy of a launch in each of several equal parts of the run."""
        steps = self._steps
        count = min(PIECES, len(steps) - 1)
        ends = [steps[round(place * (len(steps) - 1) / count)] for place in range(count + 1)]
        return [
            (after.joules - before.joules) / (after.launches - before.launches)
            for before, after in pairwise(ends)
            if after.launches > before.launches
        ]
