"""Decision trees over a problem's fields, which choose one of a few configs.

A condition compares a figure of the problem with a threshold, or a field with a string or bool. Figures are the
numbers themselves (their logarithms would give the same splits), products of two numbers, and the largest power of two
that divides an integer, up to 128, because tiles and vector loads depend on it. A threshold is the geometric mean of
two neighbouring values, which is halfway between them on a logarithmic scale.

A tree grows by the split that lowers the weighted loss most, at any leaf. Cross-validation decides the number of leaves
(:mod:`~ktuned.portfolio.fit`). A leaf gets the config with the least loss on its problems, where a failure counts as a
large loss.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any

from ktuned.model import Scalar
from ktuned.portfolio.matrix import Matrix

MAX_LEAVES = 16
"""Most leaves: a person should be able to read the tree."""

MOST_FACTOR = 128
"""The largest power of two that counts as a divisor: the number of bytes in a warp's widest access."""

Figure = tuple[str, ...]
"""``("M",)`` a number, ``("M", "N")`` a product, ``("2^", "M")`` its power of two, ``("=", "dtype")`` a field."""


@dataclass(frozen=True)
class Condition:
    """A condition on a problem.

    A problem passes if its ``figure`` is at most ``limit``, or for ``("=", name)`` if the field equals ``limit``.
    """

    figure: Figure
    limit: Scalar

    def is_met_by(self, problem: Mapping[str, Scalar]) -> bool:
        """Return whether a problem passes; a problem without the fields does not."""
        value = compute_figure(self.figure, problem)
        if value is None:
            return False
        if self.figure[0] == "=":
            return type(value) is type(self.limit) and value == self.limit
        return value <= self.limit  # type: ignore[operator]


@dataclass(frozen=True)
class Leaf:
    """A config for some problems. Losses are relative to each problem's best config.

    Attributes:
        config: The config's canonical text.
        expected_loss: Its expected mean loss on new problems.
        problems: Number of problems that it was fitted to.
    """

    config: str
    expected_loss: float
    problems: int


@dataclass(frozen=True)
class Branch:
    """A condition, and the trees for problems that pass it and for those that fail it."""

    condition: Condition
    passing: Tree
    failing: Tree


Tree = Leaf | Branch


def compute_figure(figure: Figure, problem: Mapping[str, Scalar]) -> Scalar | None:
    """Return a problem's figure; ``None`` if a field is absent, or has another type."""
    if figure[0] == "=":
        return problem.get(figure[1])
    if figure[0] == "2^":
        number = problem.get(figure[1])
        return min(MOST_FACTOR, number & -number) if type(number) is int and number > 0 else None
    product: float = 1
    for name in figure:
        value = problem.get(name)
        if isinstance(value, str | bool) or value is None:
            return None
        product *= value
    return product


def find_leaf(tree: Tree, problem: Mapping[str, Scalar]) -> Leaf:
    """Return the leaf that a problem falls into."""
    while isinstance(tree, Branch):
        tree = tree.passing if tree.condition.is_met_by(problem) else tree.failing
    return tree


def list_leaves(tree: Tree) -> Iterator[Leaf]:
    """Yield the leaves from left to right."""
    if isinstance(tree, Leaf):
        yield tree
    else:
        yield from list_leaves(tree.passing)
        yield from list_leaves(tree.failing)


def list_figures(problems: Sequence[Mapping[str, Scalar]]) -> list[Figure]:
    """Return the figures by which problems differ."""
    names = sorted({name for problem in problems for name in problem})
    numbers = [name for name in names if all(_is_number(problem.get(name)) for problem in problems)]
    found: list[Figure] = [(name,) for name in numbers]
    found += list(combinations(numbers, 2))
    found += [("2^", name) for name in numbers if all(type(problem[name]) is int for problem in problems)]
    found += [("=", name) for name in names if name not in numbers]
    values = {figure: {compute_figure(figure, problem) for problem in problems} for figure in found}
    return [figure for figure in found if len(values[figure]) > 1 and (figure[0] == "=" or None not in values[figure])]


def grow_trees(matrix: Matrix, configs: Sequence[str], sizes: Sequence[int]) -> list[Tree]:
    """Return a tree for each of the ``sizes``, which are its most leaves, in ascending order.

    Raises:
        ValueError: There is no config, or no problem.
    """
    if not configs or not len(matrix):
        raise ValueError("a tree needs configs and problems")
    figures = list_figures(matrix.problems)
    values = {figure: [compute_figure(figure, problem) for problem in matrix.problems] for figure in figures}
    losses = [[matrix.compute_loss(row, config) for config in configs] for row in range(len(matrix))]
    open_leaves = [_Node(list(range(len(matrix))), matrix, losses, values)]
    root = open_leaves[0]
    grown: list[Tree] = []
    for size in sizes:
        while len(open_leaves) < size:
            splitting = max(open_leaves, key=lambda node: node.gain)
            if splitting.gain <= 1e-9:
                break
            open_leaves.remove(splitting)
            open_leaves += splitting.split_node()
        grown.append(root.build_tree(configs))
    return grown


class _Node:
    """A node of a growing tree: its best config, and the split that would lower its loss most."""

    def __init__(
        self,
        rows: list[int],
        matrix: Matrix,
        losses: Sequence[Sequence[float]],
        values: Mapping[Figure, Sequence[Scalar | None]],
    ) -> None:
        self._rows, self._matrix, self._losses, self._values = rows, matrix, losses, values
        totals = [sum(matrix.weights[row] * losses[row][place] for row in rows) for place in range(len(losses[0]))]
        self._config = min(range(len(totals)), key=lambda place: (totals[place], place))
        self._total = totals[self._config]
        self.children: tuple[_Node, _Node] | None = None
        self._condition: Condition | None = None
        self.gain = 0.0
        for figure in values:
            self._try_figure(figure)

    def _try_figure(self, figure: Figure) -> None:
        """Remember the best split by one figure, if it is better than all splits before."""
        values = self._values[figure]
        if figure[0] == "=":
            # Sort by text, because bools and strings cannot be compared.
            for value in sorted({values[row] for row in self._rows}, key=repr):
                passing = [row for row in self._rows if values[row] == value and type(values[row]) is type(value)]
                self._try_split(figure, value, self._sum_losses(passing), len(passing))
            return
        ordered = sorted(self._rows, key=lambda row: values[row])  # type: ignore[arg-type, return-value]
        sums = [0.0] * len(self._losses[0])
        for count, (row, following) in enumerate(pairwise(ordered), start=1):
            weight = self._matrix.weights[row]
            sums = [total + weight * loss for total, loss in zip(sums, self._losses[row], strict=True)]
            low, high = values[row], values[following]
            if low != high:
                self._try_split(figure, _choose_threshold(low, high), sums, count)  # type: ignore[arg-type]

    def _sum_losses(self, rows: Sequence[int]) -> list[float]:
        weights = self._matrix.weights
        return [sum(weights[row] * self._losses[row][place] for row in rows) for place in range(len(self._losses[0]))]

    def _try_split(self, figure: Figure, limit: Scalar | None, sums: Sequence[float], count: int) -> None:
        if limit is None or not 0 < count < len(self._rows):
            return
        total = self._sum_all_losses()
        rest = [whole - part for whole, part in zip(total, sums, strict=True)]
        gain = self._total - min(sums) - min(rest)
        # Among equally good splits the first is kept, so that single numbers are preferred to products.
        if gain > self.gain + 1e-9:
            self.gain, self._condition = gain, Condition(figure, limit)

    def _sum_all_losses(self) -> list[float]:
        if not hasattr(self, "_whole"):
            self._whole = self._sum_losses(self._rows)
        return self._whole

    def split_node(self) -> tuple[_Node, _Node]:
        """Split this node by its best condition; return its two children."""
        assert self._condition is not None
        problems = self._matrix.problems
        sides: tuple[list[int], list[int]] = ([], [])
        for row in self._rows:
            sides[not self._condition.is_met_by(problems[row])].append(row)
        passing, failing = (_Node(rows, self._matrix, self._losses, self._values) for rows in sides)
        self.children = passing, failing
        return self.children

    def build_tree(self, configs: Sequence[str]) -> Tree:
        """Return the tree below this node; two leaves with the same config are joined."""
        if self.children is not None and self._condition is not None:
            passing, failing = (child.build_tree(configs) for child in self.children)
            if isinstance(passing, Branch) or isinstance(failing, Branch) or passing.config != failing.config:
                return Branch(self._condition, passing, failing)
        weights = [self._matrix.weights[row] for row in self._rows]
        losses = [self._losses[row][self._config] for row in self._rows]
        mean = sum(weight * loss for weight, loss in zip(weights, losses, strict=True)) / (sum(weights) or 1.0)
        return Leaf(configs[self._config], mean, len(self._rows))


def _choose_threshold(low: float, high: float) -> float:
    """Return a threshold between two values; an integer if both values are integers."""
    middle = math.sqrt(low * high) if low > 0 else (low + high) / 2
    if type(low) is int and type(high) is int:
        return min(max(low, math.floor(middle)), high - 1)
    return middle


def _is_number(value: Scalar | None) -> bool:
    return type(value) is int or (type(value) is float and math.isfinite(value))


def works_everywhere(tree: Tree, matrix: Matrix) -> bool:
    """Return whether the config that the tree chooses for each problem was launched and checked for it."""
    return all(matrix.works(row, find_leaf(tree, problem).config) for row, problem in enumerate(matrix.problems))


def tree_to_wire(tree: Tree) -> dict[str, Any]:
    """Return a tree as plain data, which :mod:`ktuned_client.portfolio_tree` reads."""
    if isinstance(tree, Leaf):
        return {"config": json.loads(tree.config), "expected_loss": tree.expected_loss, "problems": tree.problems}
    return {
        "figure": list(tree.condition.figure),
        "limit": tree.condition.limit,
        "passing": tree_to_wire(tree.passing),
        "failing": tree_to_wire(tree.failing),
    }
