"""Portfolios: few configs for many problems, with a small decision tree that chooses among them. Decides; no IO."""

from ktuned.portfolio.exports import describe_condition, render_c, render_json, render_python
from ktuned.portfolio.fit import Portfolio, fit_portfolio
from ktuned.portfolio.matrix import FAILED, Matrix, mean_loss, shortlist
from ktuned.portfolio.selection import Selection, octaves
from ktuned.portfolio.tree import Branch, Condition, Leaf, Tree, leaf_of, leaves

__all__ = [
    "FAILED",
    "Branch",
    "Condition",
    "Leaf",
    "Matrix",
    "Portfolio",
    "Selection",
    "Tree",
    "describe_condition",
    "fit_portfolio",
    "leaf_of",
    "leaves",
    "mean_loss",
    "octaves",
    "render_c",
    "render_json",
    "render_python",
    "shortlist",
]
