"""The end of a clock's warm-up, judged by how long pieces of work take."""

from __future__ import annotations

from collections.abc import Iterable

from ktuned.measuring.cuda_timer import WARM_CLOCKS_S, WarmClock

COLD_US, WARM_US = 3_000.0, 600.0


def count_pieces_until_warm(clock: WarmClock, took_us: Iterable[float]) -> int:
    """Return after how many pieces of work, of these times in µs, the warm-up ends."""
    elapsed_s = 0.0
    for count, us in enumerate(took_us, start=1):
        elapsed_s += us / 1e6
        if clock.is_warm(us, elapsed_s):
            return count
    raise AssertionError("it never ends")


def make_warmed_clock() -> WarmClock:
    """Return a clock that was warmed once, at times beside other work."""
    clock = WarmClock()
    took_us = [COLD_US] * 10 + [WARM_US, 2 * WARM_US] * 200
    assert sum(took_us[: count_pieces_until_warm(clock, took_us)]) >= WARM_CLOCKS_S * 1e6
    return clock


def test_a_clock_that_is_still_warm_needs_one_piece_of_work() -> None:
    """The first warm-up, which takes its whole time, has shown the pace of a warm clock."""
    clock = make_warmed_clock()
    assert [count_pieces_until_warm(clock, [WARM_US * 1.02] * 999) for _ in range(9)] == [1] * 9
    assert count_pieces_until_warm(clock, [WARM_US * 1.04] * 2 + [WARM_US] * 999) == 3


def test_a_first_warm_up_beside_other_work_does_not_set_the_pace() -> None:
    """The next piece of work that is alone on the device sets the pace."""
    clock = WarmClock()
    count_pieces_until_warm(clock, [2 * WARM_US] * 999)
    assert count_pieces_until_warm(clock, [WARM_US] * 999) == 1
    assert count_pieces_until_warm(clock, [1.5 * WARM_US] * 3 + [WARM_US] * 999) == 4


def test_a_clock_that_fell_is_warmed_until_it_is_as_fast_again() -> None:
    """Sampling neither starts while the clock rises nor waits after it has risen."""
    assert count_pieces_until_warm(make_warmed_clock(), [COLD_US] * 7 + [1.1 * WARM_US] * 5 + [WARM_US] * 999) == 13


def test_a_clock_that_stays_slower_is_warm_after_the_whole_time_once() -> None:
    """A hot or shared device does not get faster: its slower pace becomes the warm pace."""
    clock = make_warmed_clock()
    slower_us = [1.2 * WARM_US] * 999
    assert sum(slower_us[: count_pieces_until_warm(clock, slower_us)]) >= WARM_CLOCKS_S * 1e6
    assert count_pieces_until_warm(clock, slower_us) == 1
    assert count_pieces_until_warm(clock, [WARM_US] * 999) == 1
