"""Timing by the host's clock: what is timed, and when a slow kernel is given up."""

import math
from collections.abc import Callable

import pytest

from ktuned.measuring import host_timer as timing
from ktuned.measuring.host_timer import (
    MAX_LAUNCHES_PER_SAMPLE,
    SAMPLE_FLOOR_NS,
    HostTimer,
    count_launches_per_sample,
)
from ktuned.measuring.race import Race, RaceRules
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model.plan import Preset

PRESET = Preset("test", warmup=2, repetitions=10, timing_s=1.0, finalists=1, finalist_rounds=1)


class FakeClock:
    """A clock that only launches and restores move, and a log of both."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *launch_us: float) -> None:
        self.now_ns = 10**12
        self.log: list[str] = []
        self._launch_us = list(launch_us)
        monkeypatch.setattr(timing, "perf_counter_ns", lambda: self.now_ns)
        monkeypatch.setattr(timing, "measure_clock_cost_ns", lambda: 0)

    def launch(self) -> None:
        """Take the next time of the list; the last time repeats."""
        self.log.append("launch")
        self.now_ns += int(1000 * (self._launch_us.pop(0) if len(self._launch_us) > 1 else self._launch_us[0]))

    def restore(self) -> None:
        """Take 1 ms, which must not be measured."""
        self.log.append("restore")
        self.now_ns += 1_000_000


def time_launch(
    launch: Callable[[], None],
    preset: Preset = PRESET,
    *,
    restore: Callable[[], None] | None = None,
    stop_above_us: float = math.inf,
) -> Race:
    """Time a launch that has no rival."""
    rules = RaceRules(preset, stop_above_us=stop_above_us)
    return HostTimer().time_launches(TimedLaunches(launch, restore=restore), rules)


@pytest.mark.parametrize("launch_ns", [0, 1, 4, 5, 49, 1_000, SAMPLE_FLOOR_NS - 1, SAMPLE_FLOOR_NS, 10**9])
def test_a_sample_lasts_long_enough_to_be_read(launch_ns: int) -> None:
    """Short kernels are launched as often as the floor requires, up to the limit.

    With a restore, a sample is one launch.
    """
    launches = count_launches_per_sample(launch_ns, restores=False)
    assert launches * launch_ns >= SAMPLE_FLOOR_NS or launches == MAX_LAUNCHES_PER_SAMPLE
    assert launches == 1 or (launches - 1) * launch_ns < SAMPLE_FLOOR_NS
    assert count_launches_per_sample(launch_ns, restores=True) == 1


@pytest.mark.parametrize("launch_us", [0.05, 3.0, 80.0, 40_000.0])
def test_a_steady_kernel_is_timed_exactly(monkeypatch: pytest.MonkeyPatch, launch_us: float) -> None:
    """The figure is the time of one launch in µs, however many launches a sample has."""
    race = time_launch(FakeClock(monkeypatch, launch_us).launch)
    assert (race.is_hopeless, race.samples.spread_us) == (False, 0.0)
    assert race.samples.median_us == pytest.approx(launch_us)
    assert len(race.samples) >= PRESET.repetitions


@pytest.mark.parametrize(("believes", "figure_us"), [(False, 40.0), (True, 0.01)])
def test_a_returned_number_is_a_time_only_where_it_is_said_to_be_one(
    monkeypatch: pytest.MonkeyPatch, believes: bool, figure_us: float
) -> None:
    """A launch may return anything, for example a checksum: by default the clock times it."""
    clock = FakeClock(monkeypatch, 40.0)

    def launch() -> float:
        clock.launch()
        return 0.01

    timer = HostTimer(believes_reports=believes)
    assert timer.time_launches(TimedLaunches(launch), RaceRules(PRESET)).samples.median_us == pytest.approx(figure_us)


def test_warm_up_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow first launches are not in the samples."""
    race = time_launch(FakeClock(monkeypatch, 9_000.0, 9_000.0, 100.0).launch)
    assert race.samples.sorted_us[-1] == pytest.approx(100.0)


def test_restore_comes_before_each_launch_and_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes the launches of the warm-up."""
    clock = FakeClock(monkeypatch, 2.0)
    race = time_launch(clock.launch, restore=clock.restore)
    assert clock.log == ["restore", "launch"] * (len(clock.log) // 2)
    assert race.samples.median_us == pytest.approx(2.0)


def test_sampling_stops_within_a_batch_when_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is never steady stops at the preset's time, not at the end of a batch."""
    clock = FakeClock(monkeypatch, *[90_000.0 + 1_000 * (index * 7 % 40) for index in range(1000)])
    start_ns = clock.now_ns
    race = time_launch(clock.launch)
    assert (clock.now_ns - start_ns) / 1e9 < PRESET.timing_s + 5 * 0.13
    assert len(race.samples) >= 2


@pytest.mark.parametrize(
    ("first_us", "is_hopeless"),
    [([500.0] * 9, True), ([500.0] * 3 + [200.0], False), ([200.0] + [500.0] * 8, False), ([300.0] * 9, False)],
    ids=["slow", "fast-at-last", "fast-at-first", "just-so"],
)
def test_a_slow_kernel_is_given_up(monkeypatch: pytest.MonkeyPatch, first_us: list[float], is_hopeless: bool) -> None:
    """The fastest of the first launches must be above the limit: one fast launch may belong to a good kernel."""
    clock = FakeClock(monkeypatch, *first_us)
    race = time_launch(clock.launch, stop_above_us=300.0)
    assert race.is_hopeless is is_hopeless
    if is_hopeless:
        assert len(clock.log) == 4, "the launch of the warm-up counts as well as three samples"
        assert race.samples.median_us == pytest.approx(500.0)


def test_a_very_slow_kernel_is_given_up_after_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch that takes the preset's whole time suffices."""
    clock = FakeClock(monkeypatch, 3e6)
    assert time_launch(clock.launch, stop_above_us=1.0).is_hopeless
    assert clock.log == ["launch"]


def refuse_launch() -> None:
    raise RuntimeError("refused")


@pytest.mark.parametrize(
    "functions", [(refuse_launch, lambda: None), (lambda: None, refuse_launch)], ids=["launch", "restore"]
)
def test_an_exception_reaches_the_caller(
    functions: tuple[Callable[[], None], Callable[[], None]],
) -> None:
    launch, restore = functions
    with pytest.raises(RuntimeError, match="refused"):
        time_launch(launch, restore=restore)


def test_a_real_launch_is_timed_by_the_real_clock() -> None:
    from time import perf_counter_ns

    def spin() -> None:
        end = perf_counter_ns() + 200_000
        while perf_counter_ns() < end:
            pass

    race = time_launch(spin, Preset("short", 1, 5, 1.0, 1, 1))
    assert 200 <= race.samples.sorted_us[0] < 400
