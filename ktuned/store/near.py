"""Near problems: the distance of two problems, and the winners of the nearest ones. No IO.

A lookup serves another problem's winner unchanged. So it only accepts problems with the same strings and bools, and
takes the problem with the smallest log distance over the numbers: the sum of abs(log2(a / b)), by which 1024 is as far
from 512 as from 2048.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from ktuned.model import LATENCY, Problem, WinnerKey, is_exact
from ktuned.store.winners import Winner

NEAR_CANDIDATES = 4
"""Most winners that are considered, because a worker may have to check whether each is valid."""

OTHER_KIND = 4.0
"""Octaves for a different string or bool: another dtype changes the best config as much as 16 times the size does."""


def find_nearest_winners(problem: Problem, winners: Iterable[Winner]) -> list[Winner]:
    """Return the winners of the nearest problems that can be compared with this problem, the nearest first."""
    measured = ((measure_distance(problem, winner.problem), winner) for winner in winners)
    reachable = sorted(
        ((far, winner) for far, winner in measured if far is not None),
        key=lambda pair: (pair[0], pair[1].context.problem),
    )
    return [winner for _, winner in reachable[:NEAR_CANDIDATES]]


def find_stand_ins(key: WinnerKey, problem: Problem, winners: Iterable[Winner]) -> list[Winner]:
    """Return the winners of other keys that may stand in for a missing one, the best first.

    For an objective other than latency, the problem's fastest config comes first: it is valid, and seldom bad. For
    exact numerics there are no stand-ins, because their bits were not compared with the anchor's.
    """
    if is_exact(key.objective):
        return []
    on_device = [winner for winner in winners if winner.context.device == key.device]
    fastest = [winner for winner in on_device if winner.key == key._replace(objective=LATENCY) != key]
    others = (
        winner for winner in on_device if winner.objective == key.objective and winner.context.problem != key.problem
    )
    return fastest + find_nearest_winners(problem, others)


def measure_distance(problem: Problem, near: Problem) -> float | None:
    """Return the distance of two problems in octaves, or ``None`` when they cannot be compared."""
    if set(problem) != set(near):
        return None
    for key, value in problem.items():
        other = near[key]
        if value == other and isinstance(value, bool) == isinstance(other, bool):
            continue
        if isinstance(value, str | bool) or isinstance(other, str | bool) or value <= 0 or other <= 0:
            return None
    return count_octaves(problem, near)


def count_octaves(one: Problem, other: Problem) -> float:
    """Return the octaves between two problems; a field that differs in kind or is missing counts :data:`OTHER_KIND`."""
    octaves = []
    for name in one.keys() | other.keys():
        value, another = one.get(name), other.get(name)
        if value == another and type(value) is type(another):
            continue
        if type(value) in (int, float) and type(another) in (int, float) and min(value, another) > 0:  # type: ignore[type-var, operator]
            octaves.append(abs(math.log2(value) - math.log2(another)))  # type: ignore[arg-type]
        else:
            octaves.append(OTHER_KIND)
    # The sum does not depend on the order of the fields.
    return math.fsum(octaves)
