"""Readings of an energy counter while a kernel runs over and over, and the energy of one launch that they show. No IO.

Counters move in steps (an H100's some ten times a second), so that a reading alone may be a whole step old. The
energy between two steps is known, and so is, to one reading, how many launches lie between them: the longer the run,
the less that one reading matters.
"""

from __future__ import annotations

import math
from itertools import pairwise

from ktuned.ipc import requests
from ktuned.model import Record, record
from ktuned.worker.race import MARGIN, RELATIVE_CI, Cost, Ending

SETTLED_S = 0.1
"""Running before the first reading counts: the power follows the kernel, and counters follow the power."""

PIECES = 8
"""Parts into which the steps are divided to see how much their energies differ."""

FEWEST_PIECES = 3
"""Parts without which nothing is known of that."""

PATIENCE = 6
"""Times the time for one config after which a counter that has not moved twice counts as broken."""

_T95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
"""Student's t for 95 % by the number of values."""


class CounterStopped(Exception):
    """The energy counter does not move while a kernel runs."""


@record
class Energy(Record):
    """The energy of one launch in J, with its 95 % interval."""

    joules: float
    low: float
    high: float


@record
class _Step(Record):
    """A reading in which the counter had moved: launches so far, joules, and the launches since the reading before."""

    launches: float
    joules: float
    late_by: float


class EnergyTrace:
    """One config's readings: ``take`` each, until ``ending`` is set.

    ``limit_s`` is the time for it, ``cost`` the cost of a launch that takes so many joules; ``apart_j`` is the part of
    each launch's energy that is not the kernel's.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        incumbent: requests.Incumbent | None = None,
        cost: Cost = lambda joules: joules,
        apart_j: float = 0.0,
    ) -> None:
        self.ending: Ending | None = None
        self._limit_s = limit_s
        self._incumbent = incumbent
        self._cost = cost
        self._apart_j = apart_j
        self._steps: list[_Step] = []
        self._last: tuple[float, float] | None = None

    def wants_more(self) -> bool:
        """Return whether more readings are wanted."""
        return self.ending is None

    def add_reading(self, launches: float, joules: float, elapsed_s: float) -> None:
        """Take a reading after so many launches, ``elapsed_s`` after the first one.

        Raises:
            CounterStopped: there is nothing to be learned from the counter.
        """
        last, self._last = self._last, (launches, joules)
        if last is not None and joules > last[1] and elapsed_s >= SETTLED_S:
            self._steps.append(_Step(launches, joules, launches - last[0]))
            self._decide_ending(elapsed_s)
        elif len(self._steps) < 2 and elapsed_s > PATIENCE * self._limit_s:
            raise CounterStopped(f"it did not move in {elapsed_s:.1f} s of work")

    def _decide_ending(self, elapsed_s: float) -> None:
        found = self.energy
        if found is None:
            return
        if self._incumbent is not None and len(self._steps) > FEWEST_PIECES:
            lowest = min(
                (cost for end in (found.low, found.high) if (cost := self._cost(end)) is not None), default=0.0
            )
            if lowest > self._incumbent.high * (1 + MARGIN):
                self.ending = Ending.BEATEN
                return
        if elapsed_s >= self._limit_s:
            self.ending = Ending.OUT_OF_TIME
        elif len(self._steps) > PIECES and (found.high - found.low) / 2 <= RELATIVE_CI * found.joules:
            self.ending = Ending.KNOWN

    @property
    def energy(self) -> Energy | None:
        """The energy of one launch, as far as it is known; ``None`` before the counter has moved twice."""
        steps = self._steps
        if len(steps) < 2 or steps[-1].launches <= steps[0].launches:
            return None
        first, last = steps[0], steps[-1]
        launches = last.launches - first.launches
        joules = (last.joules - first.joules) / launches
        # Each end is late by a part of the launches between two readings.
        doubt = joules * (first.late_by + last.late_by) / 2 / launches
        energies = self._split_energies()
        if len(energies) >= FEWEST_PIECES:
            # It brings fractions and decimal: for the few that measure energy.
            from statistics import stdev

            error = _T95[len(energies)] * stdev(energies) / math.sqrt(len(energies))
            doubt = max(doubt, error)
        own = joules - self._apart_j
        return Energy(own, own - doubt, own + doubt)

    def _split_energies(self) -> list[float]:
        """Return the energies of a launch in equal parts of the run."""
        steps = self._steps
        count = min(PIECES, len(steps) - 1)
        ends = [steps[round(place * (len(steps) - 1) / count)] for place in range(count + 1)]
        return [
            (after.joules - before.joules) / (after.launches - before.launches)
            for before, after in pairwise(ends)
            if after.launches > before.launches
        ]
