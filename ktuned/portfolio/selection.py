"""The choice of the problems that are tuned, one after the other, when an application brings many. No IO.

An application may bring thousands of problems. Tuning one helps the problem itself and those that are like it. So the
next one is where most time is expected to be lost: a problem's weight (its share of the time) times its expected loss
with the config that it gets now. The loss is expected to grow with the distance, in octaves, from the nearest tuned
problem. The rate is learned: from what each tuned problem loses with the config of its nearest tuned neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping

from ktuned.model import Scalar, canonical

PRIOR_LOSS = 0.05
"""The loss per octave to begin with: a kernel's best config often stays the same."""

PRIOR_WEIGHT = 2.0
"""The number of observations that the prior counts for."""

MAX_LOSS = 1.0
"""The most that is expected: a config that works is rarely more than twice as slow as the best."""

OTHER_KIND = 4.0
"""Octaves for a string or bool that differs: another dtype changes the best config as much as 16 times the size."""

MAX_PROBLEMS = 2_000
"""Most problems that are known at once, those that take most time: together the others take a small part of it."""

MIN_LOSS = 0.002
"""The loss expected next to a tuned problem: less could not be seen in a measurement."""


def count_octaves(one: Mapping[str, Scalar], other: Mapping[str, Scalar]) -> float:
    """Return the distance of two problems: the octaves between their numbers, and more for other fields."""
    total = 0.0
    for name in one.keys() | other.keys():
        value, another = one.get(name), other.get(name)
        if value == another and type(value) is type(another):
            continue
        if type(value) in (int, float) and type(another) in (int, float) and min(value, another) > 0:  # type: ignore[type-var, operator]
            total += abs(math.log2(float(value) / float(another)))  # type: ignore[arg-type]
        else:
            total += OTHER_KIND
    return total


class Selection:
    """The problems that an application brings, and which of them to tune: at most ``max_tunings`` in all.

    ``wanted_loss`` is the expected mean loss at which no more are tuned. Weights may have any unit, for example
    launches times microseconds.
    """

    def __init__(self, max_tunings: int = 40, wanted_loss: float = 0.01) -> None:
        self.max_tunings = max_tunings
        self.wanted_loss = wanted_loss
        self._problems: dict[str, Mapping[str, Scalar]] = {}
        self._weights: dict[str, float] = {}
        self._nearest: dict[str, tuple[float, str]] = {}
        """For each problem the distance from the nearest tuned one, and that one."""
        self._tuned: dict[str, Mapping[str, Scalar]] = {}
        self._lost = PRIOR_LOSS * PRIOR_WEIGHT
        self._lost_over = PRIOR_WEIGHT

    @property
    def tunings(self) -> int:
        """The number of problems that were tuned."""
        return len(self._tuned)

    @property
    def loss_per_octave(self) -> float:
        """The expected loss per octave from a tuned problem."""
        return self._lost / self._lost_over

    def add_problem(self, problem: Mapping[str, Scalar], weight: float) -> None:
        """Add to a problem's weight."""
        key = canonical(problem)
        if key not in self._problems:
            if len(self._problems) >= MAX_PROBLEMS:
                self._forget_problem(min(self._weights, key=lambda other: (other in self._tuned, self._weights[other])))
            self._problems[key] = problem
            distances = ((count_octaves(problem, other), tuned) for tuned, other in self._tuned.items())
            self._nearest[key] = min(distances, default=(math.inf, ""))
        self._weights[key] = self._weights.get(key, 0.0) + weight

    def sum_weights_nearby(self) -> dict[str, float]:
        """Return for each tuned problem, by its canonical text, the weight of all to which it is the nearest."""
        found = dict.fromkeys(self._tuned, 0.0)
        for key, (_, tuned) in self._nearest.items():
            if tuned in found:
                found[tuned] += self._weights[key]
        return found

    def record_tuning(self, problem: Mapping[str, Scalar]) -> None:
        """Record that a problem was tuned."""
        self.add_problem(problem, 0.0)
        key = canonical(problem)
        self._tuned[key] = problem
        for other, known_problem in self._problems.items():
            self._nearest[other] = min(self._nearest[other], (count_octaves(problem, known_problem), key))

    def record_loss(self, problem: Mapping[str, Scalar], lost: float) -> None:
        """Learn from a tuned problem what it loses with the config of its nearest tuned neighbour, as a share."""
        neighbour = self.find_neighbour(problem)
        if neighbour is not None:
            self._lost += min(MAX_LOSS, max(0.0, lost))
            self._lost_over += count_octaves(problem, neighbour)

    def find_neighbour(self, problem: Mapping[str, Scalar]) -> Mapping[str, Scalar] | None:
        """Return the tuned problem that is nearest to another one, tuned or not."""
        return self._find_nearest(problem, self._tuned.keys() - {canonical(problem)})

    def find_nearest_tuned(self, problem: Mapping[str, Scalar]) -> Mapping[str, Scalar] | None:
        """Return the tuned problem whose config a problem gets until it has its own."""
        return self._find_nearest(problem, self._tuned)

    def _find_nearest(self, problem: Mapping[str, Scalar], among: Iterable[str]) -> Mapping[str, Scalar] | None:
        nearest = min(among, key=lambda key: (count_octaves(problem, self._tuned[key]), key), default=None)
        return None if nearest is None else self._tuned[nearest]

    def estimate_mean_loss(self) -> float:
        """Return the expected mean loss over all problems, by weight."""
        total = sum(self._weights.values())
        return sum(self._estimate_loss(key) * weight for key, weight in self._weights.items()) / (total or 1.0)

    def choose_next_problem(self, among: Container[str] | None = None) -> Mapping[str, Scalar] | None:
        """Return the problem that is expected to lose most time; ``None`` when enough are tuned.

        ``among`` has the canonical texts of the problems that can be tuned now; ``None`` means all.
        """
        if len(self._tuned) >= self.max_tunings or self.estimate_mean_loss() <= self.wanted_loss:
            return None
        waiting = [key for key in self._weights if key not in self._tuned and (among is None or key in among)]
        chosen = max(waiting, key=lambda key: (self._weights[key] * self._estimate_loss(key), key), default=None)
        return None if chosen is None else self._problems[chosen]

    def _estimate_loss(self, key: str) -> float:
        if key in self._tuned:
            return 0.0
        if not self._tuned:
            return MAX_LOSS
        return min(MAX_LOSS, MIN_LOSS + self.loss_per_octave * self._nearest[key][0])

    def _forget_problem(self, key: str) -> None:
        for known in (self._problems, self._weights, self._nearest, self._tuned):
            known.pop(key, None)
