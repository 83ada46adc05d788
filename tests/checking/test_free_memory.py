"""The memory that a problem takes on a GPU."""

import pytest

from ktuned.backends import nvml
from ktuned.checking import free_memory as room
from ktuned.checking.free_memory import (
    BAND_BYTES,
    CHECK_BYTES,
    CONTEXT_BYTES,
    COPIES,
    FLUSH_BYTES,
    MARGIN,
    choose_limit_bytes,
    estimate_needed_bytes,
    require_free_memory_for_spare,
)


def test_the_needed_memory_counts_all_copies() -> None:
    """It includes the comparison of the largest output, and a context that does not exist yet."""
    tensors = {"x": (1 << 20, 1 << 18), "y": (1 << 22, 1 << 20)}
    needed_bytes = FLUSH_BYTES + COPIES * ((1 << 20) + (1 << 22)) + 2 * BAND_BYTES + CHECK_BYTES * (1 << 20)
    assert estimate_needed_bytes(tensors, has_context=True) == needed_bytes
    assert estimate_needed_bytes(tensors, has_context=False) == needed_bytes + CONTEXT_BYTES
    assert estimate_needed_bytes({}, has_context=True) == FLUSH_BYTES


def test_an_estimate_that_is_too_low_costs_no_config_where_memory_is_free() -> None:
    """Half of the free memory may be used, even if the estimate is lower."""
    assert choose_limit_bytes(1 << 30, 76 << 30) == 38 << 30
    assert choose_limit_bytes(4 << 30, 5 << 30) == MARGIN * (4 << 30)


@pytest.mark.parametrize(
    ("free", "total", "has_room"),
    [(76 << 30, 80 << 30, True), (40 << 30, 80 << 30, False), (7 << 30, 8 << 30, True), (4 << 30, 8 << 30, False)],
)
def test_spares_leave_half_of_a_gpu_free(
    monkeypatch: pytest.MonkeyPatch, free: int, total: int, has_room: bool
) -> None:
    """The next problem may be larger. If the free memory is unknown, the driver decides."""
    monkeypatch.setattr(room, "gpu_uuids", lambda: {"cuda:0": "GPU-1"})
    monkeypatch.setattr(nvml, "read_memory", lambda uuid: (free, total))
    if has_room:
        require_free_memory_for_spare("cuda:0")
    else:
        with pytest.raises(RuntimeError, match=f"^only {free >> 20} of {total >> 20} MiB are free"):
            require_free_memory_for_spare("cuda:0")
    require_free_memory_for_spare("cuda:1")
    monkeypatch.setattr(nvml, "read_memory", lambda uuid: None)
    require_free_memory_for_spare("cuda:0")
