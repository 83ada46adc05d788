"""How large groups of configs are, by what grouping is seen to save."""

import pytest

from ktuned.tuning.limits import TRY_EVERY, GroupSize, limit_share


def sizes(group_size: GroupSize, count: int, *, starve: bool = False) -> list[int]:
    """Return the sizes of the next groups."""
    return [group_size.choose_next_size(lanes_starve=starve) for _ in range(count)]


def taught(largest: int, *, alone_s: float, pair_s: float) -> GroupSize:
    """Return one that knows what a config alone and what a pair takes."""
    group_size = GroupSize(largest)
    assert sizes(group_size, 2) == [1, 2]
    group_size.record_group(1, alone_s)
    group_size.record_group(2, pair_s)
    return group_size


def test_the_first_group_is_single_and_the_second_a_pair() -> None:
    """Until a pair has reported what grouping saves the others are single, however much the lanes have to do."""
    assert sizes(GroupSize(4), TRY_EVERY + 3) == [1, 2, *[1] * (TRY_EVERY - 1), 2, 1]


def test_a_backend_without_groups_gets_single_configs() -> None:
    """Not even to try them."""
    assert set(sizes(taught_alone(), 2 * TRY_EVERY)) == {1}


def taught_alone() -> GroupSize:
    """Return one of a backend that compiles one by one."""
    group_size = GroupSize(1)
    group_size.record_group(1, 1.0)
    return group_size


def test_groups_that_pay_grow_while_lanes_are_busy_and_shrink_while_they_starve() -> None:
    """Doubled up to the largest, halved down to one."""
    group_size = taught(8, alone_s=1.0, pair_s=1.1)
    assert sizes(group_size, 4) == [2, 4, 8, 8]
    assert sizes(group_size, 5, starve=True) == [8, 4, 2, 1, 1]
    assert sizes(group_size, 3) == [1, 2, 4]


@pytest.mark.parametrize("pair_s", [1.6, 2.0, 3.0])
def test_groups_that_do_not_pay_stay_single(pair_s: float) -> None:
    """One that takes as long as its configs one by one only keeps them from the lanes; a pair is tried now and then."""
    group_size = taught(4, alone_s=1.0, pair_s=pair_s)
    assert sizes(group_size, 2 * TRY_EVERY).count(2) == 2
    assert set(sizes(group_size, 2 * TRY_EVERY)) == {1, 2}


def test_a_later_gain_of_groups_is_noticed() -> None:
    """Once headers are precompiled pairs take less than the first ones did: then groups grow after all."""
    group_size = taught(4, alone_s=1.0, pair_s=3.0)
    group_size.record_group(2, 0.6)
    assert not group_size.saves_time
    group_size.record_group(2, 0.6)
    assert sizes(group_size, 3) == [2, 4, 4]
    for _ in range(9):
        group_size.record_group(1, 0.3)
    assert not group_size.saves_time


@pytest.mark.parametrize(
    ("waiting", "slots", "most"), [(1, 14, 1), (14, 14, 1), (15, 14, 2), (29, 14, 3), (4, 1, 4), (3, 0, 3)]
)
def test_the_last_configs_are_shared_among_all_slots(waiting: int, slots: int, most: int) -> None:
    """No slot has a group left while others stand still: with no more configs than slots each is alone."""
    assert limit_share(waiting, slots) == most
