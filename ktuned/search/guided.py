"""Search that a model guides: a spread of first configs, then those that promise most, as a Gaussian process sees it.

Two kinds of choices take turns. A wide one is among a random share of the whole space; a near one among the neighbours
of the few best configs, which is local search whose steps a model ranks. The first choices are wide, and seek a large
improvement: the best of few configs is mostly a local optimum. Later most are near, because a model errs where little
was tried, and the promise of the unknown would be chosen forever.

A choice maximises the expected improvement times the chance not to fail. Improvements are in units of how much the
latencies differ, so that a space of small differences is not searched for large ones. Configs under way count with the
value that the model expects of them, so that batches spread.

Where the same kernel was searched elsewhere, that search's model explains a part of what is measured: see
:mod:`ktuned.search.transfer`. Every other choice then goes on from what such choices have found themselves, and does
not hear of that search until its order is seen to hold here, so that one which misleads costs half of them at most.

Imported only by name: it needs NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ktuned.model import EarlierSearch
from ktuned.search.blas import limit_blas_to_one_thread
from ktuned.search.candidates import Candidates
from ktuned.search.chain import Code
from ktuned.search.convergence import FASTER, Surprises, UntriedConfigs, chance_of_improvement
from ktuned.search.features import Features, Floats
from ktuned.search.gaussian_process import GaussianProcess, Prediction
from ktuned.search.points import PointStrategy
from ktuned.search.transfer import TransferModel, fit_sources
from ktuned.spec import BoundSpace

FIRST = 8
"""Configs that are spread over the space before the model chooses."""

GIVEN = 3 * FIRST
"""Configs that a search may be given (the default, winners elsewhere) and still begins as if it had none: they are of
one corner of the space, which may be the wrong one here."""

WIDE = 32
"""Configs until which all choices are wide."""

WIDE_SHARE = 8
"""Of a small space, no more than one in so many configs are tried before the first near choice."""

WIDE_TURN = 4
"""Every so many choices a later one is wide."""

PRIORS = {"main": -1.0, "power": -1.5, "pair": -2.0, "choice": -1.5}
"""Logarithms of the usual weights by kind of feature: a whole axis is about one correlation length."""

PRIOR_SPREAD = 1.2

MODELLED = 180
"""Measurements that the model takes at once, for its time grows with their cube: the best, and a share of the rest."""

MODELLED_BEST = 110

SAMPLED = 800
"""Points of the pool that are compared for one choice."""

BEST_EXPECTED = 20
"""The fastest measurements among which the lowest expected one is."""

AROUND = 2
"""The best configs by the model whose neighbours are compared, besides those of the fastest one."""

LEARNING_STEPS = ((60, 4), (130, 2), (MODELLED, 1))
"""Steps of the model's climb for each choice, by how many measurements it has."""

FIRST_LEARNING_STEPS = 25

SOUGHT = (0.05, 0.02)
"""Improvements that are sought in turns, in standard deviations of the log latency."""

FIRST_SOUGHT = 2.0
"""Added to both at first: what the first few configs suggest is mostly a local optimum."""

FADING = 20.0
"""Configs after which a third of :data:`FIRST_SOUGHT` is left."""

WELL_MODELLED = 1.5
"""Logarithm of how many times slower than the best a config may be and be modelled as it is, with the faster half."""

SLOW_SHARE = 0.3
"""Latencies beyond that are compressed to this share: how slow the slow are need not be known well."""

JUDGED = 80
"""Failures, and as many successes, that the chance of failing is judged by: the latest."""

CONVERGED_AFTER = 60
"""Measurements before a search may have converged; half as many must have brought no improvement."""

LITTLE_CHANCE = 0.1
"""Chance that some untried config is more than 1 % faster than the best one, below which a search has converged."""

WEIGHED_EVERY = 4
"""Configs after which the whole space is weighed again: it takes as long as some proposals."""

SLIGHT = 0.005
"""Relative gain below which a config is no improvement."""


class Guided(PointStrategy):
    """Learns from every outcome; the seed decides the first configs and the random shares."""

    def __init__(self, space: BoundSpace, seed: int) -> None:
        super().__init__(space, seed)
        self._features = Features(self.domain.axes)
        self._candidates = Candidates(self.domain, self._features, self.random)
        self._model = TransferModel(self._make_process)
        self._judge = self._make_process()
        self._own: set[Code] = set()
        self._best = math.inf
        self._since_best = 0
        self._choices = 0
        self._learnt_from = 0
        self._judged_from = 0
        self._lowest = -math.inf
        self._largest_chance = 1.0
        self._weighed_at = 0
        self._chance_left = 1.0
        self._unit = 0.0, 1.0
        self._surprises = Surprises()

    def recall(self, earlier: Sequence[EarlierSearch]) -> None:
        """Model similar searches."""
        placed = [self._place_earlier_search(one) for one in earlier]
        with limit_blas_to_one_thread():
            found = (
                fit_sources(placed, self._features, compress_slow, self._make_process) if len(self._features) else []
            )
        self._model.use_sources(found)

    def on_outcome(self, code: Code) -> None:
        """Count the outcomes since the last improvement."""
        log = self.logs.get(code, math.inf)
        self._surprises.record_outcome(code, self.logs.get(code))
        self._since_best = 0 if log < self._best - SLIGHT else self._since_best + 1
        self._best = min(self._best, log)

    def choose(self) -> Code | None:
        """Return the next config: one of a spread, the most promising one, or one that the model did not choose."""
        with limit_blas_to_one_thread():
            return self._choose_next()

    @property
    def converged(self) -> bool:
        """True if none was faster for a while, and hardly any config is likely to be more than 1 % faster."""
        is_quiet = len(self.logs) >= CONVERGED_AFTER and self._since_best >= CONVERGED_AFTER // 2
        # A single config that may well be faster answers this at no cost.
        if not is_quiet or self._largest_chance >= LITTLE_CHANCE:
            return False
        if len(self.taken) >= self._weighed_at + WEIGHED_EVERY:
            self._weighed_at = len(self.taken)
            self._chance_left = self.chance_of_improvement()
        return self._chance_left < LITTLE_CHANCE

    def chance_of_improvement(self) -> float:
        """Return the chance that some untried config is more than 1 % faster than the best one: an upper limit.

        The neighbours of the best are asked each, all others by the pool.
        """
        if self._lowest == -math.inf:
            return 1.0
        with limit_blas_to_one_thread():
            near, features = self._candidates.pick_candidates(0, self.taken, self.fastest_points(BEST_EXPECTED))
            far, others = self._candidates.list_others(self.taken | set(near))
            rest = max(0, self.domain.count - len(self.taken) - len(near))
            # One of the pool stands for as many as there are in the space.
            weights = np.append(np.ones(len(near)), np.full(len(far), rest / max(1, len(far))))
            return chance_of_improvement(
                self._model,
                UntriedConfigs(np.vstack([features.reshape(len(near), -1), others]) if near else others, weights),
                self._lowest - FASTER / self._unit[1],
                scale=self._surprises.scale,
                chance_to_work=self._predict_chance_to_work,
                seed=len(self.taken),
            )

    def _choose_next(self) -> Code | None:
        self._choices += 1
        if self._age < FIRST:
            found = self.draw_least_tried()
        elif len(self.logs) < 3 or len(self._features) == 0:
            found = self.draw_untried()
        else:
            self._model.is_heard = self._model.order_holds or not self._is_own_turn
            found = self._choose_most_promising()
        if found is not None and (self._age < FIRST or self._is_own_turn):
            self._own.add(found)
        return found

    @property
    def _is_own_turn(self) -> bool:
        """True if this choice continues from what such turns have found, as if nothing else had been suggest_name.

        The best configs of another search lie in a valley that may not be the deepest one here, and all that improves
        on them lies there, too.
        """
        return self._model.has_sources and self._choices % 2 == 1

    def _make_process(self) -> GaussianProcess:
        kinds = self._features.kinds
        plain = [place for place, kind in enumerate(kinds) if kind in ("main", "choice")]
        return GaussianProcess(np.array([PRIORS[kind] for kind in kinds]), PRIOR_SPREAD, plain)

    def _place_earlier_search(self, earlier: EarlierSearch) -> dict[Code, float]:
        """Return an earlier search's log costs by point, of the configs whose values are on the axes here."""
        pairs = [
            (self.domain.point_of_config(config), cost)
            for config, cost in zip(earlier.configs, earlier.costs, strict=True)
        ]
        return {code: math.log(cost) for code, cost in pairs if code is not None and cost > 0}

    @property
    def _age(self) -> int:
        """Progress of the search: its choices before this one, or what was known beyond :data:`GIVEN`."""
        return max(self._choices - 1, len(self.taken) - GIVEN)

    @property
    def _is_wide(self) -> bool:
        first = min(WIDE, self.domain.count // WIDE_SHARE)
        return self._age < first or self._age % WIDE_TURN == 0

    def _pick_candidates(self, best: Sequence[Code]) -> tuple[list[Code], Floats]:
        """Return the candidates of this choice, with features."""
        if not self._is_wide:
            codes, features = self._candidates.pick_candidates(0, self.taken, best)
            if codes:
                return codes, features
        return self._candidates.pick_candidates(SAMPLED, self.taken, best)

    def _choose_most_promising(self) -> Code | None:
        known, values, scale = self._select_modelled_points()
        self._lowest = float(values.min())
        points = self._features(np.array(known))
        # Half of a 95 % interval is two standard deviations; the model's values are logs in units of `scale`.
        doubts = np.array([self.doubts.get(code, 0.0) / (2 * scale) for code in known]) ** 2
        if len(self.logs) + len(self.failed) != self._learnt_from:
            self._learnt_from = len(self.logs) + len(self.failed)
            steps = next((steps for size, steps in LEARNING_STEPS if len(known) <= size), 1)
            self._model.fit_weights(points, values, steps if self._model.steps else FIRST_LEARNING_STEPS, doubts, scale)
        self._model.condition_on(points, values, doubts)
        if self.under_way:
            waiting = self._features(np.array(list(self.under_way)))
            believed = self._model.predict(waiting).mean
            doubts = np.append(doubts, np.zeros(len(believed)))
            self._model.condition_on(np.vstack([points, waiting]), np.append(values, believed), doubts)
        # Noise may have made the lowest measured value, and so the lowest expected ones count as well.
        fastest = self._fastest_places(known)
        expected = self._model.predict(points[fastest]).mean
        lowest = float(expected.min())
        around = [known[fastest[0]], *(known[fastest[place]] for place in np.argsort(expected)[:AROUND])]
        codes, features = self._pick_candidates(list(dict.fromkeys(around)))
        if not codes:
            return self.draw_untried()
        predicted = self._model.predict(features)
        promise = expected_improvement(predicted, lowest - self._improvement_sought())
        chance = normal_cdf((lowest - FASTER / scale - predicted.mean) / np.sqrt(predicted.variance))
        works = self._predict_chance_to_work(features)
        promise, chance = promise * works, chance * works
        self._largest_chance = float(chance.max())
        chosen = int(np.argmax(promise))
        self._record_expectation(codes[chosen], float(predicted.mean[chosen]), float(predicted.variance[chosen]))
        return codes[chosen]

    def _record_expectation(self, code: Code, mean: float, variance: float) -> None:
        """Keep what the model expects of a config that it has chosen."""
        centre, scale = self._unit
        deviation = scale * math.sqrt(variance + self._model.unexplained)
        self._surprises.expect_outcome(code, centre + mean * scale, deviation)

    def _fastest_places(self, known: Sequence[Code]) -> list[int]:
        """Return the places of the fastest points that this choice continues from."""
        own = [place for place, code in enumerate(known) if code in self._own] if self._is_own_turn else []
        return own[:BEST_EXPECTED] or list(range(min(BEST_EXPECTED, len(known))))

    def _improvement_sought(self) -> float:
        """Return the improvement that this choice seeks, in units of the model's values."""
        return SOUGHT[self._choices % 2] + FIRST_SOUGHT * math.exp(-self._age / FADING)

    def _select_modelled_points(self) -> tuple[list[Code], Floats, float]:
        """Return the points that the model learns from, their standardised values, and a unit's log latency."""
        codes = self.fastest_points(len(self.logs))
        if len(codes) > MODELLED:
            rest = codes[MODELLED_BEST:]
            picked = [rest[int(self.random.random() * len(rest))] for _ in range(MODELLED - MODELLED_BEST)]
            codes = codes[:MODELLED_BEST] + list(dict.fromkeys(picked))
        slow = list(self.slow)[-MODELLED_BEST // 3 :]
        logs = np.array([self.logs[code] for code in codes])
        logs = np.append(logs, np.full(len(slow), logs.max()))
        excess = compress_slow(logs - logs[0])
        scale = float(excess.std()) + 1e-9
        self._unit = float(logs[0] + excess.mean()), scale
        return codes + slow, (excess - excess.mean()) / scale, scale

    def _predict_chance_to_work(self, features: Floats) -> Floats:
        """Return the chance of each point not to fail: a second model regresses on what failed and what did not."""
        if not self.failed:
            return np.ones(len(features))
        failed = list(self.failed)[-JUDGED:]
        worked = list(self.logs)[-JUDGED:]
        share = len(worked) / (len(failed) + len(worked))
        labels = np.append(np.full(len(failed), -share), np.full(len(worked), 1 - share)) * 2
        points = self._features(np.array(failed + worked))
        if len(self.failed) != self._judged_from:
            self._judged_from = len(self.failed)
            self._judge.fit_weights(points, labels, 2 if self._judge.steps else FIRST_LEARNING_STEPS)
        self._judge.condition_on(points, labels)
        predicted = self._judge.predict(features)
        margin = predicted.mean + 2 * share - 1
        return np.asarray(np.clip(normal_cdf(margin / np.sqrt(predicted.variance + 0.05)), 0.02, 1))


def compress_slow(excess: Floats) -> Floats:
    """Compress the log costs of slow configs; costs are given above the lowest one."""
    middle = max(float(np.median(excess)), WELL_MODELLED)
    return np.where(excess > middle, middle + SLOW_SHARE * (excess - middle), excess)


def normal_cdf(z: Floats) -> Floats:
    """Return the normal distribution function, to 0.003: good enough to rank by, and without SciPy."""
    return np.asarray(0.5 * (1 + np.sign(z) * np.sqrt(1 - np.exp(-2 / math.pi * z * z))))


def expected_improvement(prediction: Prediction, goal: float) -> Floats:
    """Return the expected amount by which each point falls below ``goal`` (Jones et al., 1998)."""
    deviation = np.sqrt(prediction.variance)
    z = (goal - prediction.mean) / deviation
    return np.asarray(deviation * (z * normal_cdf(z) + np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)))
