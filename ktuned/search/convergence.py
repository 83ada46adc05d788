"""Convergence of a search that a model guides: the chance that some untried config is more than 1 % faster.

A model estimates its error for each config, but its errors about similar configs are correlated. So the most promising
configs are judged together, by landscapes drawn from the model. The model's estimate of its own error may be too small:
it is scaled up by the surprises in this search so far, and the chance is averaged over several further scales.

Imported only by strategies that need NumPy.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ktuned.search.chain import Point
from ktuned.search.features import Floats
from ktuned.search.gaussian_process import GaussianProcess

FASTER = 0.01
"""Relative gain that is worth a longer search."""

TOGETHER = 300
"""Number of most promising configs that are judged together. The time grows with its cube."""

LANDSCAPES = 100
"""Landscapes that are drawn for each scale. They determine a chance of a tenth to 0.03."""

SURPRISES = 24
"""Number of latest choices by whose outcomes the model's own uncertainty is judged."""

MOST_SURPRISED = 6.0
"""Surprises are capped at this many deviations: a step in the landscape is not noise of that size."""

SCALES = np.array([[0.75], [0.85], [0.93], [1.00], [1.07], [1.16], [1.29], [1.54]])
"""Equally likely factors of the model's uncertainty, from Student's distribution with 10 degrees of freedom. The
surprises alone are not enough: they come from choices that resemble known configs, and a model errs more about others.
"""


class Surprises:
    """How much faster than expected the model's choices were, in the model's own deviations."""

    def __init__(self) -> None:
        self._expected: dict[Point, tuple[float, float]] = {}
        self._squares: deque[float] = deque(maxlen=SURPRISES)

    def expect_outcome(self, point: Point, log: float, deviation: float) -> None:
        """Keep the log latency and the deviation that the model expects of a config that it has chosen."""
        self._expected[point] = log, deviation

    def record_outcome(self, point: Point, log: float | None) -> None:
        """Record a config's log latency; ``None`` if it was not measured."""
        expected = self._expected.pop(point, None)
        if expected is not None and log is not None:
            self._squares.append(min(max((expected[0] - log) / expected[1], 0.0), MOST_SURPRISED) ** 2)

    @property
    def scale(self) -> float:
        """The factor by which the model underestimates its deviation, judged by choices faster than expected; ≥ 1."""
        # If the model judges a normal distribution well, half of the outcomes are faster, and the mean square is 1/2.
        return math.sqrt(max(1.0, 2 * sum(self._squares) / max(1, len(self._squares))))


class UntriedConfigs(NamedTuple):
    """Configs that were not tried: their features, and the number of configs in the space that each represents."""

    features: Floats
    weights: Floats


def chance_of_improvement(
    model: GaussianProcess,
    untried: UntriedConfigs,
    goal: float,
    *,
    scale: float,
    chance_to_work: Callable[[Floats], Floats],
    seed: int,
) -> float:
    """Return an upper limit of the chance that some untried config is faster than ``goal``.

    Both the model's uncertainty and the variance that no feature explains count: in a rugged space, a config may be
    fast by luck.

    Args:
        model: The model, conditioned on all measurements.
        untried: The untried configs.
        goal: The value to fall below, in the model's units.
        scale: See :attr:`Surprises.scale`.
        chance_to_work: Returns the chance that configs do not fail, by their features.
        seed: The seed of the landscapes.
    """
    if not len(untried.features):
        return 0.0
    works = chance_to_work(untried.features)
    predicted = model.predict(untried.features)
    deviation = scale * np.sqrt(predicted.variance + model.unexplained)
    alone = normal_tail((predicted.mean - goal) / (SCALES * deviation)) * works * untried.weights
    order = np.argsort(-alone.sum(0))
    together, rest = order[:TOGETHER], order[TOGETHER:]
    likeliest = UntriedConfigs(untried.features[together], untried.weights[together])
    found = _chance_of_any(model, likeliest, goal, scale, works[together], seed) + alone[:, rest].sum(1)
    return float(np.minimum(found, 1.0).mean())


def _chance_of_any(
    model: GaussianProcess, likeliest: UntriedConfigs, goal: float, scale: float, works: Floats, seed: int
) -> Floats:
    """Return the chance that one of some configs is faster than ``goal``, for each of :data:`SCALES`.

    In each landscape, a config has its own random deviation, and so has every config that it represents.
    """
    try:
        factor = np.linalg.cholesky(model.covariance(likeliest.features) + 1e-6 * np.eye(len(likeliest.features)))
    except np.linalg.LinAlgError:
        return np.ones(len(SCALES))
    drawn = np.random.default_rng(seed).standard_normal((LANDSCAPES, len(likeliest.features))) @ factor.T
    above = model.predict(likeliest.features).mean - goal
    luck = math.sqrt(model.unexplained) + 1e-9
    found = []
    for width in scale * SCALES[:, 0]:
        chances = works * normal_tail((above + width * drawn) / (width * luck))
        none = np.exp(np.log1p(-np.minimum(chances, 1 - 1e-9)) @ likeliest.weights)
        found.append(float(1 - none.mean()))
    return np.array(found)


def normal_tail(z: Floats) -> Floats:
    """Return a normal variable's chance to exceed z, to 0.3 % even if it is tiny (Börjesson and Sundberg, 1979)."""
    size = np.abs(z)
    tail = np.exp(-0.5 * size**2) / math.sqrt(2 * math.pi) / (0.661 * size + 0.339 * np.sqrt(size**2 + 5.51))
    return np.asarray(np.where(z < 0, 1 - tail, tail))
