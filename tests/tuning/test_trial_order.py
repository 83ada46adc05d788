"""The order of a job's last compilations: no slot waits for a long one, and promising configs stay in front."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

import pytest

from ktuned.model import Outcome
from ktuned.store import KnownConfig
from ktuned.tuning.prior_results import LAST_OF_SLOT, order_by_compile_time


def make_configs(*compile_s: float) -> list[KnownConfig]:
    """Return configs with these compile times."""
    return [KnownConfig(str(n), {"n": n}, Outcome.MEASURED, compile_s=s) for n, s in enumerate(compile_s)]


def list_numbers(order: Sequence[KnownConfig]) -> list[int]:
    """Return the configs' original positions."""
    return [int(config.text) for config in order]


def simulate_slots(order: Sequence[KnownConfig], slots: int) -> float:
    """Return when the last slot ends; of the last configs the longest begins first, as in a job."""
    most = LAST_OF_SLOT * slots
    last = sorted(order[-most:], key=lambda config: -config.compile_s)
    free_at = [0.0] * slots
    for config in [*order[: len(order) - len(last)], *last]:
        heapq.heapreplace(free_at, free_at[0] + config.compile_s)
    return max(free_at)


def test_short_compiles_keep_their_order() -> None:
    """So do equal and unknown compile times, and a long compilation with enough behind it."""
    for compile_s in ([1.0] * 9, [0.0] * 9, [5.0] + [1.0] * 19, []):
        assert list_numbers(order_by_compile_time(make_configs(*compile_s), slots=2)) == list(range(len(compile_s)))


def test_a_long_compile_starts_just_early_enough() -> None:
    """With two slots, twice its time must follow it, in the order itself or after all of it."""
    configs = make_configs(*[1.0] * 19, 6.0)
    assert list_numbers(order_by_compile_time(configs, slots=2)) == [*range(7), 19, *range(7, 19)]
    assert list_numbers(order_by_compile_time(configs, slots=2, behind_s=5.0)) == [*range(12), 19, *range(12, 19)]
    assert list_numbers(order_by_compile_time(configs, slots=2, behind_s=12.0)) == [*range(20)]


def test_of_several_long_compiles_the_longest_starts_first() -> None:
    """Each long compilation counts for the ones before it; if too little follows, it begins at once."""
    order = order_by_compile_time(make_configs(*[1.0] * 40, 5.0, 7.0, 50.0), slots=2)
    assert list_numbers(order) == [42, *range(30), 41, 40, *range(30, 40)]


@pytest.mark.parametrize("seed", range(40))
def test_all_slots_end_at_about_the_same_time(seed: int) -> None:
    """Compile times are those of an SGEMM on 14 slots, a seventh of them long: all slots end within 5 % of the
    optimum.
    """
    rng = random.Random(seed)
    compile_s = [rng.uniform(0.6, 1.7) if rng.random() < 0.14 else rng.uniform(0.08, 0.4) for _ in range(248)]
    order = order_by_compile_time(make_configs(*compile_s), slots=14)
    assert sorted(list_numbers(order)) == list(range(248))
    assert simulate_slots(order, 14) <= 1.05 * sum(compile_s) / 14
