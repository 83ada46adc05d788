"""Genetic search: the fastest configs found so far breed the next ones.

A steady-state algorithm (Syswerda, 1991) rather than generations, because outcomes come one by one. Each choice is a
child of two parents that won small tournaments among the best, with one mutation on average. Each strategy has a module
of its own, even a short one.
"""

from __future__ import annotations

from ktuned.search.chain import Point
from ktuned.search.points import PointStrategy

POPULATION = 20
"""Number of fastest configs that may become parents."""

TOURNAMENT = 2
"""Candidates for each parent, of which the fastest is chosen."""

FIRST = 16
"""Random configs before the first child."""

MUTATIONS = 1.0
"""Average number of knobs that are changed at random in a child."""


class Genetic(PointStrategy):
    """Breeds configs; needs nothing but the standard library."""

    def choose(self) -> Point | None:
        """Return a child of two good configs, or a random config if no child is new."""
        if len(self.taken) < FIRST or len(self.logs) < 2:
            return self.draw_untried()
        population = self.fastest_points(POPULATION)
        return (
            self.cross_points(self._pick_parent(population), self._pick_parent(population), MUTATIONS)
            or self.draw_untried()
        )

    def _pick_parent(self, population: list[Point]) -> Point:
        """Return the winner of a tournament among a population that is sorted, the fastest first."""
        return population[min(int(self.random.random() * len(population)) for _ in range(TOURNAMENT))]
