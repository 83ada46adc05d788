"""Convergence of a search that a model guides: the chance that some untried config is more than 1 % faster.

A model knows how much it may err about each config, and errs about all that is unlike what was tried at once; so the
configs that promise most are judged together, by landscapes that are drawn from it. How much it misjudges what it has
not seen is unknown: that follows from its own surprises in this search, and the chance is a mean over more.

Imported only by strategies that need NumPy.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ktuned.search.chain import Code
from ktuned.search.features import Floats
from ktuned.search.transfer import TransferModel

FASTER = 0.01
"""Relative gain that is worth a longer search."""

TOGETHER = 300
"""Configs whose chances are judged together, those that promise most: it takes their number's cube."""

LANDSCAPES = 100
"""Landscapes that are drawn for that, for each scale: a chance of a tenth is known to 0.03."""

SURPRISES = 24
"""Choices by whose outcomes the model's own doubt is judged: the latest."""

MOST_SURPRISED = 6.0
"""Deviations beyond which an outcome says no more: a step of the landscape is not noise of that size."""

SCALES = np.array([[0.75], [0.85], [0.93], [1.00], [1.07], [1.16], [1.29], [1.54]])
"""Factors of the model's doubt, each as likely as the others: Student's distribution with 10 degrees of freedom. A
model errs more about what is unlike all that it has seen, and its own choices are like it."""


class Surprises:
    """Outcomes of the model's choices that were faster than it had expected, in its own deviations."""

    def __init__(self) -> None:
        self._expected: dict[Code, tuple[float, float]] = {}
        self._squares: deque[float] = deque(maxlen=SURPRISES)

    def expect_outcome(self, code: Code, log: float, deviation: float) -> None:
        """Keep what the model expects of a config that it has chosen."""
        self._expected[code] = log, deviation

    def record_outcome(self, code: Code, log: float | None) -> None:
        """Record a config's log latency; ``None`` if it was not measured."""
        expected = self._expected.pop(code, None)
        if expected is not None and log is not None:
            self._squares.append(min(max((expected[0] - log) / expected[1], 0.0), MOST_SURPRISED) ** 2)

    @property
    def scale(self) -> float:
        """The factor by which choices that were faster than expected were farther from that than the model thought."""
        # Of a well judged normal distribution one half is faster, and the mean square is a half.
        return math.sqrt(max(1.0, 2 * sum(self._squares) / max(1, len(self._squares))))


class UntriedConfigs(NamedTuple):
    """Configs that were not tried: features, and how many of the space each stands for."""

    features: Floats
    weights: Floats


def chance_of_improvement(
    model: TransferModel,
    untried: UntriedConfigs,
    goal: float,
    *,
    scale: float,
    chance_to_work: Callable[[Floats], Floats],
    seed: int,
) -> float:
    """Return the chance that some untried config is faster than ``goal``, a value of the model: an upper limit.

    That a config differs from what the model explains counts as much as that the model may err: what is left in a
    rugged space is luck. ``scale`` is :attr:`Surprises.scale`, ``seed`` that of the landscapes.
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
    model: TransferModel, likeliest: UntriedConfigs, goal: float, scale: float, works: Floats, seed: int
) -> Floats:
    """Return the chance that one of some configs is faster than ``goal``, for each of :data:`SCALES`.

    Where a landscape is drawn, each config has luck of its own, as all have that it stands for.
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
    """Return the chance to be above z, to 0.3 % of itself even where it is tiny (Börjesson and Sundberg, 1979)."""
    size = np.abs(z)
    tail = np.exp(-0.5 * size**2) / math.sqrt(2 * math.pi) / (0.661 * size + 0.339 * np.sqrt(size**2 + 5.51))
    return np.asarray(np.where(z < 0, 1 - tail, tail))
