"""The race: a config that cannot win gets few samples; a config that may win is sampled until its median is known."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.ipc import replies, requests
from ktuned.measuring.noise import UNKNOWN, Noise
from ktuned.measuring.race import LOOK_AFTER_S, MARGIN, QUICK_US, RELATIVE_CI, Cost, Ending, Race, RaceRules
from ktuned.model import PRESETS, Outcome, Preset
from tests.measuring.samples import make_samples
from tests.trials import make_measurement

PRESET = Preset("test", warmup=2, repetitions=10, timing_s=1.0, finalists=1, finalist_rounds=1)
AFTER_FIRST_LOOK_S = 2 * LOOK_AFTER_S
INCUMBENT = replies.CostRange(100.0, 99.0, 101.0)


def make_quiet_noise() -> Noise:
    """Return the noise of a device whose launches differ by about 0.1 %."""
    noise = Noise()
    for _ in range(8):
        noise.add_config(make_samples((99.7, 100.1, 99.8, 100.2, 99.9, 100.3, 99.95, 100.05, 99.9, 100.1)))
    return noise


RACES = {
    "without a rival sampling ends when the median is known within 1 %, or time is up after one sample": f"""
        alone: more; alone late: more; 1*9 alone: more; 1*10 alone: known; 0*9 1 alone: known; 5 alone late: out_of_time
        {" ".join(map(str, range(1, 31)))} alone: more; {" ".join(map(str, range(1, 31)))} alone late: out_of_time""",
    "an interval just above 1 % suffices only if the clock resolves no finer": f"""
        {100 - 90 * RELATIVE_CI}*20 100 {100 + 90 * RELATIVE_CI}*20 alone: known
        {100 - 110 * RELATIVE_CI}*20 100 {100 + 110 * RELATIVE_CI}*20 alone: more
        {100 - 110 * RELATIVE_CI}*20 100 {100 + 110 * RELATIVE_CI}*20 alone coarse: known""",
    "three samples must be far off; six have an interval, so that 10 % beyond the rival's suffices": """
        132*2: more; 132*3: beaten; 131*3: more; 112*5: more; 112*6: beaten; 112*5 111: known; 114*3 111*3: more
        112*9 111: beaten""",
    "a config that is slower by less is known well enough at 1 %": "111*6: known; 111*10: known",
    "a config that may win is sampled on": "100*6: more; 98*6: more",
    "on a quiet device three samples are enough, as the margin alone applies": """
        115*3: more; 115*3 quiet: beaten; 114*3 quiet: known; 108*3 quiet: more; 200*2 quiet: more""",
    "a config is not beaten if the clock cannot tell its latency from the margin": """
        112*6 fine: beaten; 112*6 rough: known; 102*6 rough: more""",
    "one interruption may delay all samples that are taken at about the same time": """
        150*6 early: more; 150*6 look: beaten""",
    "a config that could not win is beaten even if time is up": "132*3 late: beaten; 111*3 late: out_of_time",
    "the thorough preset takes more samples before a config is beaten": """
        112*9 thorough: known; 112*10 thorough: beaten""",
    "a config that is hopeless and beaten counts as hopeless, by its fastest launch": """
        301*3 limit: hopeless; 301*2 300 limit: beaten; 301*2 limit: more; 301 limit alone late: hopeless""",
}
"""Samples (``value*count``) and conditions: how the race against ``INCUMBENT`` ends, or that it wants more samples."""

CONDITIONS: dict[str, dict[str, Any]] = {
    "alone": {"incumbent": None},
    "late": {"elapsed_s": 1.0},
    "early": {"elapsed_s": LOOK_AFTER_S / 2},
    "look": {"elapsed_s": LOOK_AFTER_S},
    "coarse": {"resolution_us": 2.0},
    "rough": {"resolution_us": 1.0},
    "fine": {"resolution_us": 0.5},
    "quiet": {"noise": make_quiet_noise()},
    "thorough": {"preset": PRESETS["thorough"]},
    "limit": {"stop_above_us": 300.0},
}


def run_race(words: Sequence[str]) -> str:
    """Return how a race ends."""
    options: dict[str, Any] = {"preset": PRESET, "incumbent": INCUMBENT, "elapsed_s": AFTER_FIRST_LOOK_S}
    options |= {"resolution_us": 0.0, "noise": Noise(), "stop_above_us": math.inf}
    for word in words:
        options |= CONDITIONS.get(word, {})
    elapsed_s, resolution_us = options.pop("elapsed_s"), options.pop("resolution_us")
    race = Race(RaceRules(**options), resolution_us=resolution_us)
    for word in words:
        if word not in CONDITIONS:
            value, _, count = word.partition("*")
            for _ in range(int(count or 1)):
                race.samples.add_sample(float(value))
    batch = race.choose_next_batch(elapsed_s)
    assert (batch == 0) == (race.ending is not None)
    return "more" if race.ending is None else race.ending.name.lower()


@pytest.mark.parametrize("races", RACES.values(), ids=RACES)
def test_how_a_race_ends(races: str) -> None:
    for race in re.split(r";|\n", races.strip()):
        samples, _, expected = race.partition(": ")
        assert run_race(samples.split()) == expected.strip(), race


def test_few_samples_have_the_interval_of_the_noise() -> None:
    """The noise widens the interval beyond the samples' range; without known noise the interval is the range."""
    for noise, is_wider in ((make_quiet_noise(), True), (Noise(), False)):
        race = Race(RaceRules(PRESET, incumbent=INCUMBENT, noise=noise))
        for _ in range(3):
            race.samples.add_sample(112.0)
        low, high = race.interval_us
        assert (low < 112.0 < high) is is_wider
        assert (low, high) == pytest.approx((112.0, 112.0), abs=0.3)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
@given(values=st.lists(st.floats(90.0, 400.0), min_size=1, max_size=60))
def test_a_config_that_may_be_close_to_the_best_is_not_beaten(preset: Preset, values: list[float]) -> None:
    """A config is beaten only if its whole interval lies beyond the margin."""
    race = Race(RaceRules(preset, incumbent=INCUMBENT))
    for value in values:
        race.samples.add_sample(value)
    race.choose_next_batch(AFTER_FIRST_LOOK_S)
    low, high = race.samples.interval_us
    assert low <= race.samples.median_us <= high
    uncertainty = 1 if len(values) >= 6 else 1 + UNKNOWN
    assert race.ending is not Ending.BEATEN or low > INCUMBENT.high * (1 + MARGIN) * uncertainty


@pytest.mark.parametrize(
    ("warm_us", "sample_us", "elapsed_s", "expected"),
    [
        (40_000.0, 40_000.0, 0.04, Ending.HOPELESS),
        (40_000.0, 8_000.0, 0.04, None),
        (40_000.0, 40_000.0, 0.005, None),
    ],
    ids=["far-off", "not-so-far", "interrupted"],
)
def test_a_far_slower_config_is_sampled_once_after_the_warm_up(
    warm_us: float, sample_us: float, elapsed_s: float, expected: Ending | None
) -> None:
    """Two launches that are many times slower than the hopeless limit suffice, unless an interruption explains them."""
    race = Race(RaceRules(PRESET, stop_above_us=3_000.0))
    race.warm.add_sample(warm_us)
    assert race.choose_next_batch(0.0) == 1
    race.samples.add_sample(sample_us)
    race.choose_next_batch(elapsed_s)
    assert race.ending is expected


def test_a_config_in_a_race_is_warmed_up_once_less() -> None:
    """A racing config was launched for its check just before; a finalist was not."""
    for rival, launches in ((None, 2), (INCUMBENT, 1)):
        race, warmed = Race(RaceRules(PRESET, incumbent=rival)), 0
        while race.wants_warm_up(0.0):
            race.warm.add_sample(100.0)
            warmed += 1
        assert warmed == launches


@pytest.mark.parametrize(
    ("first_us", "rival", "launches"),
    [(100.0, INCUMBENT, 0), (QUICK_US + 1, INCUMBENT, 1), (100.0, None, 2), (None, INCUMBENT, 1)],
    ids=["quick", "slow", "not-racing", "unknown"],
)
def test_a_config_with_a_quick_checked_launch_needs_no_warm_up(
    first_us: float | None, rival: replies.CostRange | None, launches: int
) -> None:
    """The checked launch shows the pace.

    A slow config is first launched alone, because queued launches cannot be cancelled.
    """
    race, warmed = Race(RaceRules(PRESET, incumbent=rival, first_us=first_us)), 0
    while race.wants_warm_up(0.0):
        race.warm.add_sample(100.0)
        warmed += 1
    assert warmed == launches
    assert not race.ends_after_warm_up(0.0)


@pytest.mark.parametrize(
    ("first_us", "launches", "expected"),
    [(220.0, 1, Ending.BEATEN), (125.0, 3, None), (None, 3, None)],
    ids=["twice", "not-surely", "unknown"],
)
def test_one_sample_is_enough_after_a_launch_that_was_as_slow(
    first_us: float | None, launches: int, expected: Ending | None
) -> None:
    """The first launches of other configs took about 10 % more than their medians. One fast sample saves the config."""
    noise = Noise()
    for place in range(30):
        noise.add_config(make_samples([99.0, 100.0, 101.0] * 4), 110.0 + place % 3)
    race = Race(RaceRules(PRESET, incumbent=INCUMBENT, first_us=first_us, noise=noise))
    assert race.choose_next_batch(0.0) == launches
    race.samples.add_sample(200.0)
    race.choose_next_batch(AFTER_FIRST_LOOK_S)
    assert race.ending is expected
    fast_race = Race(RaceRules(PRESET, incumbent=INCUMBENT, first_us=first_us, noise=noise))
    fast_race.samples.add_sample(101.0)
    assert fast_race.choose_next_batch(AFTER_FIRST_LOOK_S) > 0


def test_a_config_whose_checked_launch_was_far_slower_is_warmed_up() -> None:
    """This holds for short launches, too."""
    assert Race(RaceRules(PRESET, stop_above_us=10.0, first_us=100.0)).wants_warm_up(0.0)


def test_a_warm_up_that_is_timed_differently_is_not_compared() -> None:
    """A fast launch of the warm-up saves a config only if it was timed like the samples."""
    for warm_counts, expected in ((True, None), (False, Ending.HOPELESS)):
        race = Race(RaceRules(PRESET, stop_above_us=300.0), warm_counts=warm_counts)
        race.warm.add_sample(200.0)
        for _ in range(3):
            race.samples.add_sample(400.0)
        race.choose_next_batch(AFTER_FIRST_LOOK_S)
        assert race.ending is expected


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_batches_grow_so_that_a_thousand_samples_are_judged_a_few_times(preset: Preset) -> None:
    """The first batches are short, later batches grow."""
    race, sample_counts = Race(RaceRules(preset)), []
    while len(race.samples) < 1_000:
        for _ in range(race.choose_next_batch(0.0)):
            race.samples.add_sample(float(len(race.samples)))
        sample_counts.append(len(race.samples))
    assert sample_counts[0] == max(3, preset.repetitions // 4)
    assert preset.repetitions in sample_counts or preset.repetitions < 6
    assert len(sample_counts) < 20


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        (make_measurement(Outcome.MEASURED, latency_us=90.0, low_us=89.0, high_us=91.0), 90.0),
        (make_measurement(Outcome.MEASURED, latency_us=100.0, low_us=89.0, high_us=110.0), 100.0),
        (make_measurement(Outcome.MEASURED, latency_us=90.0, low_us=89.0, high_us=91.0, beaten=True), 100.0),
        (make_measurement(Outcome.MEASURED, latency_us=90.0), 100.0),
        (make_measurement(Outcome.SLOWER, latency_us=90.0, low_us=89.0, high_us=91.0), 100.0),
        (make_measurement(Outcome.CONTENDED), 100.0),
    ],
)
def test_the_incumbent_is_the_fastest_config_that_is_known_well(measured: replies.Measurement, expected: float) -> None:
    """A faster config takes over only if it was sampled to the end and its interval is narrow."""
    after = requests.choose_incumbent(INCUMBENT, measured)
    assert after is not None
    assert after.cost == expected


@pytest.mark.parametrize(
    ("values", "cost", "may_win"),
    [
        ([99.0] * 9, None, True),
        ([105.0] * 9, None, False),
        ([0.01] * 9, lambda us: 1 / us, True),
        ([1.0] * 9, None, True),
    ],
    ids=["as-fast", "slower", "cheaper-by-its-metric", "faster"],
)
def test_a_config_may_win_if_its_interval_reaches_the_incumbents(
    values: list[float], cost: Cost | None, may_win: bool
) -> None:
    """The objective's cost is compared, which need not be the latency."""
    race = Race(RaceRules(PRESET, incumbent=INCUMBENT, cost=cost))
    for value in values:
        race.samples.add_sample(value)
    assert race.may_win is may_win
