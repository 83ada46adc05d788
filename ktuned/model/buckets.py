"""Shape buckets: rules that map a problem to the problem that stands for its bucket. No IO.

Each rule is for one problem key, and is data, so that clients apply it, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ktuned.model.values import Problem, Scalar

POW2 = "pow2"
"""Rule that rounds up to a power of two."""

Rule = str | int | Sequence[int]
"""``pow2``, a number whose multiples are the buckets, or the buckets' upper ends in ascending order."""


def find_rule_fault(name: str, rule: object) -> str:
    """Return the error in a problem key's rule; empty if there is none."""
    if rule == POW2 or (type(rule) is int and rule > 0):
        return ""
    if isinstance(rule, list | tuple) and rule and all(type(end) is int for end in rule):
        is_ascending = all(one < other for one, other in pairwise(rule))
        return "" if is_ascending else f"bucket: the ends of {name} are not in ascending order: {list(rule)}"
    return f"bucket: {name} is {rule!r}, not 'pow2', a positive int or a list of ints"


def apply_bucket_rules(rules: Mapping[str, Rule], problem: Problem) -> dict[str, Scalar]:
    """Return the problem that stands for a problem's bucket; values that are no ints stay unchanged."""
    return {key: _round_up(rules[key], value) if key in rules else value for key, value in problem.items()}


def _round_up(rule: Rule, value: Scalar) -> Scalar:
    if type(value) is not int:
        return value
    if isinstance(rule, str):
        return 1 << (value - 1).bit_length() if value > 1 else value
    if isinstance(rule, int):
        return -(-value // rule) * rule
    # All values beyond the last end share one more bucket, which has the last end as its representative, too.
    return next((end for end in rule if value <= end), rule[-1])
