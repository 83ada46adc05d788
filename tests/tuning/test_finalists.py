"""The finalists: chosen generously where spreads overlap, and compared within rounds."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.tuning.finalists import (
    MOST_TIMES,
    ROBUST_ROUNDS,
    Figure,
    Range,
    are_rounds_contradictory,
    are_rounds_noisy,
    choose_finalists,
    compute_figures,
    elect_winner,
    find_remaining_rivals,
    is_reference_implausible,
)

RATIOS = st.lists(st.floats(1.0, 5.0), min_size=1, max_size=6)
PACES = st.lists(st.floats(0.5, 2.0), min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], []),
        ([(10, 11)], [0]),
        ([(10, 11), (12, 13), (14, 15)], [0, 1]),
        ([(10, 13), (12, 13), (13, 15), (14, 15)], [0, 1, 2]),
        ([(10, 13), (12, 13), (14, 15), (12.5, 30)], [0, 1, 3]),
        ([(10, 11), (12, 13), (11.6, 12), (11.7, 12)], [0, 1, 2]),
        ([(10, 20)] * 9, [0, 1, 2, 3, 4, 5]),
    ],
    ids=["none", "one", "clear", "overlap", "overlap-behind", "drift", "bounded"],
)
def test_configs_that_may_be_the_best_are_finalists(ranges: list[tuple[float, float]], expected: list[int]) -> None:
    """Up to three times the wanted number are chosen if they may be as fast as the best: its samples may have been
    fast by chance, and theirs slow.
    """
    assert choose_finalists([Range(*bounds) for bounds in ranges], 2) == expected
    assert len(expected) <= 2 * MOST_TIMES


@pytest.mark.parametrize(
    ("interval", "expected"),
    [((None, None), (95.0, 105.0)), ((99.0, 101.0), (95.0, 105.0)), ((90.0, 120.0), (90.0, 120.0))],
)
def test_a_range_covers_the_interval_and_the_spread(
    interval: tuple[float | None, float | None], expected: tuple[float, ...]
) -> None:
    """Few samples have a wide interval, noisy samples a wide spread; old results have no interval."""
    measured_range = Range.from_measurement(100.0, 10.0, interval)
    assert (measured_range.low_us, measured_range.high_us) == expected


@given(RATIOS, PACES)
def test_a_drift_of_all_rivals_changes_no_figure(ratios: list[float], paces: list[float]) -> None:
    """The figures keep the finalists' own ratios, however the device's pace changes from round to round."""
    rounds: list[dict[int | None, float]] = [
        {name: ratio * pace for name, ratio in enumerate(ratios)} for pace in paces
    ]
    figures = compute_figures(rounds, range(len(ratios)))
    level = figures[0].latency_us / ratios[0]
    assert [figures[name].latency_us / level for name in range(len(ratios))] == pytest.approx(ratios)
    assert level == pytest.approx(statistics.median(paces))
    middle_paces = sorted(paces)[1:-1] if len(paces) >= ROBUST_ROUNDS else paces
    spread_us = ratios[0] * (max(middle_paces) - min(middle_paces)) if len(middle_paces) > 1 else None
    assert figures[0].spread_us == pytest.approx(spread_us)


def test_a_rival_that_missed_fast_rounds_is_not_taken_for_slow() -> None:
    """The slower rival ran three times while the device was fast, the faster rival missed two of those rounds."""
    rounds: list[dict[int | None, float]] = [{1: 100.0, 2: 105.0}, {1: 100.0, 2: 105.0}]
    rounds += [{1: 120.0, 2: 126.0}, {1: 120.0, 2: 126.0}, {2: 105.0}]
    figures = compute_figures(rounds, [1, 2])
    assert figures[1].latency_us < figures[2].latency_us


def test_the_reference_has_a_figure_of_the_same_pace() -> None:
    """It is no rival, so it sets no pace, but it is compared within the finalists' rounds."""
    figures = compute_figures([{1: 10.0, None: 100.0}, {1: 20.0, None: 200.0}, {1: 10.0, None: 100.0}], [1])
    assert figures == {1: Figure(10.0, 10.0), None: Figure(100.0, 100.0)}


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([{1: 10.0, 2: 11.0}, {1: 20.0, 2: 22.0}], False),
        ([{1: 10.0, 2: 11.0}, {1: 11.0, 2: 10.0}, {1: 10.0, 2: 11.0}], True),
        ([{1: 10.0, 2: 10.2}] * 6 + [{1: 10.2, 2: 10.0}], True),
        ([{1: 10.0, 2: 10.2}] * 7 + [{1: 10.2, 2: 10.0}], False),
        ([{1: 10.0, 2: 10.05}, {1: 10.05, 2: 10.0}], False),
        ([{1: 10.0, 3: 5.0}, {2: 9.0}], False),
        ([{}], False),
    ],
    ids=["agreed", "contradicted", "one-in-seven", "one-in-eight", "close", "not-together", "nothing"],
)
def test_contradicting_rounds_leave_it_undecided(rounds: list[dict[int | None, float]], expected: bool) -> None:
    """Another finalist that beat the best in a round may be better, until enough rounds disagree; 1 % does not
    matter.
    """
    assert are_rounds_contradictory(rounds, [1, 2]) is expected


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([{1: 10.0, 2: 12.0, 3: 10.05}] * 2, [1, 2, 3]),
        ([{1: 10.0, 2: 12.0, 3: 10.05}] * 3, [1, 3]),
        ([{1: 10.0, 2: 12.0}, {1: 10.0, 2: 10.05}, {1: 10.0, 2: 12.0}], [1, 2, 3]),
        ([{1: 10.0, 2: 10.2}] * 4, [1, 2, 3]),
        ([{1: 10.0, 2: 10.2}] * 5, [1, 3]),
        ([{1: 10.0, 2: 10.2}] * 7 + [{1: 10.2, 2: 10.0}], [1, 3]),
        ([{1: 10.0, 2: 12.0, 3: 12.0}, {1: 20.0, 2: 24.0}, {1: 10.0, 2: 12.0, 3: 12.0}], [1, 3]),
        ([{}] * 3, [1, 2, 3]),
    ],
    ids=["too-early", "slower", "not-always", "drift", "more-than-drift", "seldom-not", "disturbed", "nothing"],
)
def test_a_finalist_that_is_clearly_slower_leaves(rounds: list[dict[int | None, float]], expected: list[int]) -> None:
    """Three rounds must find it slower than the best by more than a drift, or five by more than 1 %; of eight
    rounds, one may disagree. The best stays.
    """
    assert find_remaining_rivals(rounds, [1, 2, 3]) == expected


@given(RATIOS, PACES)
def test_the_best_never_leaves(ratios: list[float], paces: list[float]) -> None:
    """The fastest rival stays, however the device's pace changes."""
    rounds: list[dict[int | None, float]] = [
        {name: ratio * pace for name, ratio in enumerate(ratios)} for pace in paces
    ]
    remaining = find_remaining_rivals(rounds, range(len(ratios)))
    assert min(range(len(ratios)), key=ratios.__getitem__) in remaining


def test_disturbed_rounds_are_left_out() -> None:
    """A rival that misses rounds sets no pace; a round that all rivals miss does not count; without rounds nothing
    does.
    """
    rounds: list[dict[int | None, float]] = [{1: 10.0, 2: 5.0}, {None: 7.0}, {1: 10.0}]
    figures = compute_figures(rounds, [1, 2])
    assert (figures[1], figures[2]) == (Figure(10.0, 0.0), Figure(5.0, None))
    assert figures[None] == Figure(7.0, None)
    assert compute_figures([{}, {}], [1]) == {}


@pytest.mark.parametrize(
    ("latencies_us", "compared", "incumbent", "expected"),
    [
        ({}, {1}, 1, None),
        ({1: 10.0, 2: 9.0}, {1, 2}, 1, 2),
        ({1: 10.0, 2: 10.0}, {1, 2}, 2, 2),
        ({1: 10.0, 2: 9.0}, {1}, 1, 1),
        ({1: 10.0, 2: 11.0}, {2}, 1, 1),
        ({1: 10.0, 2: 9.0}, {2}, 1, 2),
        ({2: 11.0, 3: 10.0}, {2}, 1, 2),
        ({1: 10.0, 2: 9.0}, set(), 1, 2),
    ],
    ids=["none", "faster", "tie", "disturbed", "incumbent disturbed", "beaten", "incumbent failed", "no round"],
)
def test_the_winner_is_the_fastest_of_those_timed_together(
    latencies_us: dict[int, float], compared: set[int], incumbent: int, expected: int | None
) -> None:
    """An old figure decides nothing, except that the incumbent only gives way to a faster config."""
    assert elect_winner(latencies_us, compared, incumbent) == expected


def test_noisy_rounds_ask_for_more_until_they_settle() -> None:
    """A contender or reference that varies between rounds is unsettled until enough rounds agree."""
    steady = [{1: 100.0, None: 200.0}] * 3
    assert not are_rounds_noisy(steady, [1])
    assert are_rounds_noisy([*steady[:2], {1: 190.0, None: 200.0}], [1])
    assert are_rounds_noisy([*steady[:2], {1: 100.0, None: 900.0}], [1])
    assert not are_rounds_noisy([*steady, {1: 190.0, None: 900.0}, *steady], [1])
    assert not are_rounds_noisy([], [1])


def test_a_reference_far_above_the_winner_is_timed_again_though_its_rounds_agree() -> None:
    """It gets twice as many rounds and no more, because a naive reference may be that slow. Without figures nothing is
    implausible.
    """
    slow_reference_rounds: list[dict[int | None, float]] = [{1: 6.6, 2: 9.0, None: 25_500.0}]
    assert [is_reference_implausible(slow_reference_rounds * rounds, [1, 2]) for rounds in (1, 3, 5, 6)] == [
        True,
        True,
        True,
        False,
    ]
    assert not is_reference_implausible([{1: 6.6, None: 18.8}] * 3, [1])
    assert not is_reference_implausible(slow_reference_rounds, [])
    assert not is_reference_implausible([{1: 6.6}], [1])


def test_one_round_has_no_spread() -> None:
    """``±0 %`` would claim that rounds agree."""
    figures = compute_figures([{1: 10.0, None: 100.0}, {1: 11.0}], [1])
    assert (figures[1].spread_us, figures[None].spread_us) == (1.0, None)
