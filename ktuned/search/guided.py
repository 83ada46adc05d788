"""Guided search: first a few configs spread over the space, then those that a Gaussian process expects to gain most.

Each choice after the first ones maximises the expected improvement, times the chance that the config works. Two kinds
of choices take turns:

=====  ===========================  ==================================================================================
kind   candidates                   why
=====  ===========================  ==================================================================================
wide   a random sample of all       the best of few configs is mostly a local optimum, so the first choices are wide,
                                    and look for a large improvement
near   neighbours of the best few   local search with steps ranked by the model: later most choices are near, because
                                    the model errs where little was tried, so unknown regions would always look
                                    promising
=====  ===========================  ==================================================================================

Improvements are measured relative to the spread of the latencies, so that in a space with small differences no large
improvements are sought. A config under way counts with the value that the model expects, so that a batch spreads out.

Imported only by name: it needs NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from random import Random
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from ktuned.declaration import BoundSpace
from ktuned.search.chain import Point
from ktuned.search.convergence import FASTER, Surprises, UntriedConfigs, chance_of_improvement
from ktuned.search.domain import Domain
from ktuned.search.features import Features, Floats
from ktuned.search.gaussian_process import GaussianProcess, Prediction
from ktuned.search.points import PointStrategy

ENUMERATED = 6_000
"""A space of at most this many points is held completely: some 50 ms to list, and a megabyte."""

POOL = 4_096
"""Most points of a larger space that are held; new points replace the oldest."""

REFRESHED = 64
"""New points of a larger space for each choice: about a millisecond if drawing is cheap."""

DRAWING_S = 0.02
"""Time limit for drawing points for one choice: a space that is hard to draw from is explored gradually."""

FIRST_DRAWING_S = 0.08
"""Time limit for the first drawing."""

REMEMBERED_NEIGHBOURHOODS = 64
"""Most points whose neighbours are remembered. They are asked for the best points, which change slowly."""


class Candidates:
    """A pool of valid points with their features."""

    def __init__(self, domain: Domain, features: Features, random: Random) -> None:
        self._domain = domain
        self._features = features
        self._random = random
        self._neighbours_of: dict[Point, list[Point]] = {}
        self._points: list[Point] = []
        self._is_whole = domain.is_exact and domain.count <= ENUMERATED
        if self._is_whole:
            self._points = [point for point in domain.walk_points() if point is not None]
        else:
            self._draw_fresh_points(POOL // 4, FIRST_DRAWING_S)

    def pick_candidates(
        self, number: int, taken: Collection[Point], around: Sequence[Point]
    ) -> tuple[list[Point], Floats]:
        """Return candidates and their features, without ``taken`` points.

        They are ``number`` random points of the pool, and the neighbours of the points ``around``.
        """
        if number and not self._is_whole:
            self._draw_fresh_points(REFRESHED, DRAWING_S)
        chosen: dict[Point, None] = {}
        for point in around:
            chosen |= dict.fromkeys(self._list_neighbours(point))
        places = self._sample_pool_places(number)
        chosen |= dict.fromkeys(self._points[place] for place in places)
        points = [point for point in chosen if point not in taken]
        return points, self._features(self._points_as_array(points))

    def list_pool_except(self, excluded: Collection[Point]) -> tuple[list[Point], Floats]:
        """Return all points of the pool except the ``excluded`` ones, and their features."""
        points = [point for point in dict.fromkeys(self._points) if point not in excluded]
        return points, self._features(self._points_as_array(points))

    def _sample_pool_places(self, number: int) -> list[int]:
        size = len(self._points)
        if number >= size:
            return list(range(size))
        return [int(self._random.random() * size) for _ in range(number)]

    def _draw_fresh_points(self, number: int, seconds: float) -> None:
        deadline = monotonic() + seconds
        fresh: list[Point] = []
        while len(fresh) < number and monotonic() < deadline:
            point = self._domain.draw_point(self._random)
            if point is None:
                break
            fresh.append(point)
        self._points = (self._points + fresh)[-POOL:]

    def _list_neighbours(self, point: Point) -> list[Point]:
        found = self._neighbours_of.get(point)
        if found is None:
            if len(self._neighbours_of) >= REMEMBERED_NEIGHBOURHOODS:
                self._neighbours_of.clear()
            found = self._neighbours_of[point] = [
                *self._domain.valid_neighbours(point),
                *self._domain.valid_joint_neighbours(point),
            ]
        return found

    def _points_as_array(self, points: Sequence[Point]) -> NDArray[np.intp]:
        return np.array(points, dtype=np.intp).reshape(len(points), len(self._domain.axes))


# The numbers were found on recorded tuning spaces. `benchmarks/search.py` shows what a change to one of them costs.

SPREAD_CONFIGS = 8
"""Configs that are spread over the space before the model chooses."""

MAX_GIVEN_CONFIGS = 3 * SPREAD_CONFIGS
"""A search that is given at most this many configs (the default, winners elsewhere) still starts with the full spread,
because the given ones come from one corner of the space, which may be the wrong one here."""

WIDE_UNTIL = 32
"""All choices are wide until this many configs have been chosen."""

WIDE_SHARE_OF_SPACE = 8
"""In a small space, choices stay wide only until 1/8 of its configs have been chosen."""

WIDE_EVERY = 4
"""After that, one in this many choices is wide."""

LOG_WEIGHT_PRIORS = {"main": -1.0, "power": -1.5, "pair": -2.0, "choice": -1.5}
"""Logarithms of the usual weights, by kind of feature: an axis is about one correlation length long."""

LOG_WEIGHT_SPREAD = 1.2
"""Standard deviation of the prior of each log weight."""

MAX_MODELLED = 180
"""Most latencies in the model, because its time grows with the cube of its points. They are the best, and a random
sample of the rest; MAX_MODELLED_SLOW configs that were stopped as slow come on top."""

MAX_MODELLED_BEST = 110
"""How many of them are the best; the sample of the others has the rest."""

MAX_MODELLED_SLOW = 37
"""Most configs that were stopped as slow in the model; the latest ones. Their latencies are unknown: they count as the
slowest one that is."""

LEAST_FAILURE_VARIANCE = 0.05
"""Added to the variance of the failure model, so that the model is never certain that a point works or fails."""

LEAST_CHANCE_TO_WORK = 0.02
"""The failure model rules no point out."""

POOL_SAMPLE = 800
"""Number of points from the whole space that a wide choice compares."""

FASTEST_CONSIDERED = 20
"""The lowest expected latency is sought among this many of the fastest measured configs."""

NEIGHBOURHOODS = 2
"""A near choice compares the neighbours of the fastest config, and of this many that the model expects to be best."""

LEARNING_STEPS = ((60, 4), (130, 2), (MAX_MODELLED, 1))
"""Steps of the model's climb for each choice, by the number of its measurements."""

FIRST_LEARNING_STEPS = 25
"""Gradient steps of the first fit of the weights; later fits begin with the weights of the one before."""

SOUGHT_IMPROVEMENTS = (0.05, 0.02)
"""Improvements that choices seek alternately, in standard deviations of the log latency."""

EARLY_AMBITION = 2.0
"""Added to both at first, because the first few configs mostly lead to a local optimum."""

AMBITION_FADES_AFTER = 20.0
"""Number of configs after which about a third (1/e) of :data:`EARLY_AMBITION` is left."""

LOG_SLOWDOWN_MODELLED = 1.5
"""Latencies enter the model unchanged up to this log slowdown against the best config; the faster half always does."""

SLOW_SHARE = 0.3
"""The excess over that limit is reduced to this share: it matters little how slow the slow configs are."""

FAILURE_WINDOW = 80
"""The chance to fail is learned from this many of the latest failures, and as many successes."""

CONVERGED_AFTER = 60
"""Fewest measurements of a converged search. The latest outcomes, half as many, must have brought no improvement."""

LITTLE_CHANCE = 0.1
"""A search has converged when the chance that an untried config is more than 1 % faster is below this."""

ESTIMATE_EVERY = 4
"""Configs between two estimates of that chance for the whole space. An estimate takes as long as several proposals."""

LEAST_IMPROVEMENT = 0.005
"""A smaller relative gain does not count as an improvement."""


class Guided(PointStrategy):
    """Learns from every outcome; the seed decides the first configs and the random samples."""

    def __init__(self, space: BoundSpace, seed: int) -> None:
        super().__init__(space, seed)
        self._features = Features(self.domain.axes)
        self._candidates = Candidates(self.domain, self._features, self.random)
        self._model = self._make_process()
        self._failure_model = self._make_process()
        self._best_log = math.inf
        self._outcomes_since_best = 0
        self._choice_count = 0
        self._outcomes_at_fit = 0
        self._failures_at_fit = 0
        # The model's values are log latencies minus the centre, divided by the scale.
        self._log_centre = 0.0
        self._log_scale = 1.0
        self._lowest_value = -math.inf
        self._largest_single_chance = 1.0
        self._taken_at_estimate = 0
        self._chance_of_faster = 1.0
        self._surprises = Surprises()

    def on_outcome(self, point: Point) -> None:
        """Count the outcomes since the last improvement."""
        log = self.logs.get(point, math.inf)
        self._surprises.record_outcome(point, self.logs.get(point))
        self._outcomes_since_best = 0 if log < self._best_log - LEAST_IMPROVEMENT else self._outcomes_since_best + 1
        self._best_log = min(self._best_log, log)

    def choose(self) -> Point | None:
        """Return the next config: at first one of a spread, then the most promising one, or a random one."""
        self._choice_count += 1
        if self._progress < SPREAD_CONFIGS:
            return self.draw_least_tried()
        if len(self.logs) < 3 or len(self._features) == 0:
            return self.draw_untried()
        return self._choose_most_promising()

    @property
    def converged(self) -> bool:
        """True if there was no improvement for a while, and a config more than 1 % faster is unlikely to exist."""
        is_quiet = len(self.logs) >= CONVERGED_AFTER and self._outcomes_since_best >= CONVERGED_AFTER // 2
        # The cheap check first: if one config alone is likely enough to be faster, the search has not converged.
        if not is_quiet or self._largest_single_chance >= LITTLE_CHANCE:
            return False
        if len(self.taken) >= self._taken_at_estimate + ESTIMATE_EVERY:
            self._taken_at_estimate = len(self.taken)
            self._chance_of_faster = self.chance_of_improvement()
        return self._chance_of_faster < LITTLE_CHANCE

    def chance_of_improvement(self) -> float:
        """Return an upper limit of the chance that some untried config is more than 1 % faster than the best one.

        The neighbours of the best configs are evaluated individually; the rest of the space is estimated from the pool.
        """
        if self._lowest_value == -math.inf:
            return 1.0
        near, features = self._candidates.pick_candidates(0, self.taken, self.fastest_points(FASTEST_CONSIDERED))
        far, others = self._candidates.list_pool_except(self.taken | set(near))
        rest = max(0, self.domain.count - len(self.taken) - len(near))
        # Each config of the pool represents an equal share of the rest of the space.
        weights = np.append(np.ones(len(near)), np.full(len(far), rest / max(1, len(far))))
        return chance_of_improvement(
            self._model,
            UntriedConfigs(np.vstack([features.reshape(len(near), -1), others]) if near else others, weights),
            self._lowest_value - FASTER / self._log_scale,
            scale=self._surprises.scale,
            chance_to_work=self._predict_chance_to_work,
            seed=len(self.taken),
        )

    def _make_process(self) -> GaussianProcess:
        kinds = self._features.kinds
        plain = [place for place, kind in enumerate(kinds) if kind in ("main", "choice")]
        return GaussianProcess(np.array([LOG_WEIGHT_PRIORS[kind] for kind in kinds]), LOG_WEIGHT_SPREAD, plain)

    @property
    def _progress(self) -> int:
        """Progress of the search: its earlier choices, or if larger, the known configs beyond `MAX_GIVEN_CONFIGS`."""
        return max(self._choice_count - 1, len(self.taken) - MAX_GIVEN_CONFIGS)

    @property
    def _is_wide_turn(self) -> bool:
        first = min(WIDE_UNTIL, self.domain.count // WIDE_SHARE_OF_SPACE)
        return self._progress < first or self._progress % WIDE_EVERY == 0

    def _pick_candidates(self, best: Sequence[Point]) -> tuple[list[Point], Floats]:
        """Return the candidates for this choice, and their features."""
        if not self._is_wide_turn:
            points, features = self._candidates.pick_candidates(0, self.taken, best)
            if points:
                return points, features
        return self._candidates.pick_candidates(POOL_SAMPLE, self.taken, best)

    def _choose_most_promising(self) -> Point | None:
        known, values = self._select_modelled_points()
        self._lowest_value = float(values.min())
        features = self._features(np.array(known))
        self._fit_model(known, features, values)
        # The lowest measured value may be due to noise, so the points with the lowest expected values count as well.
        expected = self._model.predict(features[:FASTEST_CONSIDERED]).mean
        lowest = float(expected.min())
        around = [known[0], *(known[place] for place in np.argsort(expected)[:NEIGHBOURHOODS])]
        candidates, candidate_features = self._pick_candidates(list(dict.fromkeys(around)))
        if not candidates:
            return self.draw_untried()
        # Choose the one with the largest expected improvement, times its chance to work.
        predicted = self._model.predict(candidate_features)
        chance_to_work = self._predict_chance_to_work(candidate_features)
        promise = expected_improvement(predicted, lowest - self._improvement_sought()) * chance_to_work
        chosen = int(np.argmax(promise))
        # Keep what `converged` and the surprises need of this prediction.
        goal = lowest - FASTER / self._log_scale
        chance = normal_cdf((goal - predicted.mean) / np.sqrt(predicted.variance)) * chance_to_work
        self._largest_single_chance = float(chance.max())
        self._record_expectation(candidates[chosen], float(predicted.mean[chosen]), float(predicted.variance[chosen]))
        return candidates[chosen]

    def _fit_model(self, known: Sequence[Point], features: Floats, values: Floats) -> None:
        """Fit the model if there were outcomes since the last fit, and condition it on the points.

        Points under way count, too, with the value that the model expects of them.
        """
        # Half of a 95 % interval is two standard deviations.
        noise = np.array([self.doubts.get(point, 0.0) / (2 * self._log_scale) for point in known]) ** 2
        if len(self.logs) + len(self.failed) != self._outcomes_at_fit:
            self._outcomes_at_fit = len(self.logs) + len(self.failed)
            steps = next((steps for size, steps in LEARNING_STEPS if len(known) <= size), 1)
            self._model.fit_weights(features, values, steps if self._model.steps else FIRST_LEARNING_STEPS, noise)
        self._model.condition_on(features, values, noise)
        if self.under_way:
            waiting = self._features(np.array(list(self.under_way)))
            believed = self._model.predict(waiting).mean
            noise = np.append(noise, np.zeros(len(believed)))
            self._model.condition_on(np.vstack([features, waiting]), np.append(values, believed), noise)

    def _record_expectation(self, point: Point, mean: float, variance: float) -> None:
        """Keep the model's expectation of a config that it has chosen."""
        deviation = self._log_scale * math.sqrt(variance + self._model.unexplained)
        self._surprises.expect_outcome(point, self._log_centre + mean * self._log_scale, deviation)

    def _improvement_sought(self) -> float:
        """Return the improvement that this choice seeks, in units of the model's values."""
        ambition = EARLY_AMBITION * math.exp(-self._progress / AMBITION_FADES_AFTER)
        return SOUGHT_IMPROVEMENTS[self._choice_count % 2] + ambition

    def _select_modelled_points(self) -> tuple[list[Point], Floats]:
        """Return the points that the model learns from, and their standardised values."""
        points = self.fastest_points(len(self.logs))
        if len(points) > MAX_MODELLED:
            rest = points[MAX_MODELLED_BEST:]
            picked = [rest[int(self.random.random() * len(rest))] for _ in range(MAX_MODELLED - MAX_MODELLED_BEST)]
            points = points[:MAX_MODELLED_BEST] + list(dict.fromkeys(picked))
        slow = list(self.slow)[-MAX_MODELLED_SLOW:]
        logs = np.array([self.logs[point] for point in points])
        logs = np.append(logs, np.full(len(slow), logs.max()))
        excess = compress_slow(logs - logs[0])
        self._log_centre = float(logs[0] + excess.mean())
        self._log_scale = float(excess.std()) + 1e-9
        return points + slow, (excess - excess.mean()) / self._log_scale

    def _predict_chance_to_work(self, features: Floats) -> Floats:
        """Return each point's chance to work, from a second model that is fitted to failures and successes."""
        if not self.failed:
            return np.ones(len(features))
        failed = list(self.failed)[-FAILURE_WINDOW:]
        worked = list(self.logs)[-FAILURE_WINDOW:]
        # Labels are -1 (failed) and 1 (worked), less their mean. The margin adds it back: above 0 a point rather works.
        share = len(worked) / (len(failed) + len(worked))
        labels = np.append(np.full(len(failed), -share), np.full(len(worked), 1 - share)) * 2
        known = self._features(np.array(failed + worked))
        if len(self.failed) != self._failures_at_fit:
            self._failures_at_fit = len(self.failed)
            self._failure_model.fit_weights(known, labels, 2 if self._failure_model.steps else FIRST_LEARNING_STEPS)
        self._failure_model.condition_on(known, labels)
        predicted = self._failure_model.predict(features)
        margin = predicted.mean + 2 * share - 1
        chances = normal_cdf(margin / np.sqrt(predicted.variance + LEAST_FAILURE_VARIANCE))
        return np.asarray(np.clip(chances, LEAST_CHANCE_TO_WORK, 1))


def compress_slow(excess: Floats) -> Floats:
    """Compress the log costs of slow configs. ``excess`` holds log costs relative to the lowest."""
    middle = max(float(np.median(excess)), LOG_SLOWDOWN_MODELLED)
    return np.where(excess > middle, middle + SLOW_SHARE * (excess - middle), excess)


def normal_cdf(z: Floats) -> Floats:
    """Return the normal distribution function, to 0.003: good enough to rank by, and without SciPy."""
    return np.asarray(0.5 * (1 + np.sign(z) * np.sqrt(1 - np.exp(-2 / math.pi * z * z))))


def expected_improvement(prediction: Prediction, goal: float) -> Floats:
    """Return the expected amount by which each point falls below ``goal`` (Jones et al., 1998)."""
    deviation = np.sqrt(prediction.variance)
    z = (goal - prediction.mean) / deviation
    return np.asarray(deviation * (z * normal_cdf(z) + np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)))
