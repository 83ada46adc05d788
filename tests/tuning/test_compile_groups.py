"""How large groups of configs are, by the time that grouping is seen to save."""

import pytest

from ktuned.tuning.limits import TRY_EVERY, GroupSize, limit_share


def list_next_sizes(group_size: GroupSize, count: int, *, starve: bool = False) -> list[int]:
    """Return the sizes of the next groups."""
    return [group_size.choose_next_size(lanes_starve=starve) for _ in range(count)]


def make_taught_group_size(largest: int, *, alone_s: float, pair_s: float) -> GroupSize:
    """Return a group size that knows the time of one config and of a pair."""
    group_size = GroupSize(largest)
    assert list_next_sizes(group_size, 2) == [1, 2]
    group_size.record_group(1, alone_s)
    group_size.record_group(2, pair_s)
    return group_size


def test_the_first_group_is_single_and_the_second_a_pair() -> None:
    """Other groups are single until a pair has shown what grouping saves, however busy the lanes are."""
    assert list_next_sizes(GroupSize(4), TRY_EVERY + 3) == [1, 2, *[1] * (TRY_EVERY - 1), 2, 1]


def test_a_backend_without_groups_gets_single_configs() -> None:
    """It does not even get a pair to try."""
    assert set(list_next_sizes(make_single_group_size(), 2 * TRY_EVERY)) == {1}


def make_single_group_size() -> GroupSize:
    """Return the group size of a backend that compiles configs one by one."""
    group_size = GroupSize(1)
    group_size.record_group(1, 1.0)
    return group_size


def test_groups_that_pay_grow_while_lanes_are_busy_and_shrink_while_they_starve() -> None:
    """They double up to the maximum and halve down to one."""
    group_size = make_taught_group_size(8, alone_s=1.0, pair_s=1.1)
    assert list_next_sizes(group_size, 4) == [2, 4, 8, 8]
    assert list_next_sizes(group_size, 5, starve=True) == [8, 4, 2, 1, 1]
    assert list_next_sizes(group_size, 3) == [1, 2, 4]


@pytest.mark.parametrize("pair_s", [1.6, 2.0, 3.0])
def test_groups_that_do_not_pay_stay_single(pair_s: float) -> None:
    """Such groups only delay the lanes; a pair is tried now and then."""
    group_size = make_taught_group_size(4, alone_s=1.0, pair_s=pair_s)
    assert list_next_sizes(group_size, 2 * TRY_EVERY).count(2) == 2
    assert set(list_next_sizes(group_size, 2 * TRY_EVERY)) == {1, 2}


def test_a_later_gain_of_groups_is_noticed() -> None:
    """Once headers are precompiled, pairs take less time than the first pair did."""
    group_size = make_taught_group_size(4, alone_s=1.0, pair_s=3.0)
    group_size.record_group(2, 0.6)
    assert not group_size.saves_time
    group_size.record_group(2, 0.6)
    assert list_next_sizes(group_size, 3) == [2, 4, 4]
    for _ in range(9):
        group_size.record_group(1, 0.3)
    assert not group_size.saves_time


@pytest.mark.parametrize(
    ("waiting", "slots", "expected"), [(1, 14, 1), (14, 14, 1), (15, 14, 2), (29, 14, 3), (4, 1, 4), (3, 0, 3)]
)
def test_the_last_configs_are_shared_among_all_slots(waiting: int, slots: int, expected: int) -> None:
    """No slot has a group left while others are idle: with no more configs than slots, each config is alone."""
    assert limit_share(waiting, slots) == expected
