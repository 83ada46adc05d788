"""Choice of a job's finalists, and what their rounds say about each of them. No IO.

A device's pace drifts: its clock falls when it is warm, a neighbour comes and goes. In one round all finalists meet it
alike, so their figures are compared within rounds, not across them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Self

import msgspec

from ktuned.model import is_noisy, median

MOST_TIMES = 3
"""Times the preset's finalists that compete at most, where they may win: each costs its rounds of a quiet window."""

DRIFT = 0.03
"""Part by which a device's pace differs between two trials: what is close costs its rounds, of which the slower ones
take part in three. Of 15 rounds of the same 114 configs on an H100, one was slower by that for the best config alone.
"""

CLOSE = 0.01
"""A difference between finalists that is not worth another round."""

FEWEST_ROUNDS = 3
"""Rounds after which a finalist may leave, and in which the reference runs along: fewer have no middle one."""

ROBUST_ROUNDS = 2 * FEWEST_ROUNDS
"""Rounds from which on a single one of them, on each side, is no evidence of noise."""

RARE = 0.05
"""Chance of an error in each comparison of two finalists by their rounds."""

Rounds = Sequence[Mapping[int | None, float]]
"""The medians (µs) of each round by trial, ``None`` for the reference; one that was disturbed is absent."""


class Range(msgspec.Struct, frozen=True):
    """The latencies that a measured config may have."""

    low_us: float
    high_us: float

    @classmethod
    def from_measurement(cls, latency_us: float, spread_us: float, interval: tuple[float | None, float | None]) -> Self:
        """Return the interval of a median, where it is known, and the middle half of the samples."""
        low_us, high_us = (latency_us if end is None else end for end in interval)
        return cls(min(low_us, latency_us - spread_us / 2), max(high_us, latency_us + spread_us / 2))


class Figure(msgspec.Struct, frozen=True):
    """A latency over all rounds, without the drift that its rivals shared, and the range of the rounds' medians.

    Of many rounds the lowest and the highest do not count: one that was disturbed says nothing about the others.
    """

    latency_us: float
    spread_us: float


def choose_finalists(ranges: Sequence[Range], wanted: int) -> list[int]:
    """Return the finalists among measured configs, by their place; the fastest are first.

    Besides the ``wanted`` ones these are all that may be as fast as the best, as far as both were sampled, on a device
    whose pace drifts from one trial to the next: it may have been slow for the one, and fast for the other.
    """
    most = range(min(len(ranges), wanted * MOST_TIMES))
    return [place for place in most if place < wanted or ranges[place].low_us <= ranges[0].high_us * (1 + DRIFT) ** 2]


def find_remaining_rivals(rounds: Rounds, rivals: Sequence[int]) -> list[int]:
    """Return the rivals that may still win: all but those that were slower than the best by more than 1 % in so many of
    the rounds that both were timed in that it is no chance, or by more than a drift in each of :data:`FEWEST_ROUNDS`.

    Medians of rounds are paired, and a sign test decides (Conover, *Practical Nonparametric Statistics*, 3.4).
    """
    best = _find_best(rounds, rivals)
    if best is None:
        return list(rivals)
    left = []
    for rival in rivals:
        ratios = _compute_ratios(rounds, rival, best)
        is_far = len(ratios) >= FEWEST_ROUNDS and min(ratios) > 1 + DRIFT
        if not is_far and not _is_significant(sum(ratio <= 1 + CLOSE for ratio in ratios), len(ratios)):
            left.append(rival)
    return left


def compute_figures(rounds: Rounds, rivals: Collection[int]) -> dict[int | None, Figure]:
    """Return the figure of everything that was timed in some round.

    A round's pace is the median of those ``rivals`` that were timed in most rounds; a round without them has none.
    """
    turns = {rival: frozenset(turn for turn, one in enumerate(rounds) if rival in one) for rival in rivals}
    most = max(turns.values(), key=len, default=frozenset())
    steady = [rival for rival, there in turns.items() if there == most]
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
        found[name] = Figure(median(paired or raw), max(kept) - min(kept))
    return found


def is_implausible(rounds: Rounds, rivals: Collection[int]) -> bool:
    """Return whether the best rival's rounds, or the reference's, differ so much that more of them are due."""
    best, found = _find_best(rounds, rivals), compute_figures(rounds, rivals)
    return any(name in found and is_noisy(found[name].latency_us, found[name].spread_us) for name in (best, None))


def elect_winner(
    latencies_us: Mapping[int, float], compared: Container[int | None], incumbent: int | None
) -> int | None:
    """Return which of the finalists wins a round: the fastest by the figures of this very round.

    ``latencies_us`` are those of all finalists that are not refuted, ``compared`` those that were timed in the round.
    An incumbent that every round was disturbed for keeps its figure, and gives way only to one that beats it.
    """
    rivals = [trial for trial in latencies_us if trial in compared]
    best = min(rivals or latencies_us, key=lambda trial: (latencies_us[trial], trial != incumbent), default=None)
    if best is None or incumbent is None or incumbent not in latencies_us or incumbent in compared:
        return best
    return best if latencies_us[best] < latencies_us[incumbent] else incumbent


def is_undecided(rounds: Rounds, rivals: Collection[int]) -> bool:
    """Return whether some round contradicts the decision: another rival was faster in it than the best, beyond 1 %, and
    in so many others that it may be no chance.
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
    """Return a rival's medians relative to the best one's, of the rounds that both were timed in."""
    return [one[rival] / one[best] for one in rounds if rival in one and best in one]


def _is_significant(seen: int, rounds: int) -> bool:
    """Return whether something that happens in half of the rounds is seen as seldom with a chance of 5 % at most."""
    return sum(math.comb(rounds, count) for count in range(seen + 1)) <= RARE * 2.0**rounds
