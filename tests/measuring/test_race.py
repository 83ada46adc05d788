"""The race: what cannot win is sampled no further, what may win is sampled until it is known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.ipc import replies, requests
from ktuned.measuring.noise import UNKNOWN, Noise
from ktuned.measuring.race import LOOK_AFTER_S, MARGIN, QUICK_US, RELATIVE_CI, Cost, Ending, Race, RaceRules
from ktuned.measuring.samples import Samples
from ktuned.model import PRESETS, Outcome, Preset
from tests.trials import make_measurement

PRESET = Preset("test", warmup=2, repetitions=10, timing_s=1.0, finalists=1, finalist_rounds=1)
LONG_ENOUGH_S = 2 * LOOK_AFTER_S
BEST = replies.CostRange(100.0, 99.0, 101.0)


def end(
    values: Sequence[float],
    *,
    elapsed_s: float = LONG_ENOUGH_S,
    preset: Preset = PRESET,
    stop_above_us: float = math.inf,
    incumbent: replies.CostRange | None = None,
    resolution_us: float = 0.0,
    noise: Noise | None = None,
) -> Ending | None:
    """Return the end of a race that has these samples, or that it wants more."""
    race = Race(
        RaceRules(preset, stop_above_us=stop_above_us, incumbent=incumbent, noise=noise or Noise()),
        resolution_us=resolution_us,
    )
    for value in values:
        race.samples.add_sample(value)
    wants = race.choose_next_batch(elapsed_s)
    assert (wants == 0) == (race.ending is not None)
    return race.ending


@pytest.mark.parametrize(
    ("values", "elapsed_s", "expected"),
    [
        ([], LONG_ENOUGH_S, None),
        ([], 9.0, None),
        ([1.0] * 9, LONG_ENOUGH_S, None),
        ([1.0] * 10, LONG_ENOUGH_S, Ending.KNOWN),
        ([0.0] * 9 + [1.0], LONG_ENOUGH_S, Ending.KNOWN),
        ([*range(1, 31)], LONG_ENOUGH_S, None),
        ([*range(1, 31)], 1.0, Ending.OUT_OF_TIME),
        ([5.0], 1.0, Ending.OUT_OF_TIME),
    ],
    ids=["none", "none-late", "too-few", "known", "zero", "unknown", "unknown-late", "one-late"],
)
def test_without_an_incumbent_sampling_ends_when_the_median_is_known_or_time_is_up(
    values: list[float], elapsed_s: float, expected: Ending | None
) -> None:
    """It takes the preset's repetitions and an interval within 1 %, or the preset's time; but one sample always."""
    assert end(values, elapsed_s=elapsed_s) is expected


def test_a_median_is_known_from_one_per_cent_on() -> None:
    """An interval a little below 1 % is enough, a little above is not, unless the clock resolves no more."""
    for width, ending in ((0.9 * RELATIVE_CI, Ending.KNOWN), (1.1 * RELATIVE_CI, None)):
        values = [100 * (1 - width)] * 20 + [100.0] + [100 * (1 + width)] * 20
        assert end(values) is ending
        assert end(values, resolution_us=2.0) is Ending.KNOWN


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
    """Six samples have an interval, and a tenth beyond the incumbent's is enough; three need to be far off.

    What is slower by less than that need not be known any better than to 1 %.
    """
    assert end(values, incumbent=BEST) is expected


def quiet() -> Noise:
    """Return the noise of a device whose launches differ by 0.1 % or so."""
    noise, config = Noise(), Samples()
    for value in (99.7, 100.1, 99.8, 100.2, 99.9, 100.3, 99.95, 100.05, 99.9, 100.1):
        config.add_sample(value)
    for _ in range(8):
        noise.add_config(config)
    return noise


def test_on_a_quiet_device_three_samples_are_enough() -> None:
    """The margin stays; the doubt that is left is that of the configs before."""
    assert end([115.0] * 3, incumbent=BEST) is None
    assert end([115.0] * 3, incumbent=BEST, noise=quiet()) is Ending.BEATEN
    assert end([114.0] * 3, incumbent=BEST, noise=quiet()) is Ending.KNOWN
    assert end([108.0] * 3, incumbent=BEST, noise=quiet()) is None
    assert end([200.0] * 2, incumbent=BEST, noise=quiet()) is None


def test_few_samples_have_the_interval_of_the_noise() -> None:
    """It is wider than their range; where nothing is known of the noise, that is all there is."""
    for noise, wider in ((quiet(), True), (Noise(), False)):
        race = Race(RaceRules(PRESET, incumbent=BEST, noise=noise))
        for _ in range(3):
            race.samples.add_sample(112.0)
        low, high = race.interval_us
        assert (low < 112.0 < high) is wider
        assert (low, high) == pytest.approx((112.0, 112.0), abs=0.3)


def test_the_clocks_resolution_is_an_uncertainty() -> None:
    """A figure that the clock cannot report from the margin is not beaten."""
    assert end([112.0] * 6, incumbent=BEST, resolution_us=0.5) is Ending.BEATEN
    assert end([112.0] * 6, incumbent=BEST, resolution_us=1.0) is Ending.KNOWN
    assert end([102.0] * 6, incumbent=BEST, resolution_us=1.0) is None


def test_an_interruption_beats_no_config() -> None:
    """Samples that were all taken within a moment may all be late."""
    assert end([150.0] * 6, incumbent=BEST, elapsed_s=LOOK_AFTER_S / 2) is None
    assert end([150.0] * 6, incumbent=BEST, elapsed_s=LOOK_AFTER_S) is Ending.BEATEN


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
@given(values=st.lists(st.floats(90.0, 400.0), min_size=1, max_size=60))
def test_a_config_that_may_be_close_to_the_best_is_not_beaten(preset: Preset, values: list[float]) -> None:
    """Whatever the samples, one is beaten only if its whole interval lies beyond the margin."""
    race = Race(RaceRules(preset, incumbent=BEST))
    for value in values:
        race.samples.add_sample(value)
    race.choose_next_batch(LONG_ENOUGH_S)
    low, high = race.samples.interval_us
    assert low <= race.samples.median_us <= high
    doubt = 1 if len(values) >= 6 else 1 + UNKNOWN
    assert race.ending is not Ending.BEATEN or low > BEST.high * (1 + MARGIN) * doubt


def test_a_beaten_config_is_beaten_even_if_time_is_up() -> None:
    """What could not win is not remembered as one that had too little time."""
    assert end([132.0] * 3, incumbent=BEST, elapsed_s=1.0) is Ending.BEATEN
    assert end([111.0] * 3, incumbent=BEST, elapsed_s=1.0) is Ending.OUT_OF_TIME


def test_the_thorough_preset_takes_more_samples_before_a_config_is_beaten() -> None:
    """More repetitions mean more samples before a config may be beaten."""
    assert end([112.0] * 9, incumbent=BEST, preset=PRESETS["thorough"]) is not Ending.BEATEN
    assert end([112.0] * 10, incumbent=BEST, preset=PRESETS["thorough"]) is Ending.BEATEN


def test_a_config_that_is_hopeless_and_beaten_counts_as_hopeless() -> None:
    """Beyond early stop a config has no figure, although it was beaten as well; its fastest launch counts."""
    assert end([301.0] * 3, incumbent=BEST, stop_above_us=300.0) is Ending.HOPELESS
    assert end([301.0, 301.0, 300.0], incumbent=BEST, stop_above_us=300.0) is Ending.BEATEN
    assert end([301.0] * 2, incumbent=BEST, stop_above_us=300.0) is None
    assert end([301.0], elapsed_s=1.0, stop_above_us=300.0) is Ending.HOPELESS


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
    """Two launches that are many times slower than what is hopeless, and no accident, need no third one."""
    race = Race(RaceRules(PRESET, stop_above_us=3_000.0))
    race.warm.add_sample(warm_us)
    assert race.choose_next_batch(0.0) == 1
    race.samples.add_sample(sample_us)
    race.choose_next_batch(elapsed_s)
    assert race.ending is expected


def test_a_config_in_a_race_is_warmed_up_once_less() -> None:
    """It was launched to be checked just before; a finalist was not."""
    for rival, launches in ((None, 2), (BEST, 1)):
        race, warmed = Race(RaceRules(PRESET, incumbent=rival)), 0
        while race.wants_warm_up(0.0):
            race.warm.add_sample(100.0)
            warmed += 1
        assert warmed == launches


@pytest.mark.parametrize(
    ("first_us", "rival", "launches"),
    [(100.0, BEST, 0), (QUICK_US + 1, BEST, 1), (100.0, None, 2), (None, BEST, 1)],
    ids=["quick", "slow", "not-racing", "unknown"],
)
def test_a_config_with_a_quick_checked_launch_needs_no_warm_up(
    first_us: float | None, rival: replies.CostRange | None, launches: int
) -> None:
    """Its pace is known; a slow one is launched alone first, since three in the queue cannot be called back."""
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
    """Where the first launches of others seemed to take a tenth more than their medians. A fast sample saves it."""
    noise = Noise()
    for place in range(30):
        noise.add_config(Samples([99.0, 100.0, 101.0] * 4, [99.0, 100.0, 101.0] * 4), 110.0 + place % 3)
    race = Race(RaceRules(PRESET, incumbent=BEST, first_us=first_us, noise=noise))
    assert race.choose_next_batch(0.0) == launches
    race.samples.add_sample(200.0)
    race.choose_next_batch(LONG_ENOUGH_S)
    assert race.ending is expected
    lucky = Race(RaceRules(PRESET, incumbent=BEST, first_us=first_us, noise=noise))
    lucky.samples.add_sample(101.0)
    assert lucky.choose_next_batch(LONG_ENOUGH_S) > 0


def test_a_config_whose_checked_launch_was_far_slower_is_warmed_up() -> None:
    """However short it is."""
    assert Race(RaceRules(PRESET, stop_above_us=10.0, first_us=100.0)).wants_warm_up(0.0)


def test_a_warm_up_that_is_timed_differently_is_not_compared() -> None:
    """One fast launch of the warm-up saves a config, but only if it was timed as the samples are."""
    for warm_counts, ending in ((True, None), (False, Ending.HOPELESS)):
        race = Race(RaceRules(PRESET, stop_above_us=300.0), warm_counts=warm_counts)
        race.warm.add_sample(200.0)
        for _ in range(3):
            race.samples.add_sample(400.0)
        race.choose_next_batch(LONG_ENOUGH_S)
        assert race.ending is ending


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_batches_grow_so_that_a_thousand_samples_are_judged_a_few_times(preset: Preset) -> None:
    """The first looks come early, later ones seldom: even a thousand samples are judged a few times only."""
    race, looks = Race(RaceRules(preset)), []
    while len(race.samples) < 1_000:
        for _ in range(race.choose_next_batch(0.0)):
            race.samples.add_sample(float(len(race.samples)))
        looks.append(len(race.samples))
    assert looks[0] == max(3, preset.repetitions // 4)
    assert preset.repetitions in looks or preset.repetitions < 6
    assert len(looks) < 20


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
    """A lower figure takes over, unless its sampling ended early."""
    after = requests.choose_incumbent(BEST, measured)
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
    """By the objective: a metric's cost is compared, and not the latency."""
    race = Race(RaceRules(PRESET, incumbent=BEST, cost=cost))
    for value in values:
        race.samples.add_sample(value)
    assert race.may_win is may_win
