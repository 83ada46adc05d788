"""Pooled noise: the samples of earlier configs say how much a few samples of a new config prove."""

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
from tests.measuring.samples import make_samples

CHANCE = 0.001


def pool_noise(*configs: Sequence[float]) -> Noise:
    """Return the noise of configs that were fully sampled."""
    noise = Noise()
    for values in configs:
        noise.add_config(make_samples(values))
    return noise


QUIET_CONFIG = [99.0, 100.0, 101.0, 100.0, 100.0] * 2


def test_with_an_empty_pool_only_three_samples_that_are_far_off_decide() -> None:
    """Without a pool, three samples must be far off; fewer samples never decide."""
    noise = Noise()
    assert not noise.is_informative(3, CHANCE)
    assert noise.is_median_above(make_samples([116.0] * 3), 100.0, CHANCE)
    assert not noise.is_median_above(make_samples([114.0] * 3), 100.0, CHANCE)
    assert not noise.is_median_above(make_samples([500.0, 500.0]), 100.0, CHANCE)
    assert noise.find_lowest_median_us(make_samples([118.0] * 3), CHANCE) == pytest.approx(118 / (1 + UNKNOWN))


def test_a_quiet_pool_decides_by_three_samples() -> None:
    """If no config was more than 1 % above its median, three samples that are 2 % slower prove a slower config."""
    noise = pool_noise(*[QUIET_CONFIG] * 8)
    assert noise.is_informative(3, CHANCE)
    assert noise.is_median_above(make_samples([102.0] * 3), 100.0, CHANCE)
    assert not noise.is_median_above(make_samples([101.9, 99.9, 102.0]), 100.0, CHANCE)


def test_one_sample_below_the_latency_is_enough_not_to_be_above_it() -> None:
    """The fastest sample counts, however many slow samples there are."""
    assert not pool_noise(*[QUIET_CONFIG] * 8).is_median_above(make_samples([99.0, *[200.0] * 20]), 100.0, CHANCE)


def test_one_noisy_config_in_the_pool_makes_others_doubtful() -> None:
    """Late samples count as the noisy config's own rate, not as a fraction of all samples: the next config may be as
    noisy.
    """
    quiet, noisy = [100.0] * 10, [100.0, 150.0] * 5 + [100.0]
    assert pool_noise(*[quiet] * 20).is_median_above(make_samples([120.0] * 4), 100.0, CHANCE)
    assert not pool_noise(*[quiet] * 20, noisy).is_median_above(make_samples([120.0] * 4), 100.0, CHANCE)
    assert pool_noise(*[quiet] * 20, noisy).is_median_above(make_samples([160.0] * 4), 100.0, CHANCE)


def test_late_samples_in_a_row_count_more_than_single_ones() -> None:
    """Single late samples are independent accidents; late samples in a row are not."""
    alone = [100.0, 100.0, 100.0, 110.0] * 5
    in_a_row = [100.0] * 15 + [110.0] * 5
    for values, decides in ((alone, True), (in_a_row, False)):
        noise = pool_noise(*[[100.0] * 20] * 8, values)
        assert noise.is_median_above(make_samples([108.0] * 5), 100.0, CHANCE) is decides


def test_the_pool_is_bounded() -> None:
    """The oldest configs leave the pool."""
    noise = pool_noise([100.0, 200.0] * 10, *[QUIET_CONFIG] * MOST_CONFIGS)
    assert noise.is_median_above(make_samples([102.0] * 3), 100.0, CHANCE)


@settings(max_examples=50, deadline=None)
@given(
    configs=st.lists(st.lists(st.floats(50.0, 200.0), min_size=6, max_size=12), max_size=6),
    taken=st.lists(st.floats(50.0, 200.0), min_size=1, max_size=8),
    latency=st.floats(20.0, 250.0),
)
def test_the_interval_and_the_verdict_agree(configs: list[list[float]], taken: list[float], latency: float) -> None:
    """A median is above exactly what its interval excludes, and the interval holds all samples."""
    noise, taken_samples = pool_noise(*configs), make_samples(taken)
    low, high = (end(taken_samples, CHANCE) for end in (noise.find_lowest_median_us, noise.find_highest_median_us))
    assert low <= min(taken) <= max(taken) <= high
    if noise.is_median_above(taken_samples, latency, CHANCE):
        assert low >= latency * (1 - 1e-9)
    elif math.isfinite(low) and low > latency * (1 + 1e-9):
        raise AssertionError("the interval says more than the verdict")


@pytest.mark.parametrize("count", [3, 4, 5])
def test_an_interval_of_few_samples_covers_the_median(count: int) -> None:
    """At least 95 % of the intervals do, although one sample in ten is late and each config has noise of its own."""
    rng = random.Random(count)
    noise, covered, tried = Noise(), 0, 400

    def draw_samples(width: float, number: int) -> Samples:
        factors = (1 + rng.expovariate(20) if rng.random() < 0.1 else 1.0 for _ in range(number))
        return make_samples(100 * (1 + rng.gauss(0, width)) * factor for factor in factors)

    for _ in range(MOST_CONFIGS):
        noise.add_config(draw_samples(rng.uniform(0.002, 0.01), 10))
    for _ in range(tried):
        width = rng.uniform(0.002, 0.01)
        taken = draw_samples(width, count)
        truth = draw_samples(width, 301).median_us
        covered += noise.find_lowest_median_us(taken, MISSED) <= truth <= noise.find_highest_median_us(taken, MISSED)
    assert covered >= 0.95 * tried
