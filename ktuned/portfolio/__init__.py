"""Portfolios: a few configs for many problems, and a small decision tree that chooses among them. No IO."""

from ktuned.portfolio.fit import WANTED_LOSS, fit_portfolio
from ktuned.portfolio.matrix import FAILED, Matrix, compute_mean_loss, shortlist_configs
from ktuned.portfolio.selection import Selection, count_octaves, weigh_by_launches
from ktuned.portfolio.tree import Tree, find_leaf, list_leaves, tree_to_wire

__all__ = [
    "FAILED",
    "WANTED_LOSS",
    "Matrix",
    "Selection",
    "Tree",
    "compute_mean_loss",
    "count_octaves",
    "find_leaf",
    "fit_portfolio",
    "list_leaves",
    "shortlist_configs",
    "tree_to_wire",
    "weigh_by_launches",
]
