"""Fitting a portfolio to a matrix of costs: choosing a few configs, and a tree that chooses among them. No IO.

More configs, or a larger tree, always fit the measured problems better. But the loss on other problems counts, so it is
estimated by cross-validation: configs and trees are chosen without a fifth of the problems, and evaluated on that
fifth. The fewest configs and the smallest tree with a low enough loss are taken. Correctness comes first: each leaf's
config must have been launched and checked on all of the leaf's problems.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ktuned.model import Config, Scalar, canonical
from ktuned.portfolio.matrix import FAILED, Matrix, choose_configs, compute_mean_loss, shortlist_configs
from ktuned.portfolio.tree import (
    MAX_LEAVES,
    Branch,
    Leaf,
    Tree,
    find_leaf,
    grow_trees,
    list_leaves,
    tree_from_wire,
    tree_to_wire,
    works_everywhere,
)

FORMAT = 1

FOLDS = 5
"""Number of parts of the problems. Each is held out in turn, to estimate the loss on new problems."""

SIZES = (2, 3, 4, 6, 8, 12, MAX_LEAVES)
"""Numbers of leaves among which cross-validation chooses."""

CANDIDATES = 24
"""A portfolio's configs are chosen among this many of the most useful configs, which always include good ones."""

TOLERANCE = 0.001
"""A smaller tree, or fewer configs, are preferred if their expected loss is at most this much larger."""


@dataclass(frozen=True)
class Portfolio:
    """A tree of configs.

    Attributes:
        tree: The tree.
        expected_loss: Mean loss on problems that were held out.
        fitted_loss: Mean loss on the problems that it was fitted to.
        single_loss: Mean loss of the best single config for all problems.
        wanted_loss: The loss that was asked for.
        problems: Number of problems that it was fitted to.
    """

    tree: Tree
    expected_loss: float
    fitted_loss: float
    single_loss: float
    wanted_loss: float
    problems: int

    @property
    def configs(self) -> list[str]:
        """The configs of its leaves, sorted by their number of problems, the largest first."""
        counts: dict[str, int] = {}
        for leaf in list_leaves(self.tree):
            counts[leaf.config] = counts.get(leaf.config, 0) + leaf.problems
        return sorted(counts, key=lambda config: (-counts[config], config))

    def find_leaf(self, problem: Mapping[str, Scalar]) -> Leaf:
        """Return the leaf of a problem, with its config and its expected loss."""
        return find_leaf(self.tree, problem)

    def choose_config(self, problem: Mapping[str, Scalar]) -> Config:
        """Return the config for a problem."""
        config: Config = json.loads(self.find_leaf(problem).config)
        return config

    def to_wire(self) -> dict[str, Any]:
        """Return the portfolio as plain data."""
        return {
            "ktuned_portfolio": FORMAT,
            "tree": tree_to_wire(self.tree),
            "configs": self.configs,
            "expected_loss": self.expected_loss,
            "fitted_loss": self.fitted_loss,
            "single_loss": self.single_loss,
            "wanted_loss": self.wanted_loss,
            "problems": self.problems,
        }

    @classmethod
    def from_wire(cls, data: Mapping[str, Any]) -> Portfolio:
        """Rebuild from :meth:`to_wire`'s data.

        Raises:
            ValueError: The data is of another version.
        """
        if data.get("ktuned_portfolio") != FORMAT:
            raise ValueError(f"a portfolio of format {data.get('ktuned_portfolio')}, and this version reads {FORMAT}")
        figures = [data[name] for name in ("expected_loss", "fitted_loss", "single_loss", "wanted_loss", "problems")]
        return cls(tree_from_wire(data["tree"]), *figures)


def fit_portfolio(matrix: Matrix, max_configs: int = 4, wanted_loss: float = 0.02) -> Portfolio:
    """Return the portfolio with the fewest configs whose expected loss is at most ``wanted_loss``.

    If there is none with up to ``max_configs``, return the best portfolio.

    Raises:
        ValueError: There are no problems, or no tree was found whose configs work on all of their problems.
    """
    if not len(matrix):
        raise ValueError("a portfolio needs measured problems")
    for row, cost in enumerate(matrix.best):
        if cost == FAILED:
            raise ValueError(f"no config is known to work for {canonical(matrix.problems[row])}")
    everywhere = {config for config in matrix.costs[0] if all(config in row for row in matrix.costs)}
    matrix = matrix.select_columns(shortlist_configs(matrix.select_columns(everywhere), CANDIDATES))
    best: Portfolio | None = None
    single_loss = 0.0
    for count in range(1, max_configs + 1):
        configs = choose_configs(matrix, count)
        if len(configs) < count and best is not None:
            break
        found = _fit_tree(matrix, configs, wanted_loss)
        if count == 1:
            single_loss = found.fitted_loss
        found = replace(found, single_loss=single_loss)
        if not works_everywhere(found.tree, matrix):
            continue
        if best is None or found.expected_loss < best.expected_loss - TOLERANCE:
            best = found
        if best.expected_loss <= wanted_loss:
            break
    if best is None:
        raise ValueError(f"no {max_configs} configs work on all {len(matrix)} problems")
    return best


def _fit_tree(matrix: Matrix, configs: Sequence[str], wanted_loss: float) -> Portfolio:
    if not configs:
        raise ValueError("no config was measured on all problems")
    sizes = [1] if len(configs) == 1 else [size for size in SIZES if size >= len(configs)]
    held_out = _estimate_held_out_losses(matrix, len(configs), sizes)
    trees = grow_trees(matrix, configs, sizes)
    # Prefer trees that work to small trees: one with too few leaves may choose a config that fails for a problem.
    working = [place for place, tree in enumerate(trees) if works_everywhere(tree, matrix)] or [len(trees) - 1]
    least = min(held_out[place] for place in working)
    place = next(place for place in working if held_out[place] <= least + TOLERANCE)
    tree = trees[place]
    fitted = compute_mean_loss(matrix, [find_leaf(tree, problem).config for problem in matrix.problems])
    expected = max(fitted, held_out[place])
    return Portfolio(_add_expected_loss(tree, expected - fitted), expected, fitted, 0.0, wanted_loss, len(matrix))


def _add_expected_loss(tree: Tree, more: float) -> Tree:
    """Return a tree whose leaves expect ``more`` loss, because new problems lose more than fitted ones."""
    if isinstance(tree, Branch):
        return Branch(tree.condition, _add_expected_loss(tree.passing, more), _add_expected_loss(tree.failing, more))
    return replace(tree, expected_loss=tree.expected_loss + more)


def _estimate_held_out_losses(matrix: Matrix, count: int, sizes: Sequence[int]) -> list[float]:
    """Return for each size of a tree the mean loss on held-out problems, without which configs and tree were chosen."""
    folds = min(FOLDS, len(matrix))
    if folds < 2:
        return [0.0] * len(sizes)
    # Problems of similar size go to different folds.
    order = sorted(range(len(matrix)), key=lambda row: (_multiply_numbers(matrix.problems[row]), row))
    chosen = [[""] * len(matrix) for _ in sizes]
    for fold in range(folds):
        out = order[fold::folds]
        kept = matrix.select_rows(row for row in order if row not in set(out))
        for given, tree in zip(chosen, grow_trees(kept, choose_configs(kept, count), sizes), strict=True):
            for row in out:
                given[row] = find_leaf(tree, matrix.problems[row]).config
    return [compute_mean_loss(matrix, given) for given in chosen]


def _multiply_numbers(problem: Mapping[str, Scalar]) -> float:
    product = 1.0
    for value in problem.values():
        if type(value) in (int, float) and value > 0:  # type: ignore[operator]
            product *= float(value)
    return product
