"""Gaussian process regression that learns which features matter.

A Matérn-5/2 kernel with a weight for each feature, a polynomial trend, and noise. The weights maximise their posterior,
with a log-normal prior around usual values. Whenever there are new measurements, a few adaptive gradient steps climb
from the end of the last climb (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, chapter 5). The
signal's variance is solved for directly.

Imported only by strategies that need NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ktuned.model import FrozenStruct
from ktuned.search.features import Floats

_SQRT5 = math.sqrt(5)

NOISE_PRIOR = -5.0
"""Logarithm of the noise's usual share of the variance: configs differ by factors, measurements by percents."""

NOISE_FLOOR = 1e-5
"""Keeps the matrix invertible where two points have the same features."""

TREND_PRIOR = -2.0
"""Logarithm of the trend's usual share: if latency is a smooth bowl, the trend explains almost all of it."""

TREND_SPREAD = 2.0

WIDEST = 4.0
"""Limit of a log weight's distance from its prior: a factor of 55."""

RATE = 0.25
MOMENTUM = 0.8
SCALE_MEMORY = 0.9
"""Parameters of the climb (Adam): large steps, because the start is close and there are few steps."""


class Prediction(FrozenStruct):
    """Mean and variance at each point, in the units of the values that were fitted."""

    mean: Floats
    variance: Floats


class GaussianProcess:
    """Predicts values at points from values at others."""

    def __init__(self, prior: Floats, spread: float, trend: Sequence[int]) -> None:
        """Make a process.

        Args:
            prior: The logarithm of each feature's usual weight.
            spread: The standard deviation of these logarithms.
            trend: The features that the polynomial trend uses.
        """
        self._trending = np.array(trend, dtype=np.intp)
        self._prior = np.concatenate([prior, [NOISE_PRIOR, TREND_PRIOR]])
        self._spread = np.concatenate([np.full(len(prior), spread), [1.0, TREND_SPREAD]])
        self._state = self._prior.copy()
        self._momentum = np.zeros_like(self._state)
        self._scale = np.zeros_like(self._state)
        self.steps = 0

    @property
    def weights(self) -> Floats:
        """The weight of each feature in the squared distance."""
        return np.asarray(np.exp(self._state[:-2]))

    @property
    def unexplained(self) -> float:
        """The variance of a single value around its prediction: noise, and effects that no feature explains."""
        return self._noise * self._variance

    def fit_weights(self, points: Floats, values: Floats, steps: int, doubts: Floats | float = 0.0) -> None:
        """Climb some steps towards the weights, the noise and the trend that explain the values best.

        ``doubts`` are known variances of single values, in addition to the common noise.
        """
        trend = self._trend_covariance(points, points)
        for _ in range(steps):
            try:
                gradient = self._posterior_gradient(points, values, trend, doubts)
            except np.linalg.LinAlgError:
                return
            self.steps += 1
            self._momentum = MOMENTUM * self._momentum + (1 - MOMENTUM) * gradient
            self._scale = SCALE_MEMORY * self._scale + (1 - SCALE_MEMORY) * gradient**2
            direction = self._momentum / (1 - MOMENTUM**self.steps)
            size = np.sqrt(self._scale / (1 - SCALE_MEMORY**self.steps)) + 1e-3
            stepped = self._state + RATE * direction / size
            self._state = np.clip(stepped, self._prior - WIDEST, self._prior + WIDEST)

    def condition_on(self, points: Floats, values: Floats, doubts: Floats | float = 0.0) -> None:
        """Take the values at these points as known, apart from the noise and their ``doubts``."""
        self._raw = points
        self._points = points * np.sqrt(self.weights)
        self._whiten = self._invert_cholesky_factor(points, doubts)
        white = self._whiten @ values
        self._coefficients = self._whiten.T @ white
        self._variance = float(white @ white) / len(values) + 1e-9

    def predict(self, points: Floats) -> Prediction:
        """Return the predictions at some points, without noise."""
        across = self._covariance_with_known(points)
        explained = across @ self._whiten.T
        centred = 2 * points[:, self._trending] - 1
        trend = (1 + np.einsum("ij,ij->i", centred, centred)) ** 2 / (1 + len(self._trending))
        own = 1 + self._trend_share * trend
        share = np.maximum(own - np.einsum("ij,ij->i", explained, explained), 1e-6)
        return Prediction(across @ self._coefficients, share * self._variance)

    def covariance(self, points: Floats) -> Floats:
        """Return the covariance of the predicted values at some points, without noise."""
        scaled = points * np.sqrt(self.weights)
        own = _matern_covariance(_squared_distances(scaled, scaled)) + self._trend_share * self._trend_covariance(
            points, points
        )
        explained = self._covariance_with_known(points) @ self._whiten.T
        return np.asarray((own - explained @ explained.T) * self._variance)

    def _invert_cholesky_factor(self, points: Floats, doubts: Floats | float) -> Floats:
        """Return the inverse of the covariance's Cholesky factor, with which predictions are matrix products."""
        scaled = points * np.sqrt(self.weights)
        covariance = _matern_covariance(_squared_distances(scaled, scaled))
        covariance += self._trend_share * self._trend_covariance(points, points)
        covariance[np.diag_indices_from(covariance)] += self._noise + doubts
        return np.asarray(np.linalg.inv(np.linalg.cholesky(covariance)))

    def _covariance_with_known(self, points: Floats) -> Floats:
        """Return the covariances of some points with the known ones."""
        across = _matern_covariance(_squared_distances(points * np.sqrt(self.weights), self._points))
        return np.asarray(across + self._trend_share * self._trend_covariance(points, self._raw))

    @property
    def _noise(self) -> float:
        return math.exp(float(self._state[-2])) + NOISE_FLOOR

    @property
    def _trend_share(self) -> float:
        return math.exp(float(self._state[-1]))

    def _trend_covariance(self, points: Floats, others: Floats) -> Floats:
        """Return the covariance of a polynomial of the second degree."""
        centred = 2 * points[:, self._trending] - 1, 2 * others[:, self._trending] - 1
        return np.asarray((1 + centred[0] @ centred[1].T) ** 2 / (1 + len(self._trending)))

    def _posterior_gradient(self, points: Floats, values: Floats, trend: Floats, doubts: Floats | float) -> Floats:
        """Return the gradient of the log posterior by the logarithms of the weights, the noise and the trend."""
        weights = self.weights
        scaled = points * np.sqrt(weights)
        squared = _squared_distances(scaled, scaled)
        distance = np.sqrt(squared)
        decay = np.exp(-_SQRT5 * distance)
        covariance = (1 + _SQRT5 * distance + 5 / 3 * squared) * decay + self._trend_share * trend
        covariance[np.diag_indices_from(covariance)] += self._noise + doubts
        inverse = np.linalg.inv(covariance)
        coefficients = inverse @ values
        variance = float(values @ coefficients) / len(values) + 1e-9
        pull = np.outer(coefficients, coefficients) / variance - inverse
        slope = pull * (-5 / 6 * (1 + _SQRT5 * distance) * decay)
        # The sum over i, j of slope[i, j] · (x[i] − x[j])² for each feature, without the differences.
        by_weight = (slope.sum(1) @ points**2 - np.einsum("if,if->f", points, slope @ points)) * weights
        by_noise = 0.5 * float(np.trace(pull)) * math.exp(float(self._state[-2]))
        by_trend = 0.5 * float(np.einsum("ij,ij->", pull, trend)) * self._trend_share
        likelihood = np.concatenate([by_weight, [by_noise, by_trend]])
        return np.asarray(likelihood - (self._state - self._prior) / self._spread**2)


def _squared_distances(points: Floats, others: Floats) -> Floats:
    norms = np.einsum("ij,ij->i", points, points)[:, None] + np.einsum("ij,ij->i", others, others)[None]
    return np.asarray(np.maximum(norms - 2 * points @ others.T, 0))


def _matern_covariance(squared: Floats) -> Floats:
    distance = np.sqrt(squared)
    return np.asarray((1 + _SQRT5 * distance + 5 / 3 * squared) * np.exp(-_SQRT5 * distance))
