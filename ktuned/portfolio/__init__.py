"""Portfolios: a few configs for many problems, and a small decision tree that chooses among them. No IO."""

from ktuned.portfolio.borders import find_border_problems, is_choice_wrong
from ktuned.portfolio.exports import describe_tree, render_c, render_json, render_python
from ktuned.portfolio.fit import Portfolio, fit_portfolio
from ktuned.portfolio.matrix import FAILED, Matrix, compute_mean_loss, shortlist_configs
from ktuned.portfolio.selection import Selection, count_octaves
from ktuned.portfolio.tree import Branch, Condition, Leaf, Tree, compute_figure, find_leaf, list_leaves

__all__ = [
    "FAILED",
    "Branch",
    "Condition",
    "Leaf",
    "Matrix",
    "Portfolio",
    "Selection",
    "Tree",
    "compute_figure",
    "compute_mean_loss",
    "count_octaves",
    "describe_tree",
    "find_border_problems",
    "find_leaf",
    "fit_portfolio",
    "is_choice_wrong",
    "list_leaves",
    "render_c",
    "render_json",
    "render_python",
    "shortlist_configs",
]
