"""The order of a job's last compiles: no slot waits for a long one, and the promising ones stay in front."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

import pytest

from ktuned.model import Outcome
from ktuned.store import KnownConfig
from ktuned.tuning.prior_results import LAST_OF_SLOT, order_by_compile_time


def configs(*compile_s: float) -> list[KnownConfig]:
    """Return configs whose compiles take so long."""
    return [KnownConfig(str(n), {"n": n}, Outcome.MEASURED, compile_s=s) for n, s in enumerate(compile_s)]


def numbers(found: Sequence[KnownConfig]) -> list[int]:
    """Return which configs these are, by their places before."""
    return [int(config.text) for config in found]


def ends_at(order: Sequence[KnownConfig], slots: int) -> float:
    """Return when the last slot ends; of the last configs the longest begins first, as in a job."""
    most = LAST_OF_SLOT * slots
    last = sorted(order[-most:], key=lambda config: -config.compile_s)
    free_at = [0.0] * slots
    for config in [*order[: len(order) - len(last)], *last]:
        heapq.heapreplace(free_at, free_at[0] + config.compile_s)
    return max(free_at)


def test_short_compiles_keep_their_order() -> None:
    """Equal ones, those of unknown compiles, and a long one with enough behind it."""
    for compile_s in ([1.0] * 9, [0.0] * 9, [5.0] + [1.0] * 19, []):
        assert numbers(order_by_compile_time(configs(*compile_s), slots=2)) == list(range(len(compile_s)))


def test_a_long_compile_starts_just_early_enough() -> None:
    """With two slots, so that it has twice its time behind it: what follows it, and what comes after all of them."""
    long_last = configs(*[1.0] * 19, 6.0)
    assert numbers(order_by_compile_time(long_last, slots=2)) == [*range(7), 19, *range(7, 19)]
    assert numbers(order_by_compile_time(long_last, slots=2, behind_s=5.0)) == [*range(12), 19, *range(12, 19)]
    assert numbers(order_by_compile_time(long_last, slots=2, behind_s=12.0)) == [*range(20)]


def test_of_several_long_compiles_the_longest_starts_first() -> None:
    """Each counts for those that come before it; those for which there is too little begin at once."""
    found = order_by_compile_time(configs(*[1.0] * 40, 5.0, 7.0, 50.0), slots=2)
    assert numbers(found) == [42, *range(30), 41, 40, *range(30, 40)]


@pytest.mark.parametrize("seed", range(40))
def test_all_slots_end_at_about_the_same_time(seed: int) -> None:
    """With compiles as an SGEMM's on 14 slots, a seventh of them long: all end within a twentieth of the best time."""
    dice = random.Random(seed)
    drawn = [dice.uniform(0.6, 1.7) if dice.random() < 0.14 else dice.uniform(0.08, 0.4) for _ in range(248)]
    found = order_by_compile_time(configs(*drawn), slots=14)
    assert sorted(numbers(found)) == list(range(248))
    assert ends_at(found, 14) <= 1.05 * sum(drawn) / 14
