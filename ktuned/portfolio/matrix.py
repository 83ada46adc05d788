"""Costs of many configs for many problems, as a matrix with holes, and the choice of the configs with the least loss.

The *loss* of a config for a problem is its cost relative to the best known cost, minus one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ktuned.model import Scalar

FAILED = math.inf
"""The cost of a config that does not work for a problem."""

LOSS_OF_FAILURE = 9.0
"""The loss of a failure or a hole in sums of losses: as if it took ten times as long as the best config."""


class Matrix(msgspec.Struct, frozen=True):
    """Costs of configs for problems: less is better.

    Attributes:
        problems: The problems, one for each row.
        weights: The importance of each problem: for example its share of an application's time, or 1.
        costs: For each problem, the known costs by the config's canonical text.
        best: The least known cost of each problem, perhaps of a config that this matrix leaves out.
    """

    problems: tuple[Mapping[str, Scalar], ...]
    weights: tuple[float, ...]
    costs: tuple[Mapping[str, float], ...]
    best: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not len(self.problems) == len(self.weights) == len(self.costs):
            raise ValueError("a matrix has a weight and a row of costs for each problem")
        if not self.best:
            best = tuple(min(row.values(), default=FAILED) for row in self.costs)
            msgspec.structs.force_setattr(self, "best", best)

    def __len__(self) -> int:
        return len(self.problems)

    def compute_loss(self, row: int, config: str) -> float:
        """Return a config's loss for a problem; an unknown cost counts as a failure."""
        cost, best = self.costs[row].get(config, FAILED), self.best[row]
        return LOSS_OF_FAILURE if cost == FAILED or best == FAILED else min(LOSS_OF_FAILURE, cost / best - 1.0)

    def works(self, row: int, config: str) -> bool:
        """Return whether a config was launched and checked for a problem."""
        return self.costs[row].get(config, FAILED) < FAILED

    def select_rows(self, chosen: Iterable[int]) -> Matrix:
        """Return the matrix of some problems."""
        chosen = list(chosen)
        return Matrix(
            tuple(self.problems[row] for row in chosen),
            tuple(self.weights[row] for row in chosen),
            tuple(self.costs[row] for row in chosen),
            tuple(self.best[row] for row in chosen),
        )

    def select_columns(self, configs: Iterable[str]) -> Matrix:
        """Return the matrix of some configs. Losses are still relative to the best of all configs."""
        kept = set(configs)
        costs = tuple({config: cost for config, cost in row.items() if config in kept} for row in self.costs)
        return Matrix(self.problems, self.weights, costs, self.best)


def compute_mean_loss(matrix: Matrix, chosen: Sequence[str]) -> float:
    """Return the weighted mean loss if each problem gets the config at its place in ``chosen``."""
    total = sum(matrix.weights) or 1.0
    return sum(weight * matrix.compute_loss(row, chosen[row]) for row, weight in enumerate(matrix.weights)) / total


def shortlist_configs(matrix: Matrix, count: int, near: float = 0.10) -> list[str]:
    """Return the configs that are worth measuring for all problems, the most useful first.

    The choice is greedy: each next config lowers the weighted loss most; an unknown cost counts as no gain. Candidates
    are configs within ``near`` of the best for some problem: others are hardly useful in a portfolio.
    """
    candidates = sorted(
        {
            config
            for row, costs in enumerate(matrix.costs)
            for config, cost in costs.items()
            if cost <= matrix.best[row] * (1.0 + near) and cost < FAILED
        }
    )
    losses = {config: [matrix.compute_loss(row, config) for row in range(len(matrix))] for config in candidates}
    return _choose_greedily(losses, matrix.weights, count)


def choose_configs(matrix: Matrix, count: int) -> list[str]:
    """Return up to ``count`` configs with the least loss, if each problem gets the best of them.

    The choice is greedy, and then improved by exchanges as long as one helps. Candidates are the configs whose cost is
    known for all problems.
    """
    candidates = sorted({config for row in matrix.costs for config in row})
    losses = {
        config: [matrix.compute_loss(row, config) for row in range(len(matrix))]
        for config in candidates
        if all(config in row for row in matrix.costs)
    }
    chosen = _choose_greedily(losses, matrix.weights, count)
    improved = True
    while improved and chosen:
        improved = False
        for place in range(len(chosen)):
            others = chosen[:place] + chosen[place + 1 :]
            rest = _find_least_losses(losses, others, len(matrix))
            best = min(losses, key=lambda config: (_sum_losses(losses[config], rest, matrix.weights), config))
            before = _sum_losses(losses[chosen[place]], rest, matrix.weights)
            if _sum_losses(losses[best], rest, matrix.weights) < before - 1e-9:
                chosen[place] = best
                improved = True
    return chosen


def _choose_greedily(losses: Mapping[str, Sequence[float]], weights: Sequence[float], count: int) -> list[str]:
    least = [LOSS_OF_FAILURE] * len(weights)
    chosen: list[str] = []
    while losses and len(chosen) < count:
        best = min(losses, key=lambda config: (_sum_losses(losses[config], least, weights), config))
        before = sum(weight * loss for weight, loss in zip(weights, least, strict=True))
        if _sum_losses(losses[best], least, weights) >= before - 1e-9:
            break
        chosen.append(best)
        least = [min(pair) for pair in zip(least, losses[best], strict=True)]
    return chosen


def _find_least_losses(losses: Mapping[str, Sequence[float]], chosen: Iterable[str], count: int) -> list[float]:
    columns = [losses[config] for config in chosen]
    return [min((column[row] for column in columns), default=LOSS_OF_FAILURE) for row in range(count)]


def _sum_losses(column: Sequence[float], least: Sequence[float], weights: Sequence[float]) -> float:
    return sum(weight * min(pair) for weight, *pair in zip(weights, column, least, strict=True))
