"""Fitting a portfolio to a matrix of costs: choosing a few configs, and a tree that chooses among them. No IO.

More configs, or a larger tree, always fit the measured problems better. But the loss on other problems counts, so it is
estimated by cross-validation: configs and trees are chosen without a fifth of the problems, and evaluated on that
fifth. The fewest configs and the smallest tree with a low enough loss are taken. Correctness comes first: each leaf's
config must have been launched and checked on all of the leaf's problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ktuned.model import Scalar, canonical
from ktuned.portfolio.matrix import FAILED, Matrix, choose_configs, compute_mean_loss, shortlist_configs
from ktuned.portfolio.tree import (
    MAX_LEAVES,
    Branch,
    Tree,
    find_leaf,
    grow_trees,
    works_everywhere,
)

FOLDS = 5
"""Number of parts of the problems. Each is held out in turn, to estimate the loss on new problems."""

SIZES = (2, 3, 4, 6, 8, 12, MAX_LEAVES)
"""Numbers of leaves among which cross-validation chooses."""

CANDIDATES = 24
"""A portfolio's configs are chosen among this many of the most useful configs, which always include good ones."""

WANTED_LOSS = 0.01
"""The loss at which fewer configs are enough: the error of a measurement."""

TOLERANCE = 0.001
"""A smaller tree, or fewer configs, are preferred if their expected loss is at most this much larger."""


def fit_portfolio(matrix: Matrix, max_configs: int, wanted_loss: float = WANTED_LOSS) -> Tree:
    """Return the tree with the fewest configs whose expected loss is at most ``wanted_loss``.

    If there is none with up to ``max_configs``, return the best tree.

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
    best: Tree | None = None
    best_loss = FAILED
    for count in range(1, max_configs + 1):
        configs = choose_configs(matrix, count)
        if len(configs) < count and best is not None:
            break
        found, expected_loss = _fit_tree(matrix, configs)
        if not works_everywhere(found, matrix):
            continue
        if expected_loss < best_loss - TOLERANCE:
            best, best_loss = found, expected_loss
        if best_loss <= wanted_loss:
            break
    if best is None:
        raise ValueError(f"no {max_configs} configs work on all {len(matrix)} problems")
    return best


def _fit_tree(matrix: Matrix, configs: Sequence[str]) -> tuple[Tree, float]:
    """Return a tree of these configs, and its expected loss."""
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
    return _add_expected_loss(tree, expected - fitted), expected


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
