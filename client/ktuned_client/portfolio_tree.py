"""Portfolios: trees that choose a config by a problem's fields, as the daemon stores and exports them.

A tree is plain data. A branch asks whether a figure of the problem is at most a limit, a leaf has the config::

    {
        "figure": ["M"],
        "limit": 96,
        "passing": {"config": {"BM": 16}, "expected_loss": 0.004, "problems": 5},
        "failing": {"config": {"BM": 64}, "expected_loss": 0.011, "problems": 7},
    }

==================  =========================================================
figure              its value
==================  =========================================================
``["M"]``           the number
``["M", "N"]``      the product of two numbers
``["2^", "M"]``     the largest power of two that divides the int, up to 128
``["=", "dtype"]``  the field; a problem passes if it equals the limit
==================  =========================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MOST_FACTOR: Final = 128
"""The largest power of two that counts as a divisor."""

MAX_DEPTH: Final = 32
"""Most branches between the top of a tree and a leaf; the daemon's trees have 16 leaves at most."""

_SCALARS: Final = (bool, int, float, str)


def find_leaf(tree: Mapping[str, Any], problem: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the leaf of a checked tree into which a problem falls."""
    while "config" not in tree:
        tree = tree["passing" if _passes(tree["figure"], tree["limit"], problem) else "failing"]
    return tree


def list_configs(tree: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the configs of a checked tree's leaves, each once, the one for the most problems first."""
    leaves = [tree]
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    while leaves:
        node = leaves.pop()
        if "config" not in node:
            leaves += [node["failing"], node["passing"]]
            continue
        key = repr(sorted(node["config"].items()))
        number, config = found.get(key, (0, node["config"]))
        found[key] = number + node["problems"], config
    return [dict(config) for _, config in sorted(found.values(), key=lambda entry: -entry[0])]


def check_tree(tree: Any, depth: int = MAX_DEPTH) -> None:
    """Check that data is a tree.

    Raises:
        ValueError: it is none; the message continues a sentence that begins with the file's name.
    """
    if isinstance(tree, dict) and "config" in tree:
        config, loss, problems = tree["config"], tree.get("expected_loss"), tree.get("problems")
        is_leaf = isinstance(config, dict) and all(isinstance(value, _SCALARS) for value in config.values())
        if is_leaf and type(loss) in (int, float) and type(problems) is int:
            return
    elif isinstance(tree, dict) and depth:
        figure, limit = tree.get("figure"), tree.get("limit")
        is_text = isinstance(figure, list) and len(figure) in (1, 2) and all(isinstance(name, str) for name in figure)
        if figure and is_text and isinstance(limit, _SCALARS if figure[0] == "=" else (int, float)):
            check_tree(tree.get("passing"), depth - 1)
            check_tree(tree.get("failing"), depth - 1)
            return
    raise ValueError("is invalid: a portfolio is not a tree of configs")


def _passes(figure: list[str], limit: Any, problem: Mapping[str, Any]) -> bool:
    if figure[0] == "=":
        value = problem.get(figure[-1])
        return type(value) is type(limit) and bool(value == limit)
    if figure[0] == "2^":
        number = problem.get(figure[-1])
        return type(number) is int and number > 0 and bool(min(MOST_FACTOR, number & -number) <= limit)
    product: float = 1
    for name in figure:
        value = problem.get(name)
        if value is None or type(value) not in (int, float):
            return False
        product *= value
    return bool(product <= limit)
