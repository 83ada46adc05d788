"""The choice of a job's finalists, and what their rounds say about each of them. No IO.

*Drift.* A device's pace changes: its clock falls when it is warm, other programs come and go. Within a round the pace
is the same for all finalists, so they are compared within rounds: the ratio of two medians of one round is evidence, a
difference between rounds is not.

*Evidence.* Nothing is known about how noise is distributed, so a sign test decides: if two configs were equally fast,
each would be ahead in half of the rounds. A finalist leaves when it is behind too often for chance (:data:`RARE`), or
far behind in each of a few rounds. More rounds follow while one of them contradicts the decision.

*Figures.* A finalist's figure is the median over its rounds, each divided by the pace of that round. The spread between
its rounds says how far the figure can be trusted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Self

from ktuned.model import FrozenStruct, median
from ktuned.protocol import is_noisy, is_ratio_implausible

MOST_TIMES = 3
"""At most this many times the preset's number of finalists compete: the rounds of each lengthen the quiet window."""

DRIFT = 0.03
"""How much a device's pace may differ between two trials. A larger value admits more finalists, whose slower ones leave
after three rounds. Of 15 rounds with 114 configs on an H100, one was this much slower for the best config alone."""

CLOSE = 0.01
"""A difference between finalists that is not worth another round."""

FEWEST_ROUNDS = 3
"""Rounds before a finalist may leave; the reference is timed in these rounds, too. Fewer have no meaningful median."""

ROBUST_ROUNDS = 2 * FEWEST_ROUNDS
"""With at least this many rounds, the spread leaves out the lowest and the highest."""

RARE = 0.05
"""Accepted chance of an error when two finalists are compared by their rounds."""

Rounds = Sequence[Mapping[int | None, float]]
"""For each round, the median (µs) by trial, with ``None`` for the reference. Disturbed measurements are absent."""


class Range(FrozenStruct):
    """The range in which a measured config's latency may lie."""

    low_us: float
    high_us: float

    @classmethod
    def from_measurement(cls, latency_us: float, spread_us: float, interval: tuple[float | None, float | None]) -> Self:
        """Return the range that holds the median's interval, where it is known, and the middle half of the samples."""
        low_us, high_us = (latency_us if end is None else end for end in interval)
        return cls(min(low_us, latency_us - spread_us / 2), max(high_us, latency_us + spread_us / 2))


class Figure(FrozenStruct):
    """A latency over all rounds, without the drift that its rivals shared.

    Attributes:
        latency_us: The median of the rounds' medians, corrected for drift.
        spread_us: The range of the rounds' medians; ``None`` for a single round. With :data:`ROBUST_ROUNDS` or more it
            leaves out the lowest and the highest: one disturbed round says nothing about the others.
    """

    latency_us: float
    spread_us: float | None


def choose_finalists(ranges: Sequence[Range], wanted: int) -> list[int]:
    """Return the places of the finalists among measured configs, whose ``ranges`` are sorted, the fastest first.

    Finalists are the ``wanted`` fastest, and other configs that may really be as fast as the best: the device may have
    been slow in their trial and fast in the best one's.
    """
    most = range(min(len(ranges), wanted * MOST_TIMES))
    return [place for place in most if place < wanted or ranges[place].low_us <= ranges[0].high_us * (1 + DRIFT) ** 2]


def find_remaining_rivals(rounds: Rounds, rivals: Sequence[int]) -> list[int]:
    """Return the rivals that may still win.

    A rival is out if it was more than 1 % slower than the best in too many of their common rounds for chance, or more
    than :data:`DRIFT` slower in all of at least :data:`FEWEST_ROUNDS`. Rounds are paired, and a sign test decides
    (Conover, *Practical Nonparametric Statistics*, 3.4).
    """
    best = _find_best(rounds, rivals)
    if best is None:
        return list(rivals)
    remaining = []
    for rival in rivals:
        ratios = _compute_ratios(rounds, rival, best)
        is_far = len(ratios) >= FEWEST_ROUNDS and min(ratios) > 1 + DRIFT
        if not is_far and not _is_significant(sum(ratio <= 1 + CLOSE for ratio in ratios), len(ratios)):
            remaining.append(rival)
    return remaining


def compute_figures(rounds: Rounds, rivals: Collection[int]) -> dict[int | None, Figure]:
    """Return the figure of everything that was timed in any round.

    A round's pace is the median over the rivals that were timed in the most rounds; a round without them has no pace.
    """
    turns = {rival: frozenset(turn for turn, one in enumerate(rounds) if rival in one) for rival in rivals}
    most = max(turns.values(), key=len, default=frozenset())
    steady = [rival for rival, timed_in in turns.items() if timed_in == most]
    paces = [median(one[rival] for rival in steady) if turn in most else None for turn, one in enumerate(rounds)]
    level = median([pace for pace in paces if pace is not None] or [0.0])
    found: dict[int | None, Figure] = {}
    for name in {name: None for one in rounds for name in one}:
        raw = [one[name] for one in rounds if name in one]
        paired = [
            one[name] / pace * level
            for one, pace in zip(rounds, paces, strict=True)
            if pace is not None and name in one
        ]
        kept = sorted(raw)[1:-1] if len(raw) >= ROBUST_ROUNDS else raw
        found[name] = Figure(median(paired or raw), max(kept) - min(kept) if len(kept) > 1 else None)
    return found


def are_rounds_noisy(rounds: Rounds, rivals: Collection[int]) -> bool:
    """Return whether the rounds of the best rival, or of the reference, differ so much that more rounds are needed."""
    best, found = _find_best(rounds, rivals), compute_figures(rounds, rivals)
    return any(name in found and is_noisy(found[name].latency_us, found[name].spread_us) for name in (best, None))


def is_reference_implausible(rounds: Rounds, rivals: Collection[int]) -> bool:
    """Return whether the reference must be timed again, because its ratio to the best rival is implausible.

    Its rounds may agree and yet be wrong, if the same disturbance met all of them. After :data:`ROBUST_ROUNDS` the
    figure is believed: the reference may really be that slow, and then each further round takes long.
    """
    best, found = _find_best(rounds, rivals), compute_figures(rounds, rivals)
    if best is None or None not in found or sum(None in one for one in rounds) >= ROBUST_ROUNDS:
        return False
    return is_ratio_implausible(found[None].latency_us, found[best].latency_us)


def elect_winner(
    latencies_us: Mapping[int, float], compared: Container[int | None], incumbent: int | None
) -> int | None:
    """Return the finalist that wins: the fastest of those that were timed in the rounds.

    An incumbent whose rounds were all disturbed keeps its earlier figure, and is replaced only by a finalist below it.

    Args:
        latencies_us: The figures of all finalists that have not failed.
        compared: The trials that were timed in the rounds.
        incumbent: The trial of the present winner, if there is one.
    """
    rivals = [trial for trial in latencies_us if trial in compared]
    best = min(rivals or latencies_us, key=lambda trial: (latencies_us[trial], trial != incumbent), default=None)
    if best is None or incumbent is None or incumbent not in latencies_us or incumbent in compared:
        return best
    return best if latencies_us[best] < latencies_us[incumbent] else incumbent


def are_rounds_contradictory(rounds: Rounds, rivals: Collection[int]) -> bool:
    """Return whether rounds contradict the decision.

    They do if another rival was more than 1 % faster than the best in so many of them that it may be as fast.
    """
    best = _find_best(rounds, rivals)
    if best is None:
        return False
    for rival in rivals:
        ratios = _compute_ratios(rounds, rival, best)
        contrary = sum(ratio < 1 - CLOSE for ratio in ratios)
        if contrary and not _is_significant(contrary, len(ratios)):
            return True
    return False


def _find_best(rounds: Rounds, rivals: Collection[int]) -> int | None:
    found = compute_figures(rounds, rivals)
    return min((rival for rival in rivals if rival in found), key=lambda rival: found[rival].latency_us, default=None)


def _compute_ratios(rounds: Rounds, rival: int, best: int) -> list[float]:
    """Return the ratio of a rival's median to the best one's, for each of their common rounds."""
    return [one[rival] / one[best] for one in rounds if rival in one and best in one]


def _is_significant(seen: int, rounds: int) -> bool:
    """Return whether ``seen`` of ``rounds`` is too few, by the sign test, for an event with a chance of one half."""
    return sum(math.comb(rounds, count) for count in range(seen + 1)) <= RARE * 2.0**rounds
