"""How many configs share a request: quick configs many, slow configs none."""

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


def compute_batch_size(*seconds_per_config: float) -> int:
    """Return the size of a batch after requests for one config each."""
    size = BatchSize(LANE_S)
    for seconds in seconds_per_config:
        size.record_request(1, seconds)
    return size.next_size


def test_the_first_config_travels_alone() -> None:
    """Its time is not known."""
    assert compute_batch_size() == 1


@pytest.mark.parametrize(
    ("seconds_per_config", "count"), [(0.0, MAX_BATCH), (0.001, MAX_BATCH), (0.12, 4), (0.3, 1), (60.0, 1)]
)
def test_a_batch_is_as_large_as_its_time_allows(seconds_per_config: float, count: int) -> None:
    """There is a maximal size, too."""
    assert compute_batch_size(seconds_per_config) == count


def test_a_single_hang_does_not_end_batches() -> None:
    """The usual time decides."""
    assert compute_batch_size(0.01, 0.01, 10.0, 0.01) == MAX_BATCH


def test_a_requests_time_is_divided_among_its_configs() -> None:
    size = BatchSize(LANE_S)
    size.record_request(4, 0.4)
    assert size.next_size == 5
    size.record_request(0, 1.0)
    assert size.next_size == 5


def test_questions_grow_with_the_lanes_up_to_a_bound() -> None:
    """One question brings every lane's batch, up to the bound."""
    assert [limit_question_size(lanes=lanes, batch=1) for lanes in (1, 8, 64, 256)] == [4, 8, 32, 32]
    assert limit_question_size(lanes=4, batch=8) == 32


def test_few_slow_configs_are_under_way_at_once() -> None:
    """Slow configs wait one for each slot and lane, batches two."""
    assert limit_configs_under_way(slots=2, group=1, lanes=1, batch=1) == 8
    assert limit_configs_under_way(slots=2, group=1, lanes=1, batch=8) == 50
    assert limit_configs_under_way(slots=14, group=4, lanes=2, batch=1) == 122


def test_more_configs_are_under_way_while_lanes_are_opened() -> None:
    assert limit_configs_under_way(slots=2, group=1, lanes=1, batch=1, is_opening=True) == 8 + OPENING_AHEAD
