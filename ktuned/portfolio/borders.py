"""Borders of a tree: problems on which its configs are measured before lookups are answered by it. No IO.

Between two leaves lies a border, and no measured problem is exactly there. So problems on both sides of it are measured
with the leaves' configs: a leaf's config may fail there, or lose more than the tree expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ktuned.model import Problem, canonical
from ktuned.portfolio.matrix import FAILED, Matrix
from ktuned.portfolio.selection import count_octaves
from ktuned.portfolio.tree import Condition, Leaf, Tree, compute_figure

MARGIN: Final = 0.02
"""The tree errs at a problem whose loss exceeds the largest known loss in its leaf by more than this."""


def is_choice_wrong(matrix: Matrix, row: int, leaf: Leaf, *, also_slow: bool = True) -> bool:
    """Return whether a leaf's config fails for a measured problem, or is ``also_slow``: loses more than expected."""
    if matrix.best[row] == FAILED:
        # No config works for this problem, which says nothing about the leaf.
        return False
    if not also_slow:
        return not matrix.works(row, leaf.config)
    return matrix.compute_loss(row, leaf.config) > max(leaf.worst_loss, leaf.expected_loss) + MARGIN


def find_border_problems(tree: Tree, problems: Sequence[Problem], measurable: Sequence[Problem] = ()) -> list[Problem]:
    """Return problems on both sides of each border of a tree.

    If only the ``measurable`` problems can be measured, return the nearest of them on either side. Otherwise problems
    are made up for borders of a single integer field: with the last integer before the border and the first one behind
    it, and with the other fields of the problem nearest to the border.
    """
    found: dict[str, Problem] = {}

    def add_borders(node: Tree, there: Sequence[Problem], others: Sequence[Problem]) -> None:
        if isinstance(node, Leaf) or not there:
            return
        meets = node.condition.is_met_by
        passing = [problem for problem in others if meets(problem)]
        failing = [problem for problem in others if not meets(problem)]
        if measurable:
            border = _find_measurable_border(node.condition, passing, failing)
        else:
            border = _make_border(node.condition, there)
        found.update({canonical(problem): problem for problem in border})
        add_borders(node.passing, [problem for problem in there if meets(problem)], passing)
        add_borders(node.failing, [problem for problem in there if not meets(problem)], failing)

    add_borders(tree, problems, measurable)
    return list(found.values())


def _make_border(condition: Condition, problems: Sequence[Problem]) -> list[Problem]:
    figure, limit = condition.figure, condition.limit
    if len(figure) != 1 or not all(type(problem[figure[0]]) is int for problem in problems):
        return []
    (name,) = figure
    last = int(limit)
    nearest = min(problems, key=lambda problem: count_octaves(problem, {**problem, name: max(1, last)}))
    return [{**nearest, name: value} for value in (last, last + 1)]


def _find_measurable_border(condition: Condition, *sides: Sequence[Problem]) -> list[Problem]:
    if condition.figure[0] == "=":
        # A condition on a string or bool has no border.
        return []

    def count_octaves_to_limit(problem: Problem) -> float:
        return count_octaves({"": compute_figure(condition.figure, problem) or 0}, {"": condition.limit})

    return [min(side, key=count_octaves_to_limit) for side in sides if side]
