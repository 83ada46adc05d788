"""Counts and picks the valid configs of a product of axes, without listing them.

Knobs are bound one by one. After each step, later constraints depend only on the values of those bound knobs that they
read. Two prefixes that agree in these values have the same completions, which are counted once. So the counts of
independent groups of knobs multiply, as in ATF's chain of trees (Rasch et al., "Efficient Auto-Tuning of Parallel
Programs with Interdependent Tuning Parameters via Auto-Tuning Framework", TACO 2021), and every valid config has a
rank.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from ktuned.model import FrozenStruct, Scalar
from ktuned.search.conjuncts import Conjunct

Point = tuple[int, ...]
"""A point of a space: a config as the positions of its values on their axes."""

MAX_CELLS = 120_000
"""Most values that one count may test, in some 0.2 s and 15 MiB. If a chain needs more, it gets fewer conjuncts."""

NODES_PER_PAUSE = 1_000
"""Values that a walk tests between two pauses: about 1 ms."""


class CountTooLarge(Exception):
    """The count needs more than :data:`MAX_CELLS`."""


class _Level(FrozenStruct):
    """One axis to bind.

    Attributes:
        axis: The axis.
        checks: The conjuncts that become decidable once it is bound.
        live: The bound axes that later conjuncts still read.
    """

    axis: int
    checks: tuple[Conjunct, ...]
    live: tuple[int, ...]


class _Branches(FrozenStruct):
    """The admissible values at one level.

    Attributes:
        values: The positions of these values on the axis.
        totals: For each value, the number of completions of it and all values before it.
    """

    values: Sequence[int]
    totals: Sequence[int]

    @property
    def total(self) -> int:
        return self.totals[-1] if self.totals else 0


class Chain:
    """The configs of ``axes`` that satisfy ``conjuncts``: their ``count``, and each by its rank.

    Raises:
        CountTooLarge: Counting would take too long; try with fewer conjuncts.
    """

    def __init__(self, axes: Sequence[Sequence[Scalar]], conjuncts: Sequence[Conjunct]) -> None:
        self._axes = axes
        self._levels = _build_levels(_order_axes(axes, conjuncts), conjuncts)
        self._memo: list[dict[tuple[int, ...], _Branches]] = [{} for _ in self._levels]
        self._cells = 0
        self.count = self._count_completions(0, [0] * len(axes))

    def point_at_rank(self, rank: int) -> Point:
        """Return the config at a rank (0 ≤ rank < count), in the chain's own order."""
        if not 0 <= rank < self.count:
            raise IndexError(f"rank {rank} is not below {self.count}")
        bound = [0] * len(self._axes)
        for number, level in enumerate(self._levels):
            if self._is_free(level):
                rest = self._count_completions(number + 1, bound)
                bound[level.axis], rank = divmod(rank, rest)
                continue
            branches = self._find_branches(number, bound)
            branch = bisect_right(branches.totals, rank)
            bound[level.axis] = branches.values[branch]
            if branch:
                rank -= branches.totals[branch - 1]
        return tuple(bound)

    def _is_free(self, level: _Level) -> bool:
        """Return whether a level's value is neither tested nor read by later conjuncts."""
        return not level.checks and level.axis not in level.live

    def _count_completions(self, number: int, bound: list[int]) -> int:
        if number == len(self._levels):
            return 1
        level = self._levels[number]
        if self._is_free(level):
            return len(self._axes[level.axis]) * self._count_completions(number + 1, bound)
        return self._find_branches(number, bound).total

    def _find_branches(self, number: int, bound: list[int]) -> _Branches:
        level = self._levels[number]
        reads = self._levels[number - 1].live if number else ()
        key = tuple(bound[axis] for axis in reads)
        found = self._memo[number].get(key)
        if found is None:
            found = self._memo[number][key] = self._count_branches(number, level, bound)
        return found

    def _count_branches(self, number: int, level: _Level, bound: list[int]) -> _Branches:
        self._cells += len(self._axes[level.axis])
        if self._cells > MAX_CELLS:
            raise CountTooLarge
        values: list[int] = []
        counts: list[int] = []
        for value in range(len(self._axes[level.axis])):
            bound[level.axis] = value
            if satisfies_all(level.checks, self._axes, bound):
                count = self._count_completions(number + 1, bound)
                if count:
                    values.append(value)
                    counts.append(count)
        return _Branches(values, list(accumulate(counts)))


def walk_valid_points(axes: Sequence[Sequence[Scalar]], conjuncts: Sequence[Conjunct]) -> Iterator[Point | None]:
    """Yield the configs that satisfy ``conjuncts`` in the order of the axes, with ``None`` between as pauses."""
    levels = _build_levels(range(len(axes)), conjuncts)
    bound = [-1] * len(axes)
    number = 0
    nodes = 0
    while number >= 0:
        bound[number] += 1
        nodes += 1
        if nodes % NODES_PER_PAUSE == 0:
            yield None
        if bound[number] >= len(axes[number]):
            bound[number] = -1
            number -= 1
        elif satisfies_all(levels[number].checks, axes, bound):
            if number + 1 == len(axes):
                yield tuple(bound)
            else:
                number += 1


def satisfies_all(conjuncts: Sequence[Conjunct], axes: Sequence[Sequence[Scalar]], point: Sequence[int]) -> bool:
    """Return whether no conjunct rules out the config with these positions on the axes."""
    return all(conjunct.admits(axes, point) for conjunct in conjuncts)


def _order_axes(axes: Sequence[Sequence[Scalar]], checks: Sequence[Conjunct]) -> list[int]:
    """Return an order for binding axes in which checks are decided early, and few values must be remembered."""
    order: list[int] = []
    rest = set(range(len(axes)))

    def cost(axis: int) -> tuple[int, int, int]:
        bound = {*order, axis}
        opened = {
            other
            for check in checks
            if axis in check.places and not bound.issuperset(check.places)
            for other in check.places
        }
        decided = sum(axis in check.places and bound.issuperset(check.places) for check in checks)
        joined = any(axis in check.places and not bound.isdisjoint(set(check.places) - {axis}) for check in checks)
        return (-decided if joined or not order else 1, len(opened - bound), len(axes[axis]))

    while rest:
        axis = min(rest, key=lambda axis: (*cost(axis), axis))
        order.append(axis)
        rest.remove(axis)
    return order


def _build_levels(order: Sequence[int], checks: Sequence[Conjunct]) -> list[_Level]:
    levels = []
    for number, axis in enumerate(order):
        bound = set(order[: number + 1])
        ready = tuple(
            check
            for check in checks
            if bound.issuperset(check.places) and (axis in check.places or (number == 0 and not check.places))
        )
        open_checks = [check for check in checks if not bound.issuperset(check.places)]
        live = tuple(sorted({place for check in open_checks for place in check.places} & bound))
        levels.append(_Level(axis, ready, live))
    return levels
