"""The choice of the problems to tune, one after the other, if an application has many. No IO.

An application may have thousands of problems. Tuning one of them also helps similar ones. So the next problem is the
one with the largest expected loss of time: its weight (its share of the time) times its expected loss with the config
that it gets now. The expected loss grows with the distance, in octaves, from the nearest tuned problem. The rate is
learned from the loss of each tuned problem with the config of its nearest tuned neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

from ktuned.model import Scalar, canonical
from ktuned.store import count_octaves

PRIOR_LOSS = 0.05
"""The loss per octave that is expected at first. It is small, as a kernel's best config often stays the same."""

PRIOR_WEIGHT = 2.0
"""The prior counts as much as observations over this many octaves."""

MAX_LOSS = 1.0
"""The largest expected loss: a config that works rarely takes more than twice as long as the best."""

MAX_PROBLEMS = 2_000
"""Most problems that are known at once: those that take the most time. All others together take little of it."""

MIN_LOSS = 0.002
"""The loss that is expected close to a tuned problem. A smaller loss could not be measured."""


class KeySelection:
    """The problems of an application, and the choice of those to tune.

    Weights may have any unit, for example launches times microseconds.

    Args:
        max_tunings: The most problems that are tuned.
        wanted_loss: The expected mean loss at which no more problems are tuned.
    """

    def __init__(self, max_tunings: int = 40, wanted_loss: float = 0.01) -> None:
        self.max_tunings = max_tunings
        self.wanted_loss = wanted_loss
        self._problems: dict[str, Mapping[str, Scalar]] = {}
        self._weights: dict[str, float] = {}
        self._nearest: dict[str, tuple[float, str]] = {}
        """For each problem the nearest tuned problem, preceded by the distance to it."""
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
        """Add a problem, or add to the weight of a known problem."""
        key = canonical(problem)
        if key not in self._problems:
            if len(self._problems) >= MAX_PROBLEMS:
                self._forget_problem(min(self._weights, key=lambda other: (other in self._tuned, self._weights[other])))
            self._problems[key] = problem
            distances = ((count_octaves(problem, other), tuned) for tuned, other in self._tuned.items())
            self._nearest[key] = min(distances, default=(math.inf, ""))
        self._weights[key] = self._weights.get(key, 0.0) + weight

    def record_tuning(self, problem: Mapping[str, Scalar]) -> None:
        """Record that a problem was tuned."""
        self.add_problem(problem, 0.0)
        key = canonical(problem)
        self._tuned[key] = problem
        for other, known_problem in self._problems.items():
            self._nearest[other] = min(self._nearest[other], (count_octaves(problem, known_problem), key))

    def record_loss(self, problem: Mapping[str, Scalar], lost: float) -> None:
        """Learn from a tuned problem's loss with the config of its nearest tuned neighbour, given as a share."""
        neighbour = self.find_neighbour(problem)
        if neighbour is not None:
            self._lost += min(MAX_LOSS, max(0.0, lost))
            self._lost_over += count_octaves(problem, neighbour)

    def find_neighbour(self, problem: Mapping[str, Scalar]) -> Mapping[str, Scalar] | None:
        """Return the tuned problem that is nearest to a problem, which may itself be tuned; never that problem."""
        others = self._tuned.keys() - {canonical(problem)}
        nearest = min(others, key=lambda key: (count_octaves(problem, self._tuned[key]), key), default=None)
        return None if nearest is None else self._tuned[nearest]

    def estimate_mean_loss(self) -> float:
        """Return the expected mean loss over all problems, by weight."""
        total = sum(self._weights.values())
        return sum(self._estimate_loss(key) * weight for key, weight in self._weights.items()) / (total or 1.0)

    def choose_next_problem(self, among: Container[str] | None = None) -> Mapping[str, Scalar] | None:
        """Return the problem with the largest expected loss of time; ``None`` if enough problems are tuned.

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
