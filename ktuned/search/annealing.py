"""Simulated annealing: a walk that accepts slower configs, ever less often.

After Kirkpatrick, Gelatt and Vecchi, "Optimization by Simulated Annealing" (1983), on log latencies: a config that is
10 % slower is as hard to accept at 10 µs as at 10 ms. The walk takes one step at a time. If more configs are asked for
before an outcome is known, they are further neighbours of its present place.
"""

from __future__ import annotations

import math

from ktuned.search.chain import Point
from ktuned.search.points import PointStrategy

FIRST = 10
"""Random configs before the walk starts at the fastest of them."""

HOT = 0.5
"""Temperature at the start: a config that is 65 % slower is accepted with probability 1/e."""

COLD = 0.01
"""Lowest temperature."""

COOLING = 0.97
"""Factor of the temperature after each outcome: it falls from hot to cold within 130 outcomes."""

RESTART_AFTER = 30
"""Outcomes without an improvement after which the walk returns to the fastest config."""


class Annealing(PointStrategy):
    """Walks from neighbour to neighbour while it cools."""

    _here: Point | None = None
    _temperature = HOT
    _best_log = math.inf
    _outcomes_since_best = 0

    def choose(self) -> Point | None:
        """Return an untried neighbour of the walk's present place, or a random config if there is none."""
        if len(self.taken) < FIRST or self._here is None:
            return self.draw_untried()
        return self.draw_untried_neighbour(self._here) or self.draw_untried()

    def on_outcome(self, point: Point) -> None:
        """Move to the config if it is faster, or if chance and temperature permit it."""
        if point not in self.logs:
            return
        log = self.logs[point]
        self._outcomes_since_best = 0 if log < self._best_log else self._outcomes_since_best + 1
        self._best_log = min(self._best_log, log)
        if len(self.taken) < FIRST or self._here is None or self._outcomes_since_best > RESTART_AFTER:
            self._here = self.fastest_points(1)[0]
            self._outcomes_since_best = 0
            return
        self._temperature = max(COLD, self._temperature * COOLING)
        slower = log - self.logs[self._here]
        if slower <= 0 or self.random.random() < math.exp(-slower / self._temperature):
            self._here = point
