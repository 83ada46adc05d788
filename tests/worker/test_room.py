"""The memory that a problem takes on a GPU."""

from ktuned.worker.room import BAND_BYTES, CHECK_BYTES, CONTEXT_BYTES, COPIES, needed_bytes


def test_all_copies_count() -> None:
    """Also what a comparison takes, of the largest output alone, and a context that is not there yet."""
    tensors = {"x": (1 << 20, 1 << 18), "y": (1 << 22, 1 << 20)}
    need = COPIES * ((1 << 20) + (1 << 22)) + 2 * BAND_BYTES + CHECK_BYTES * (1 << 20)
    assert needed_bytes(tensors, has_context=True) == need
    assert needed_bytes(tensors, has_context=False) == need + CONTEXT_BYTES
    assert needed_bytes({}, has_context=True) == 0
