"""Hard inputs: the kinds of numbers that they promise, with the same bits from torch and NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest

from ktuned.declaration import HARD_FILLS, materialise, materialise_numpy, tensor

torch = pytest.importorskip("torch")

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", HARD_FILLS)
def test_torch_and_numpy_make_the_same_bits(fill: str, dtype: str) -> None:
    """The number of elements is odd: the last element has no partner."""
    spec = replace(tensor((7, 33), dtype), fill=fill)
    torch_bytes = materialise(spec, "x", "seed", "cpu").contiguous().view(torch.uint8).numpy().tobytes()
    assert torch_bytes == materialise_numpy(spec, "x", "seed").tobytes()


def draw_numbers(fill: str, dtype: str = "float32") -> numpy.ndarray:
    return materialise_numpy(replace(tensor(4096, dtype), fill=fill), "x", "seed")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_each_fill_holds_the_numbers_of_its_kind(dtype: str) -> None:
    """The kinds are those of IEEE 754."""
    smallest = numpy.finfo(dtype).smallest_normal
    denormals = draw_numbers("denormals", dtype)
    assert (abs(denormals) < smallest).all()
    # Denormals come in runs.
    assert len(set(denormals.tolist())) > 200
    runs = (denormals.reshape(-1, 256) != 0).mean(axis=1)
    assert ((runs > 0.9) | (runs == 0)).all()
    assert 0 < runs.mean() < 0.3
    zeros = draw_numbers("signed_zeros", dtype)
    assert (zeros == 0).all()
    assert 0.4 < numpy.signbit(zeros).mean() < 0.6
    infinities = draw_numbers("infinities", dtype)
    assert 0.03 < numpy.isinf(infinities).mean() < 0.1
    assert not numpy.isnan(infinities).any()
    nans = draw_numbers("nans", dtype)
    payloads = nans.view(f"u{nans.itemsize}")[numpy.isnan(nans)]
    assert 0.03 < numpy.isnan(nans).mean() < 0.1
    assert len(set(payloads.tolist())) > 20
    magnitudes = abs(draw_numbers("magnitudes", dtype)).astype("float64")
    assert numpy.isfinite(magnitudes).all()
    assert magnitudes.max() / magnitudes.min() > 2**10
    cancelling = draw_numbers("cancelling", dtype)
    sums = cancelling[::2] + cancelling[1::2]
    assert (abs(sums) <= 2 * numpy.spacing(abs(cancelling[::2]))).all()
    assert 0.3 < (sums == 0).mean() < 0.7


def test_a_tensor_with_a_declared_range_gets_no_hard_numbers() -> None:
    """Numbers that a kernel never gets prove nothing about it."""
    assert tensor(4).may_be_hard
    assert tensor(4, fill="normal").may_be_hard
    assert not tensor(4, low=0.0, high=1.0).may_be_hard
    assert not tensor(4, "int32").may_be_hard
    assert not tensor(4, fill="ones").may_be_hard
