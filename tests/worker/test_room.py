"""The memory that a problem takes on a GPU."""

from ktuned.worker.room import (
    BAND_BYTES,
    CHECK_BYTES,
    CONTEXT_BYTES,
    COPIES,
    FLUSH_BYTES,
    MARGIN,
    limit_bytes,
    needed_bytes,
)


def test_all_copies_count() -> None:
    """Also what a comparison takes, of the largest output alone, and a context that is not there yet."""
    tensors = {"x": (1 << 20, 1 << 18), "y": (1 << 22, 1 << 20)}
    need = FLUSH_BYTES + COPIES * ((1 << 20) + (1 << 22)) + 2 * BAND_BYTES + CHECK_BYTES * (1 << 20)
    assert needed_bytes(tensors, has_context=True) == need
    assert needed_bytes(tensors, has_context=False) == need + CONTEXT_BYTES
    assert needed_bytes({}, has_context=True) == FLUSH_BYTES


def test_an_estimate_that_is_too_low_costs_no_config_where_memory_is_free() -> None:
    """A second set of inputs in a process that has its context once had no room, beside 76 GiB that were free."""
    assert limit_bytes(1 << 30, 76 << 30) == 38 << 30
    assert limit_bytes(4 << 30, 5 << 30) == MARGIN * (4 << 30)
