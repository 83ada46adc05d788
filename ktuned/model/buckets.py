"""Shape buckets: rules that map a problem to the one that stands for it. Pure.

A rule is of one key. Rules that are data are applied wherever problems are keyed; a function of the kernel file is user
code, which workers call (:mod:`ktuned.catalog.buckets`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ktuned.model.values import Problem, Scalar

POW2 = "pow2"
"""Rule that rounds up to a power of two."""

FUNCTION = "function"
"""Stands for a rule that only the kernel file's code can apply."""

Rule = str | int | Sequence[int]
"""``pow2``, a number whose multiples are the buckets, or the buckets' upper ends in ascending order."""


def find_rule_fault(name: str, rule: object) -> str:
    """Return what is wrong with a key's rule, as the rest of a sentence; empty if nothing is."""
    if callable(rule) or rule == POW2 or (type(rule) is int and rule > 0):
        return ""
    if isinstance(rule, list | tuple) and rule and all(type(end) is int for end in rule):
        is_ascending = all(one < other for one, other in pairwise(rule))
        return "" if is_ascending else f"bucket: the ends of {name} are not in ascending order: {list(rule)}"
    return f"bucket: {name} is {rule!r}, not 'pow2', a positive int, a list of ints or a function of the value"


def apply_bucket_rules(rules: Mapping[str, Rule], problem: Problem) -> dict[str, Scalar]:
    """Return the problem that stands for a problem's bucket; values that are no int stay as they are."""
    return {key: _round_up(rules[key], value) if key in rules else value for key, value in problem.items()}


def _round_up(rule: Rule, value: Scalar) -> Scalar:
    if type(value) is not int or rule == FUNCTION:
        return value
    if isinstance(rule, str):
        return 1 << (value - 1).bit_length() if value > 1 else value
    if isinstance(rule, int):
        return -(-value // rule) * rule
    # Beyond the last end there is one bucket more, which that end stands for.
    return next((end for end in rule if value <= end), rule[-1])
