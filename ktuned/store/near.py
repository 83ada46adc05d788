"""Near problems: the distance of two problems, and the winners of the nearest ones. No IO.

A lookup serves another problem's winner unchanged. So it only accepts problems with the same strings and bools, and
takes the problem with the smallest log distance over the numbers: the sum of abs(ln(a / b)), by which 1024 is as far
from 512 as from 2048.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from ktuned.model import LATENCY, Problem, Scalar, WinnerKey, is_exact
from ktuned.store.winners import Winner

NEAR_CANDIDATES = 4
"""Most winners that are considered, because a worker may have to check whether each is valid."""


def find_nearest_winners(problem: Mapping[str, Scalar], winners: Iterable[Winner]) -> list[Winner]:
    """Return the winners of the nearest problems that can be compared with this problem, the nearest first."""
    measured = ((measure_distance(problem, winner.problem), winner) for winner in winners)
    reachable = sorted(
        ((far, winner) for far, winner in measured if far is not None),
        key=lambda pair: (pair[0], pair[1].context.problem),
    )
    return [winner for _, winner in reachable[:NEAR_CANDIDATES]]


def find_stand_ins(key: WinnerKey, problem: Mapping[str, Scalar], winners: Iterable[Winner]) -> list[Winner]:
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
    """Return the distance of two problems, or ``None`` when they cannot be compared."""
    if set(problem) != set(near):
        return None
    total = 0.0
    for key, value in problem.items():
        other = near[key]
        if value == other and isinstance(value, bool) == isinstance(other, bool):
            continue
        if isinstance(value, str | bool) or isinstance(other, str | bool) or value <= 0 or other <= 0:
            return None
        total += abs(math.log(value) - math.log(other))
    return total
