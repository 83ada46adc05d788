"""The race: a config that cannot win gets few samples; a config that may win is sampled until its median is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def run_race(
    values: Sequence[float],
    *,
    elapsed_s: float = AFTER_FIRST_LOOK_S,
    preset: Preset = PRESET,
    stop_above_us: float = math.inf,
    incumbent: replies.CostRange | None = None,
    resolution_us: float = 0.0,
    noise: Noise | None = None,
) -> Ending | None:
    """Return how a race with these samples ends, or None if it wants more samples."""
    race = Race(
        RaceRules(preset, stop_above_us=stop_above_us, incumbent=incumbent, noise=noise or Noise()),
        resolution_us=resolution_us,
    )
    for value in values:
        race.samples.add_sample(value)
    batch = race.choose_next_batch(elapsed_s)
    assert (batch == 0) == (race.ending is not None)
    return race.ending


@pytest.mark.parametrize(
    ("values", "elapsed_s", "expected"),
    [
        ([], AFTER_FIRST_LOOK_S, None),
        ([], 9.0, None),
        ([1.0] * 9, AFTER_FIRST_LOOK_S, None),
        ([1.0] * 10, AFTER_FIRST_LOOK_S, Ending.KNOWN),
        ([0.0] * 9 + [1.0], AFTER_FIRST_LOOK_S, Ending.KNOWN),
        ([*range(1, 31)], AFTER_FIRST_LOOK_S, None),
        ([*range(1, 31)], 1.0, Ending.OUT_OF_TIME),
        ([5.0], 1.0, Ending.OUT_OF_TIME),
    ],
    ids=["none", "none-late", "too-few", "known", "zero", "unknown", "unknown-late", "one-late"],
)
def test_without_an_incumbent_sampling_ends_when_the_median_is_known_or_time_is_up(
    values: list[float], elapsed_s: float, expected: Ending | None
) -> None:
    """The preset's repetitions and an interval within 1 % end it, or the preset's time with at least one sample."""
    assert run_race(values, elapsed_s=elapsed_s) is expected


def test_a_median_is_known_from_one_per_cent_on() -> None:
    """An interval just below 1 % suffices. An interval just above does only if the clock resolves no finer."""
    for width, ending in ((0.9 * RELATIVE_CI, Ending.KNOWN), (1.1 * RELATIVE_CI, None)):
        values = [100 * (1 - width)] * 20 + [100.0] + [100 * (1 + width)] * 20
        assert run_race(values) is ending
        assert run_race(values, resolution_us=2.0) is Ending.KNOWN


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([132.0] * 2, None),
        ([132.0] * 3, Ending.BEATEN),
        ([131.0] * 3, None),
        ([112.0] * 5, None),
        ([112.0] * 6, Ending.BEATEN),
        ([111.0] * 6, Ending.KNOWN),
        ([112.0] * 5 + [111.0], Ending.KNOWN),
        ([114.0] * 3 + [111.0] * 3, None),
        ([100.0] * 6, None),
        ([112.0] * 9 + [111.0], Ending.BEATEN),
        ([111.0] * 10, Ending.KNOWN),
        ([98.0] * 6, None),
    ],
)
def test_a_config_is_beaten_by_more_than_both_uncertainties_and_the_margin(
    values: list[float], expected: Ending | None
) -> None:
    """Six samples have an interval, so 10 % beyond the incumbent's suffices; three samples must be far off.

    A config that is slower by less is known well enough at 1 %.
    """
    assert run_race(values, incumbent=INCUMBENT) is expected


def make_quiet_noise() -> Noise:
    """Return the noise of a device whose launches differ by about 0.1 %."""
    noise = Noise()
    for _ in range(8):
        noise.add_config(make_samples((99.7, 100.1, 99.8, 100.2, 99.9, 100.3, 99.95, 100.05, 99.9, 100.1)))
    return noise


def test_on_a_quiet_device_three_samples_are_enough() -> None:
    """The margin still applies; only the uncertainty shrinks to that of the earlier configs."""
    assert run_race([115.0] * 3, incumbent=INCUMBENT) is None
    assert run_race([115.0] * 3, incumbent=INCUMBENT, noise=make_quiet_noise()) is Ending.BEATEN
    assert run_race([114.0] * 3, incumbent=INCUMBENT, noise=make_quiet_noise()) is Ending.KNOWN
    assert run_race([108.0] * 3, incumbent=INCUMBENT, noise=make_quiet_noise()) is None
    assert run_race([200.0] * 2, incumbent=INCUMBENT, noise=make_quiet_noise()) is None


def test_few_samples_have_the_interval_of_the_noise() -> None:
    """The noise widens the interval beyond the samples' range; without known noise the interval is the range."""
    for noise, is_wider in ((make_quiet_noise(), True), (Noise(), False)):
        race = Race(RaceRules(PRESET, incumbent=INCUMBENT, noise=noise))
        for _ in range(3):
            race.samples.add_sample(112.0)
        low, high = race.interval_us
        assert (low < 112.0 < high) is is_wider
        assert (low, high) == pytest.approx((112.0, 112.0), abs=0.3)


def test_the_clocks_resolution_is_an_uncertainty() -> None:
    """A config is not beaten if the clock cannot tell its latency from the margin."""
    assert run_race([112.0] * 6, incumbent=INCUMBENT, resolution_us=0.5) is Ending.BEATEN
    assert run_race([112.0] * 6, incumbent=INCUMBENT, resolution_us=1.0) is Ending.KNOWN
    assert run_race([102.0] * 6, incumbent=INCUMBENT, resolution_us=1.0) is None


def test_an_interruption_beats_no_config() -> None:
    """One interruption may delay all samples that are taken at about the same time."""
    assert run_race([150.0] * 6, incumbent=INCUMBENT, elapsed_s=LOOK_AFTER_S / 2) is None
    assert run_race([150.0] * 6, incumbent=INCUMBENT, elapsed_s=LOOK_AFTER_S) is Ending.BEATEN


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


def test_a_beaten_config_is_beaten_even_if_time_is_up() -> None:
    """A config that could not win is not recorded as one that ran out of time."""
    assert run_race([132.0] * 3, incumbent=INCUMBENT, elapsed_s=1.0) is Ending.BEATEN
    assert run_race([111.0] * 3, incumbent=INCUMBENT, elapsed_s=1.0) is Ending.OUT_OF_TIME


def test_the_thorough_preset_takes_more_samples_before_a_config_is_beaten() -> None:
    assert run_race([112.0] * 9, incumbent=INCUMBENT, preset=PRESETS["thorough"]) is not Ending.BEATEN
    assert run_race([112.0] * 10, incumbent=INCUMBENT, preset=PRESETS["thorough"]) is Ending.BEATEN


def test_a_config_that_is_hopeless_and_beaten_counts_as_hopeless() -> None:
    """A hopeless config gets no figure. Its fastest launch decides."""
    assert run_race([301.0] * 3, incumbent=INCUMBENT, stop_above_us=300.0) is Ending.HOPELESS
    assert run_race([301.0, 301.0, 300.0], incumbent=INCUMBENT, stop_above_us=300.0) is Ending.BEATEN
    assert run_race([301.0] * 2, incumbent=INCUMBENT, stop_above_us=300.0) is None
    assert run_race([301.0], elapsed_s=1.0, stop_above_us=300.0) is Ending.HOPELESS


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
