"""Runs a sampler of Optuna as a search strategy of ktuned.

A sampler does not know the space's constraints, nor that a config is tried only once. So a proposal that is invalid or
was tried before is reported to it as failed. After :data:`ASKS` such proposals the nearest of some random valid configs
is tried instead, and reported as a trial that the sampler did not ask for.

Numbers become positions on their axes, in order; names and flags become categories. A failed config counts as twice as
slow as the slowest, because Optuna ignores failed trials.
"""

from __future__ import annotations

import math
import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from ktuned.declaration import BoundSpace
from ktuned.model import Scalar
from ktuned.search import Point, PointStrategy

ASKS = 6
"""Useless proposals of the sampler before the nearest valid config is taken instead."""

NEAREST_AMONG = 48
"""Random valid configs from which the nearest is taken."""

FAILED = math.log(2)
"""Added to the slowest log latency for a failed config."""


class OptunaStrategy(PointStrategy):
    """Asks a sampler, which the subclass makes, for one config after another."""

    def __init__(self, space: BoundSpace, seed: int) -> None:
        super().__init__(space, seed)
        self._distributions = {
            knob: _make_distribution(axis) for knob, axis in zip(self.domain.knobs, self.domain.axes, strict=True)
        }
        with silence_optuna():
            self._study = optuna.create_study(sampler=self.sampler(seed % 2**32))
        self._asked: dict[Point, Trial] = {}

    @abstractmethod
    def sampler(self, seed: int) -> BaseSampler:
        """Make the sampler, with a seed."""

    def choose(self) -> Point | None:
        """Return the sampler's proposal, or else the nearest valid config that is new; ``None`` if there is none."""
        with silence_optuna():
            for _ in range(ASKS):
                trial = self._study.ask(self._distributions)
                point = tuple(trial.params[knob] for knob in self.domain.knobs)
                if point not in self.taken and self.domain.is_valid(point):
                    self._asked[point] = trial
                    return point
                self._study.tell(trial, state=TrialState.FAIL)
            return self._draw_nearest(point)

    def on_outcome(self, point: Point) -> None:
        """Report a latency to the sampler; a failure counts as a long one."""
        value = self.logs.get(point)
        if value is None:
            value = max(self.logs.values(), default=0.0) + FAILED
        with silence_optuna():
            trial = self._asked.pop(point, None)
            if trial is not None:
                self._study.tell(trial, value)
            else:
                self._study.add_trial(self._make_finished_trial(point, value))

    def _draw_nearest(self, wanted: Point) -> Point | None:
        drawn = [point for _ in range(NEAREST_AMONG) if (point := self.draw_untried()) is not None]
        return min(drawn, key=lambda point: self._measure_distance(point, wanted), default=None)

    def _measure_distance(self, one: Point, other: Point) -> float:
        return sum(
            float(a != b) if isinstance(distribution, CategoricalDistribution) else abs(a - b) / max(1, len(axis) - 1)
            for a, b, distribution, axis in zip(one, other, self._distributions.values(), self.domain.axes, strict=True)
        )

    def _make_finished_trial(self, point: Point, value: float) -> FrozenTrial:
        params: dict[str, Any] = dict(zip(self.domain.knobs, point, strict=True))
        return create_trial(params=params, distributions=self._distributions, value=value)


@contextmanager
def silence_optuna() -> Iterator[None]:
    """Suppress Optuna's log and its warnings about experimental features."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _make_distribution(axis: Sequence[Scalar]) -> BaseDistribution:
    is_ordered = isinstance(axis, range) or all(type(value) in (int, float) for value in axis)
    return IntDistribution(0, len(axis) - 1) if is_ordered else CategoricalDistribution(range(len(axis)))
