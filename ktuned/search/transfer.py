"""Searches of the same kernel elsewhere as a help for this one: for another problem, on another device.

A model is fitted to each of them, and what it expects of a point is an explanation of what is measured here. How much
of it there is, its slope, follows from the measurements of this search alone: the least squares under the model of all
else, with a pull to zero. Where a model without them predicts the fast half better, each config from all others, they
are left out. So a search that misleads is forgotten after a few trials, and one that explains most leaves little to be
found out. Stacking models in this way is after Golovin et al., "Google Vizier" (KDD 2017), with a slope.

Half of the choices do not hear of them at all until their order is seen to hold here, by its rank correlation with
what was measured of the half that should be fast: one may explain the slow well, and lead into the wrong valley.

Imported only by strategies that need NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ktuned.search.chain import Code
from ktuned.search.features import Features, Floats
from ktuned.search.gaussian_process import GaussianProcess, Prediction

MOST_SOURCES = 2
"""Earlier searches that are modelled, the nearest ones: each costs every proposal some milliseconds."""

FEWEST = 12
"""Measurements of an earlier search below which it has no model worth having."""

MODELLED = 150
"""Of its measurements, the fastest, that are modelled: a quarter of a second to learn, a millisecond to ask."""

LEARNING_STEPS = 25

DECIDED = 70
"""Measurements after which it is no longer asked whether the earlier searches help: it is clear, and costs time."""

HOLDS_FROM = 0.5
"""Rank correlation from which an earlier order holds here, at its lower limit: of searches that are alike in fact it is
mostly above 0.8, of others that differ below that."""

SLOPE_SPREAD = 0.5
"""Standard deviation of a slope before anything was measured here; it is 1 where nothing has changed."""


class SourceModel:
    """The log cost that an earlier search leads to expect, in units of natural logarithms above its best."""

    def __init__(self, points: Floats, excess: Floats, model: GaussianProcess) -> None:
        self._mean, self._scale = float(excess.mean()), float(excess.std()) + 1e-9
        self._model = model
        values = (excess - self._mean) / self._scale
        model.fit_weights(points, values, LEARNING_STEPS)
        model.condition_on(points, values)

    def __call__(self, points: Floats) -> Floats:
        """Return what to expect at some points."""
        return np.asarray(self._mean + self._scale * self._model.predict_mean(points))


def fit_sources(
    earlier: Sequence[Mapping[Code, float]],
    features: Features,
    compress: Callable[[Floats], Floats],
    model: Callable[[], GaussianProcess],
) -> list[SourceModel]:
    """Return the nearest of some earlier searches that say enough, each given as log costs by point.

    ``compress`` does to excesses over the lowest cost what the search here does.
    """
    telling = [logs for logs in earlier if len(logs) >= FEWEST][:MOST_SOURCES]
    found = []
    for logs in telling:
        fastest = sorted(logs, key=lambda code: (logs[code], code))[:MODELLED]
        excess = np.array([logs[code] - logs[fastest[0]] for code in fastest])
        found.append(SourceModel(features(np.array(fastest)), compress(excess), model()))
    return found


class TransferModel:
    """A Gaussian process around what earlier searches explain; the process alone where that predicts no worse.

    It is also the process alone as long as earlier searches are not to be heard; ``order_holds`` if their order of the
    configs that were measured here is about the same.
    """

    def __init__(self, process: Callable[[], GaussianProcess]) -> None:
        self._alone = process()
        self._around = process()
        self._sources: Sequence[SourceModel] = ()
        self._slopes = np.zeros(0)
        self._centre = np.zeros(0)
        self._unit = 1.0
        self.is_informed = False
        self.is_heard = True
        self.order_holds = False

    def use_sources(self, found: Sequence[SourceModel]) -> None:
        """Take earlier searches into account."""
        self._sources = found
        self.is_informed = bool(found)

    @property
    def has_sources(self) -> bool:
        """True if there are earlier searches, whether they help or not."""
        return bool(self._sources)

    @property
    def steps(self) -> int:
        """Steps that the process has climbed."""
        return self._process.steps

    def fit_weights(self, points: Floats, values: Floats, steps: int, doubts: Floats, unit: float) -> None:
        """Learn the slopes, what matters to the rest, and whether that beats the process alone.

        A ``unit`` of the values is so many natural logarithms.
        """
        self._unit = unit
        if self.is_informed or (self._sources and len(values) <= DECIDED):
            columns = self._source_columns(points)
            self._centre = columns.mean(0)
            self._slopes = self._around.fit_slopes(points, values, columns - self._centre, SLOPE_SPREAD, doubts)
            rest = values - (columns - self._centre) @ self._slopes
            self._around.fit_weights(points, rest, steps, doubts)
        if not self.is_informed or not self.order_holds or len(values) <= DECIDED:
            self._alone.fit_weights(points, values, steps, doubts)
        if self._sources and len(values) <= DECIDED:
            self.order_holds = any(is_order_kept(column, values) for column in columns.T)
            fast = values <= np.median(values)
            informed, alone = (
                self._around.leave_one_out_densities(points, rest, doubts),
                self._alone.leave_one_out_densities(points, values, doubts),
            )
            self.is_informed = float(informed[fast].sum()) >= float(alone[fast].sum())

    def condition_on(self, points: Floats, values: Floats, doubts: Floats) -> None:
        """Take the values at these points as known, but for the noise and their ``doubts``."""
        self._process.condition_on(points, values - self._explained_by_sources(points), doubts)

    def predict(self, points: Floats) -> Prediction:
        """Return what to expect at some points, without noise."""
        own = self._process.predict(points)
        return Prediction(own.mean + self._explained_by_sources(points), own.variance)

    def covariance(self, points: Floats) -> Floats:
        """Return how the values at some points are expected to vary together, without noise."""
        return self._process.covariance(points)

    @property
    def unexplained(self) -> float:
        """The variance of a single value around what is predicted: noise, and what no feature explains."""
        return self._process.unexplained

    @property
    def _process(self) -> GaussianProcess:
        return self._around if self._explains else self._alone

    @property
    def _explains(self) -> bool:
        return self.is_informed and self.is_heard

    def _source_columns(self, points: Floats) -> Floats:
        return np.column_stack([source(points) for source in self._sources]) / self._unit

    def _explained_by_sources(self, points: Floats) -> Floats | float:
        if not self._explains:
            return 0.0
        return np.asarray((self._source_columns(points) - self._centre) @ self._slopes)


def is_order_kept(expected: Floats, values: Floats) -> bool:
    """Return whether those that should be fast have about the expected order: Spearman's correlation, less its error.

    That the slow are slow here, too, says nothing of the place of the fastest.
    """
    if not len(values):
        return False
    promised = expected <= np.median(expected)
    expected, values = expected[promised], values[promised]
    if len(values) <= 4 or np.ptp(expected) == 0 or np.ptp(values) == 0:
        return False
    one, other = (np.argsort(np.argsort(column)) for column in (expected, values))
    correlation = min(max(float(np.corrcoef(one, other)[0, 1]), -0.999), 0.999)
    return math.atanh(correlation) - 1 / math.sqrt(len(values) - 3) >= math.atanh(HOLDS_FROM)
