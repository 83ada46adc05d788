"""Digests of outputs: equal for equal bits alone, on the host and by the operations that a GPU makes them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from msgspec.structs import replace

from ktuned import tensor
from ktuned.checking import torch_tensors
from ktuned.checking.bits import LaunchDigests, add_bits, digest_launches_on_inputs
from ktuned.checking.problem_data import ProblemData
from ktuned.checking.tensor_library import NUMPY, TORCH
from ktuned.ipc import requests
from ktuned.model import Outcome
from tests.trials import make_measurement
from tests.worker.declaring import CPU, declare

torch = pytest.importorskip("torch")


def _by_numpy(array: Any) -> str:
    return NUMPY.read_digests([NUMPY.digest_tensors([array])])[0]


def _by_torch(array: Any) -> str:
    return TORCH.read_digests([TORCH.digest_tensors([torch.from_numpy(array)])])[0]


def _as_on_a_device(array: Any) -> str:
    from ktuned.declaration import view_as_bits

    return TORCH.read_digests([torch_tensors._digest_on_device([view_as_bits(torch.from_numpy(array))])])[0]


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


def test_torch_and_numpy_give_equal_digests_on_a_cpu() -> None:
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
def test_a_measurement_says_whether_its_bits_equal_the_anchors(
    bits: tuple[str, ...], differed: bool, anchor: tuple[str, ...], same: bool | None
) -> None:
    """One that differs from itself has nobody's."""
    timed = make_measurement(Outcome.MEASURED, latency_us=1.0, low_us=0.9, high_us=1.1)
    wanted = requests.SameBits(2, anchor)
    found = replace(timed, result=add_bits(timed.result, LaunchDigests(bits, differed), wanted))
    known = found.result.detail
    assert (known.bits, known.same_bits, known.nondeterministic) == (bits, same, differed or None)
    # Later configs race against one that has the anchor's bits for all that is known.
    races = requests.choose_incumbent(None, found, wanted) is not None
    assert races == (bool(anchor) and same is not False)


def _launched(kernel: Any, launch: Callable[[dict[str, Any]], Any], inputs: int = 9, **options: Any) -> LaunchDigests:
    data = ProblemData(kernel, {"M": 4}, CPU, **options)
    data.reset_tensors()
    before = {name: one.clone() for name, one in data.tensors.items() if name == "x"}
    data.prepare_checked_launch()
    launch(data.tensors)
    found = digest_launches_on_inputs(
        data, lambda: launch(data.tensors), lambda: None, [data.digest_outputs()], inputs, lambda: None
    )
    assert data.take_damage() is None
    assert all(torch.equal(data.tensors[name], one) for name, one in before.items())
    assert data.find_overwritten_inputs() == ()
    return found


def _double(tensors: dict[str, Any]) -> None:
    tensors["y"].copy_(2 * tensors["x"])


def test_each_input_has_a_digest_and_the_problems_own_is_back_afterwards() -> None:
    """The same for the same arithmetic; and those of hard inputs tell what the others do not."""
    found = _launched(declare(), _double)
    assert (len(set(found.bits)), found.has_differed) == (9, False)
    assert found == _launched(declare(), lambda tensors: tensors["y"].copy_(tensors["x"] + tensors["x"]))
    zeros = _launched(declare(), lambda tensors: tensors["y"].copy_(2 * tensors["x"] + 0.0))
    assert [one == other for one, other in zip(found.bits, zeros.bits, strict=True)] == [
        *[True] * 4,
        False,
        *[True] * 4,
    ]


def test_launches_of_one_input_that_differ_are_nondeterministic() -> None:
    """On whichever input of ordinary numbers."""
    count = iter(range(100))
    found = _launched(declare(), lambda tensors: tensors["y"].copy_(tensors["x"] + 1e-7 * (next(count) == 8)))
    assert found.has_differed


def test_integers_have_no_hard_inputs_but_other_random_ones() -> None:
    """Which are left empty."""
    kernel = declare(
        inputs=lambda p: {"x": tensor(8, "int32"), "y": tensor(8, "int32", output=True)},
    )
    found = _launched(kernel, _double)
    assert [bool(one) for one in found.bits] == [True, *[False] * 6, True, True]


def test_an_in_place_kernel_starts_from_each_input() -> None:
    """As ``setup`` says."""
    kernel = declare(inputs=lambda p: {"x": tensor(64, output=True, fill="uniform")}, setup=("x",), check=None)
    data = ProblemData(kernel, {"M": 4}, CPU)
    seen = []

    def launch() -> None:
        seen.append(data.tensors["x"].clone())
        data.tensors["x"].mul_(2)

    data.reset_tensors()
    found = digest_launches_on_inputs(data, launch, lambda: None, [], 3, lambda: None)
    assert len(set(found.bits)) == 3
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])
