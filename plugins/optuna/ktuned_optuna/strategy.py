"""A sampler of Optuna behind ktuned's interface of strategies.

A sampler knows neither constraints nor that a config is tried but once. So each proposal that the space does not hold,
or that was tried, is given up, and after a few the nearest of some valid configs is tried instead, and reported as what
it is. Numbers are positions on their axes, in order; names and flags are categories. A failure counts as twice the
slowest latency.
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

from ktuned.model import Scalar
from ktuned.search import PointStrategy
from ktuned.spec import BoundSpace

ASKS = 6
"""Proposals of the sampler before the nearest valid config is taken instead."""

NEAREST_AMONG = 48
"""Valid configs among which the nearest is."""

FAILED = math.log(2)
"""Added to the slowest log latency for a failure; Optuna would forget failed trials."""

Code = tuple[int, ...]


class OptunaStrategy(PointStrategy):
    """Asks a sampler, which a subclass names, for one config after the other."""

    def __init__(self, space: BoundSpace, seed: int) -> None:
        super().__init__(space, seed)
        self._distributions = {
            knob: _distribution(axis) for knob, axis in zip(self.domain.knobs, self.domain.axes, strict=True)
        }
        with quietly():
            self._study = optuna.create_study(sampler=self.sampler(seed % 2**32))
        self._asked: dict[Code, Trial] = {}

    @abstractmethod
    def sampler(self, seed: int) -> BaseSampler:
        """Return the sampler, seeded."""

    def choose(self) -> Code | None:
        """Return what the sampler proposes, or the nearest valid config that is new."""
        with quietly():
            for _ in range(ASKS):
                trial = self._study.ask(self._distributions)
                code = tuple(trial.params[knob] for knob in self.domain.knobs)
                if code not in self.taken and self.domain.is_valid(code):
                    self._asked[code] = trial
                    return code
                self._study.tell(trial, state=TrialState.FAIL)
            return self._nearest(code)

    def on_outcome(self, code: Code) -> None:
        """Report a latency, or a failure as a long one."""
        value = self.logs.get(code)
        if value is None:
            value = max(self.logs.values(), default=0.0) + FAILED
        with quietly():
            trial = self._asked.pop(code, None)
            if trial is not None:
                self._study.tell(trial, value)
            else:
                self._study.add_trial(self._finished(code, value))

    def _nearest(self, wanted: Code) -> Code | None:
        drawn = [code for _ in range(NEAREST_AMONG) if (code := self.draw_untried()) is not None]
        return min(drawn, key=lambda code: self._distance(code, wanted), default=None)

    def _distance(self, one: Code, other: Code) -> float:
        return sum(
            float(a != b) if isinstance(distribution, CategoricalDistribution) else abs(a - b) / max(1, len(axis) - 1)
            for a, b, distribution, axis in zip(one, other, self._distributions.values(), self.domain.axes, strict=True)
        )

    def _finished(self, code: Code, value: float) -> FrozenTrial:
        params: dict[str, Any] = dict(zip(self.domain.knobs, code, strict=True))
        return create_trial(params=params, distributions=self._distributions, value=value)


@contextmanager
def quietly() -> Iterator[None]:
    """Keep Optuna's log and its warnings of experimental features to itself while it works."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _distribution(axis: Sequence[Scalar]) -> BaseDistribution:
    is_ordered = isinstance(axis, range) or all(type(value) in (int, float) for value in axis)
    return IntDistribution(0, len(axis) - 1) if is_ordered else CategoricalDistribution(range(len(axis)))
