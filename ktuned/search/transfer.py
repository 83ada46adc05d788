"""Transfer from earlier searches of the same kernel, for another problem or on another device.

A model is fitted to each earlier search, and its predictions partly explain the measurements here. The factor of each
prediction, its *slope*, is learned only from this search's measurements: by least squares under the model of the
remainder, with a pull towards zero. If a model without the earlier searches predicts the fast half better (each config
from all the others), they are left out. So a misleading search is ignored after a few trials, and after one that
explains most, little is left to find out. Stacking models in this way follows Golovin et al., "Google Vizier" (KDD
2017), with the slope added.

Half of the choices ignore the earlier searches until their order proves to hold here: by its rank correlation with the
measurements, for the half that should be fast. An earlier search may predict the slow configs well and still lead into
the wrong valley.

Imported only by strategies that need NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ktuned.search.chain import Point
from ktuned.search.features import Features, Floats
from ktuned.search.gaussian_process import GaussianProcess, Prediction

MOST_SOURCES = 2
"""Most earlier searches that are modelled, the most similar first. Each costs every proposal some milliseconds."""

FEWEST = 12
"""Fewest measurements of an earlier search that is modelled."""

MODELLED = 150
"""Most of its measurements that are modelled, the fastest first: learning takes 0.25 s, and a prediction 1 ms."""

LEARNING_STEPS = 25

DECIDED = 70
"""Measurements after which the decision whether the earlier searches help is final: checking it again costs time."""

HOLDS_FROM = 0.5
"""An earlier order holds here if the lower limit of its rank correlation is at least this. For searches that are really
alike the correlation is mostly above 0.8, for others below."""

SLOPE_SPREAD = 0.5
"""Standard deviation of a slope before anything is measured here. A slope of 1 means that nothing has changed."""


class SourceModel:
    """Predicts log costs from an earlier search, as natural logarithms relative to its best config."""

    def __init__(self, points: Floats, excess: Floats, model: GaussianProcess) -> None:
        self._mean, self._scale = float(excess.mean()), float(excess.std()) + 1e-9
        self._model = model
        values = (excess - self._mean) / self._scale
        model.fit_weights(points, values, LEARNING_STEPS)
        model.condition_on(points, values)

    def __call__(self, points: Floats) -> Floats:
        """Return the predictions at some points."""
        return np.asarray(self._mean + self._scale * self._model.predict_mean(points))


def fit_sources(
    earlier: Sequence[Mapping[Point, float]],
    features: Features,
    compress: Callable[[Floats], Floats],
    model: Callable[[], GaussianProcess],
) -> list[SourceModel]:
    """Return models of the most similar earlier searches with enough measurements.

    Args:
        earlier: The earlier searches as log costs by point, the most similar first.
        features: The features of points.
        compress: Compresses log costs relative to the lowest, as the present search does.
        model: Makes a Gaussian process.
    """
    modelled = [logs for logs in earlier if len(logs) >= FEWEST][:MOST_SOURCES]
    found = []
    for logs in modelled:
        fastest = sorted(logs, key=lambda point: (logs[point], point))[:MODELLED]
        excess = np.array([logs[point] - logs[fastest[0]] for point in fastest])
        found.append(SourceModel(features(np.array(fastest)), compress(excess), model()))
    return found


class TransferModel:
    """A Gaussian process around the predictions of earlier searches, or without them if that predicts better.

    Attributes:
        sources_help: Whether earlier searches improve the predictions.
        may_use_sources: Whether earlier searches may be used now; otherwise the model works without them.
        order_holds: Whether an earlier search predicts the order of the configs measured here about right.
    """

    def __init__(self, process: Callable[[], GaussianProcess]) -> None:
        self._process_alone = process()
        self._process_of_remainder = process()
        self._sources: Sequence[SourceModel] = ()
        self._slopes = np.zeros(0)
        self._column_means = np.zeros(0)
        self._log_scale = 1.0
        self.sources_help = False
        self.may_use_sources = True
        self.order_holds = False

    def set_sources(self, sources: Sequence[SourceModel]) -> None:
        """Take earlier searches into account."""
        self._sources = sources
        self.sources_help = bool(sources)

    @property
    def has_sources(self) -> bool:
        """True if there are earlier searches, even if they do not help."""
        return bool(self._sources)

    @property
    def steps(self) -> int:
        """Steps that the process has climbed."""
        return self._process.steps

    def fit_weights(self, points: Floats, values: Floats, steps: int, doubts: Floats, log_scale: float) -> None:
        """Learn the slopes, the weights for the remainder, and whether earlier searches improve the predictions.

        A value of 1 corresponds to ``log_scale`` natural logarithms.
        """
        self._log_scale = log_scale
        if self.sources_help or (self._sources and len(values) <= DECIDED):
            columns = self._predict_each_source(points)
            self._column_means = columns.mean(0)
            self._slopes = self._process_of_remainder.fit_slopes(
                points, values, columns - self._column_means, SLOPE_SPREAD, doubts
            )
            remainder = values - (columns - self._column_means) @ self._slopes
            self._process_of_remainder.fit_weights(points, remainder, steps, doubts)
        if not self.sources_help or not self.order_holds or len(values) <= DECIDED:
            self._process_alone.fit_weights(points, values, steps, doubts)
        if self._sources and len(values) <= DECIDED:
            self.order_holds = any(is_order_kept(column, values) for column in columns.T)
            fast = values <= np.median(values)
            informed, alone = (
                self._process_of_remainder.leave_one_out_densities(points, remainder, doubts),
                self._process_alone.leave_one_out_densities(points, values, doubts),
            )
            self.sources_help = float(informed[fast].sum()) >= float(alone[fast].sum())

    def condition_on(self, points: Floats, values: Floats, doubts: Floats) -> None:
        """Take the values at these points as known, apart from the noise and their ``doubts``."""
        self._process.condition_on(points, values - self._predict_from_sources(points), doubts)

    def predict(self, points: Floats) -> Prediction:
        """Return the predictions at some points, without noise."""
        remainder = self._process.predict(points)
        return Prediction(remainder.mean + self._predict_from_sources(points), remainder.variance)

    def covariance(self, points: Floats) -> Floats:
        """Return the covariance of the predicted values at some points, without noise."""
        return self._process.covariance(points)

    @property
    def unexplained(self) -> float:
        """The variance of a single value around its prediction: noise, and effects that no feature explains."""
        return self._process.unexplained

    @property
    def _process(self) -> GaussianProcess:
        return self._process_of_remainder if self._uses_sources else self._process_alone

    @property
    def _uses_sources(self) -> bool:
        return self.sources_help and self.may_use_sources

    def _predict_each_source(self, points: Floats) -> Floats:
        return np.column_stack([source(points) for source in self._sources]) / self._log_scale

    def _predict_from_sources(self, points: Floats) -> Floats | float:
        if not self._uses_sources:
            return 0.0
        return np.asarray((self._predict_each_source(points) - self._column_means) @ self._slopes)


def is_order_kept(expected: Floats, values: Floats) -> bool:
    """Return whether the configs that should be fast have about the expected order, by Spearman's correlation.

    The correlation's lower limit counts. Slow configs are left out: that they are slow here, too, says nothing about
    the order of the fast ones.
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
