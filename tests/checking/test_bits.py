"""Digests of outputs: equal only for equal bits, on the host and with the operations that a GPU uses."""

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
from tests.worker.declaring import CPU, declare_kernel

torch = pytest.importorskip("torch")


def digest_with_numpy(array: Any) -> str:
    return NUMPY.read_digests([NUMPY.digest_tensors([array])])[0]


def digest_with_torch(array: Any) -> str:
    return TORCH.read_digests([TORCH.digest_tensors([torch.from_numpy(array)])])[0]


def digest_as_on_device(array: Any) -> str:
    from ktuned.declaration import view_as_bits

    return TORCH.read_digests([torch_tensors._digest_on_device([view_as_bits(torch.from_numpy(array))])])[0]


@pytest.mark.parametrize("digest_array", [digest_with_numpy, digest_with_torch, digest_as_on_device])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "complex64"])
def test_a_digest_changes_with_each_bit_and_with_the_order(digest_array: Callable[[Any], str], dtype: str) -> None:
    """Signed zeros, NaN payloads and swapped elements count."""
    array = numpy.arange(600).astype(dtype).reshape(20, 30)
    exchanged = array.copy()
    exchanged[0, 1], exchanged[0, 2] = array[0, 2], array[0, 1]
    arrays = [array, exchanged]
    for byte in (0, 7, array.nbytes - 1):
        flipped = array.copy()
        flipped.view("uint8").reshape(-1)[byte] ^= 0x80
        arrays.append(flipped)
    digests = [digest_array(value) for value in arrays]
    assert len(set(digests)) == len(arrays)
    assert digest_array(array.copy()) == digests[0]
    assert all(len(text) == 16 for text in digests)


def test_torch_and_numpy_give_equal_digests_on_a_cpu() -> None:
    """Trials of one context may come from workers with and without torch."""
    array = numpy.linspace(-1, 1, 999, dtype="float32")
    assert digest_with_numpy(array) == digest_with_torch(array)
    assert digest_with_numpy(array[::3]) == digest_with_torch(array[::3])


def test_parts_of_a_large_output_count_by_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device hashes the parts one after the other."""
    array = numpy.arange(100, dtype="int32")
    whole = digest_as_on_device(array)
    monkeypatch.setattr(torch_tensors, "_HASHED", 7)
    assert digest_as_on_device(array) == whole
    assert digest_as_on_device(array[::-1].copy()) != whole


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
    """A config whose launches differ from each other has nobody's bits."""
    measurement_without_bits = make_measurement(Outcome.MEASURED, latency_us=1.0, low_us=0.9, high_us=1.1)
    request = requests.SameBits(2, anchor)
    measurement = replace(
        measurement_without_bits,
        result=add_bits(measurement_without_bits.result, LaunchDigests(bits, differed), request),
    )
    detail = measurement.result.detail
    assert (detail.numerics.bits, detail.numerics.same_bits, detail.numerics.nondeterministic) == (
        bits,
        same,
        differed,
    )
    # Later configs race against a config only if nothing shows that its bits differ from the anchor's.
    is_incumbent = requests.choose_incumbent(None, measurement, request) is not None
    assert is_incumbent == (bool(anchor) and same is not False)


def digest_launches(
    kernel: Any, launch: Callable[[dict[str, Any]], Any], count: int = 9, **options: Any
) -> LaunchDigests:
    data = ProblemData(kernel, {"M": 4}, CPU, **options)
    data.reset_tensors()
    inputs_before = {name: value.clone() for name, value in data.tensors.items() if name == "x"}
    data.prepare_checked_launch()
    launch(data.tensors)
    digests = digest_launches_on_inputs(
        data, lambda: launch(data.tensors), lambda: None, [data.digest_outputs()], count, lambda: None
    )
    assert data.take_damage() is None
    assert all(torch.equal(data.tensors[name], value) for name, value in inputs_before.items())
    assert data.find_overwritten_inputs() == ()
    return digests


def write_double(tensors: dict[str, Any]) -> None:
    tensors["y"].copy_(2 * tensors["x"])


def test_each_input_has_a_digest_and_the_problems_own_is_back_afterwards() -> None:
    """Equal arithmetic gives equal digests, and hard inputs tell kernels apart that ordinary inputs do not."""
    digests = digest_launches(declare_kernel(), write_double)
    assert (len(set(digests.bits)), digests.has_differed) == (9, False)
    assert digests == digest_launches(declare_kernel(), lambda tensors: tensors["y"].copy_(tensors["x"] + tensors["x"]))
    zeros = digest_launches(declare_kernel(), lambda tensors: tensors["y"].copy_(2 * tensors["x"] + 0.0))
    assert [value == other for value, other in zip(digests.bits, zeros.bits, strict=True)] == [
        *[True] * 4,
        False,
        *[True] * 4,
    ]


def test_launches_of_one_input_that_differ_are_nondeterministic() -> None:
    """Any input of ordinary numbers may reveal it."""
    count = iter(range(100))
    digests = digest_launches(
        declare_kernel(), lambda tensors: tensors["y"].copy_(tensors["x"] + 1e-7 * (next(count) == 8))
    )
    assert digests.has_differed


def test_integers_have_no_hard_inputs_but_other_random_ones() -> None:
    """The digests of hard inputs are empty."""
    kernel = declare_kernel(
        inputs=lambda p: {"x": tensor(8, "int32"), "y": tensor(8, "int32", output=True)},
    )
    digests = digest_launches(kernel, write_double)
    assert [bool(value) for value in digests.bits] == [True, *[False] * 6, True, True]


def test_an_in_place_kernel_starts_from_each_input() -> None:
    """``setup`` names the tensor that is restored."""
    kernel = declare_kernel(inputs=lambda p: {"x": tensor(64, output=True, fill="uniform")}, setup=("x",), check=None)
    data = ProblemData(kernel, {"M": 4}, CPU)
    inputs = []

    def launch() -> None:
        inputs.append(data.tensors["x"].clone())
        data.tensors["x"].mul_(2)

    data.reset_tensors()
    digests = digest_launches_on_inputs(data, launch, lambda: None, [], 3, lambda: None)
    assert len(set(digests.bits)) == 3
    assert torch.equal(inputs[0], inputs[1])
    assert not torch.equal(inputs[1], inputs[2])
