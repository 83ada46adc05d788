"""How many configs travel together: what takes no time does, and what takes long travels alone."""

from __future__ import annotations

import pytest

from ktuned.tuning.limits import (
    LANE_S,
    MAX_BATCH,
    OPENING_AHEAD,
    BatchSize,
    limit_configs_under_way,
    limit_question_size,
)


def sized(*each_s: float) -> int:
    """Return the size of a batch after requests for one config each."""
    size = BatchSize(LANE_S)
    for seconds in each_s:
        size.record_request(1, seconds)
    return size.next_size


def test_the_first_config_travels_alone() -> None:
    """Nothing is known of its time."""
    assert sized() == 1


@pytest.mark.parametrize(("each_s", "count"), [(0.0, MAX_BATCH), (0.001, MAX_BATCH), (0.12, 4), (0.3, 1), (60.0, 1)])
def test_a_batch_is_as_large_as_its_time_allows(each_s: float, count: int) -> None:
    """And holds at most so many configs."""
    assert sized(each_s) == count


def test_a_single_hang_does_not_end_batches() -> None:
    """The usual time counts."""
    assert sized(0.01, 0.01, 10.0, 0.01) == MAX_BATCH


def test_a_requests_time_is_divided_among_its_configs() -> None:
    """A request for four took as long as all of them."""
    size = BatchSize(LANE_S)
    size.record_request(4, 0.4)
    assert size.next_size == 5
    size.record_request(0, 1.0)
    assert size.next_size == 5


def test_questions_grow_with_the_lanes_up_to_a_bound() -> None:
    """Each has its batch from one question, within a bound."""
    assert [limit_question_size(lanes=lanes, batch=1) for lanes in (1, 8, 64, 256)] == [4, 8, 32, 32]
    assert limit_question_size(lanes=4, batch=8) == 32


def test_few_slow_configs_are_under_way_at_once() -> None:
    """Those that travel alone wait one for each slot and lane; batches are two for each."""
    assert limit_configs_under_way(slots=2, group=1, lanes=1, batch=1) == 8
    assert limit_configs_under_way(slots=2, group=1, lanes=1, batch=8) == 50
    assert limit_configs_under_way(slots=14, group=4, lanes=2, batch=1) == 122


def test_more_configs_are_under_way_while_lanes_are_opened() -> None:
    """By so many configs more."""
    assert limit_configs_under_way(slots=2, group=1, lanes=1, batch=1, is_opening=True) == 8 + OPENING_AHEAD
