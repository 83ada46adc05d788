"""Digests of outputs: equal for equal bits alone, on the host and by the operations that a GPU makes them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest

from ktuned.ipc import replies, requests
from ktuned.model import Outcome
from ktuned.worker import torch_tensors
from ktuned.worker.bits import Launched, add_bits
from ktuned.worker.tensor_library import NUMPY, TORCH

torch = pytest.importorskip("torch")


def _by_numpy(array: Any) -> str:
    return NUMPY.read_digests([NUMPY.digest([array])])[0]


def _by_torch(array: Any) -> str:
    return TORCH.read_digests([TORCH.digest([torch.from_numpy(array)])])[0]


def _as_on_a_device(array: Any) -> str:
    from ktuned.spec import as_bits

    return TORCH.read_digests([torch_tensors._digest_on_device([as_bits(torch.from_numpy(array))])])[0]


@pytest.mark.parametrize("digest", [_by_numpy, _by_torch, _as_on_a_device])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "complex64"])
def test_a_digest_changes_with_each_bit_and_with_the_order(digest: Callable[[Any], str], dtype: str) -> None:
    """Zeros of either sign, NaNs of other payloads and exchanged elements included."""
    array = numpy.arange(600).astype(dtype).reshape(20, 30)
    exchanged = array.copy()
    exchanged[0, 1], exchanged[0, 2] = array[0, 2], array[0, 1]
    found = [array, exchanged]
    for place in (0, 7, array.nbytes - 1):
        flipped = array.copy()
        flipped.view("uint8").reshape(-1)[place] ^= 0x80
        found.append(flipped)
    texts = [digest(one) for one in found]
    assert len(set(texts)) == len(found)
    assert digest(array.copy()) == texts[0]
    assert all(len(text) == 16 for text in texts)


def test_the_host_digests_alike_with_and_without_torch() -> None:
    """Trials of one context may be of workers that have it and of such that have not."""
    array = numpy.linspace(-1, 1, 999, dtype="float32")
    assert _by_numpy(array) == _by_torch(array)
    assert _by_numpy(array[::3]) == _by_torch(array[::3])


def test_parts_of_a_large_output_count_by_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device hashes them one after the other."""
    array = numpy.arange(100, dtype="int32")
    whole = _as_on_a_device(array)
    monkeypatch.setattr(torch_tensors, "_HASHED", 7)
    assert _as_on_a_device(array) == whole
    assert _as_on_a_device(array[::-1].copy()) != whole


@pytest.mark.parametrize(
    ("bits", "differed", "anchor", "same"),
    [
        (("a", "b"), False, ("a", "b"), True),
        (("a", "x"), False, ("a", "b"), False),
        (("a",), False, ("a", "b"), None),
        (("a", "b"), True, ("a", "b"), False),
        (("a", "b"), False, (), None),
    ],
)
def test_a_measurement_says_whether_its_bits_are_the_anchors(
    bits: tuple[str, ...], differed: bool, anchor: tuple[str, ...], same: bool | None
) -> None:
    """One that differs from itself has nobody's."""
    timed = replies.Measurement(Outcome.MEASURED, latency_us=1.0, low_us=0.9, high_us=1.1)
    found = add_bits(timed, Launched(bits, differed), requests.SameBits(2, anchor))
    assert (found.bits, found.same_bits, found.nondeterministic) == (bits, same, differed or None)
    # Later configs race against one with the anchor's bits alone.
    assert (requests.Incumbent.after(None, found) is not None) == (same is True)
