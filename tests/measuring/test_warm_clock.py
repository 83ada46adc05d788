"""The end of a clock's warm-up, by what pieces of work take."""

from __future__ import annotations

from collections.abc import Iterable

from ktuned.measuring.cuda_timer import WARM_CLOCKS_S, WarmClock

COLD_US, WARM_US = 3_000.0, 600.0


def pieces(clock: WarmClock, took_us: Iterable[float]) -> int:
    """Return after how many pieces of work a warm-up ends that takes such times."""
    elapsed_s = 0.0
    for count, us in enumerate(took_us, start=1):
        elapsed_s += us / 1e6
        if clock.is_warm(us, elapsed_s):
            return count
    raise AssertionError("it never ends")


def warmed() -> WarmClock:
    """Return a clock that was warmed once, beside other work at times."""
    clock = WarmClock()
    took = [COLD_US] * 10 + [WARM_US, 2 * WARM_US] * 200
    assert sum(took[: pieces(clock, took)]) >= WARM_CLOCKS_S * 1e6
    return clock


def test_a_clock_that_is_still_warm_needs_one_piece_of_work() -> None:
    """What it does then is known from the first warm-up, which takes its whole time."""
    clock = warmed()
    assert [pieces(clock, [WARM_US * 1.02] * 999) for _ in range(9)] == [1] * 9
    assert pieces(clock, [WARM_US * 1.04] * 2 + [WARM_US] * 999) == 3


def test_a_first_warm_up_beside_other_work_does_not_set_the_pace() -> None:
    """The next piece of work, which is alone on the device, says how fast a warm clock is."""
    clock = WarmClock()
    pieces(clock, [2 * WARM_US] * 999)
    assert pieces(clock, [WARM_US] * 999) == 1
    assert pieces(clock, [1.5 * WARM_US] * 3 + [WARM_US] * 999) == 4


def test_a_clock_that_fell_is_warmed_until_it_is_as_fast_again() -> None:
    """No longer: it does not sample beside a clock that rises, nor warm one that has risen."""
    assert pieces(warmed(), [COLD_US] * 7 + [1.1 * WARM_US] * 5 + [WARM_US] * 999) == 13


def test_a_clock_that_stays_slower_is_warm_after_the_whole_time_once() -> None:
    """A hot device, or one that another program shares, does not get faster: that is its pace from then on."""
    clock = warmed()
    slower = [1.2 * WARM_US] * 999
    assert sum(slower[: pieces(clock, slower)]) >= WARM_CLOCKS_S * 1e6
    assert pieces(clock, slower) == 1
    assert pieces(clock, [WARM_US] * 999) == 1
