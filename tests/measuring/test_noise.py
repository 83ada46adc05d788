"""Pooled noise: what a few samples are worth follows from the configs before, and from nothing else."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktuned.measuring.noise import MOST_CONFIGS, UNKNOWN, Noise
from ktuned.measuring.race import MISSED
from ktuned.measuring.samples import Samples

CHANCE = 0.001


def samples(*values: float) -> Samples:
    """Return samples in their order."""
    taken = Samples()
    for value in values:
        taken.add_sample(value)
    return taken


def pool(*configs: Sequence[float]) -> Noise:
    """Return the noise of configs that were sampled in full."""
    noise = Noise()
    for values in configs:
        noise.add_config(samples(*values))
    return noise


QUIET = [99.0, 100.0, 101.0, 100.0, 100.0] * 2


def test_an_empty_pool_decides_nothing() -> None:
    """Three samples that are far off decide, fewer never do."""
    noise = Noise()
    assert not noise.is_informative(3, CHANCE)
    assert noise.is_median_above(samples(*[116.0] * 3), 100.0, CHANCE)
    assert not noise.is_median_above(samples(*[114.0] * 3), 100.0, CHANCE)
    assert not noise.is_median_above(samples(500.0, 500.0), 100.0, CHANCE)
    assert noise.find_lowest_median_us(samples(*[118.0] * 3), CHANCE) == pytest.approx(118 / (1 + UNKNOWN))


def test_a_quiet_pool_decides_by_three_samples() -> None:
    """Where no config was more than 1 % above its median, three samples 2 % above a latency are slower."""
    noise = pool(*[QUIET] * 8)
    assert noise.is_informative(3, CHANCE)
    assert noise.is_median_above(samples(*[102.0] * 3), 100.0, CHANCE)
    assert not noise.is_median_above(samples(101.9, 99.9, 102.0), 100.0, CHANCE)


def test_one_sample_below_the_latency_is_enough_not_to_be_above_it() -> None:
    """However many are slow: the least of them counts."""
    assert not pool(*[QUIET] * 8).is_median_above(samples(99.0, *[200.0] * 20), 100.0, CHANCE)


def test_one_noisy_config_in_the_pool_makes_others_doubtful() -> None:
    """The next one may be like it: its late samples count as its own rate, not as a fraction of everyone's."""
    quiet, noisy = [100.0] * 10, [100.0, 150.0] * 5 + [100.0]
    assert pool(*[quiet] * 20).is_median_above(samples(*[120.0] * 4), 100.0, CHANCE)
    assert not pool(*[quiet] * 20, noisy).is_median_above(samples(*[120.0] * 4), 100.0, CHANCE)
    assert pool(*[quiet] * 20, noisy).is_median_above(samples(*[160.0] * 4), 100.0, CHANCE)


def test_late_samples_in_a_row_count_more_than_single_ones() -> None:
    """Samples that were late in a row are no independent accidents, as single late ones are."""
    alone = [100.0, 100.0, 100.0, 110.0] * 5
    in_a_row = [100.0] * 15 + [110.0] * 5
    for values, decides in ((alone, True), (in_a_row, False)):
        noise = pool(*[[100.0] * 20] * 8, values)
        assert noise.is_median_above(samples(*[108.0] * 5), 100.0, CHANCE) is decides


def test_the_pool_is_bounded() -> None:
    """What was long ago is forgotten."""
    noise = pool([100.0, 200.0] * 10, *[QUIET] * MOST_CONFIGS)
    assert noise.is_median_above(samples(*[102.0] * 3), 100.0, CHANCE)


@settings(max_examples=50, deadline=None)
@given(
    configs=st.lists(st.lists(st.floats(50.0, 200.0), min_size=6, max_size=12), max_size=6),
    taken=st.lists(st.floats(50.0, 200.0), min_size=1, max_size=8),
    latency=st.floats(20.0, 250.0),
)
def test_the_interval_and_the_verdict_agree(configs: list[list[float]], taken: list[float], latency: float) -> None:
    """A median is above what its interval excludes, and the interval holds all samples."""
    noise, found = pool(*configs), samples(*taken)
    low, high = (end(found, CHANCE) for end in (noise.find_lowest_median_us, noise.find_highest_median_us))
    assert low <= min(taken) <= max(taken) <= high
    if noise.is_median_above(found, latency, CHANCE):
        assert low >= latency * (1 - 1e-9)
    elif math.isfinite(low) and low > latency * (1 + 1e-9):
        raise AssertionError("the interval says more than the verdict")


@pytest.mark.parametrize("count", [3, 4, 5])
def test_an_interval_of_few_samples_covers_the_median(count: int) -> None:
    """In 95 % of configs at least, also where one sample in ten is late and each config has a noise of its own."""
    dice = random.Random(count)
    noise, covered, tried = Noise(), 0, 400

    def draw(width: float, number: int) -> Samples:
        late = (1 + dice.expovariate(20) if dice.random() < 0.1 else 1.0 for _ in range(number))
        return samples(*(100 * (1 + dice.gauss(0, width)) * factor for factor in late))

    for _ in range(MOST_CONFIGS):
        noise.add_config(draw(dice.uniform(0.002, 0.01), 10))
    for _ in range(tried):
        width = dice.uniform(0.002, 0.01)
        taken = draw(width, count)
        truth = draw(width, 301).median_us
        covered += noise.find_lowest_median_us(taken, MISSED) <= truth <= noise.find_highest_median_us(taken, MISSED)
    assert covered >= 0.95 * tried
