"""Tensors: every fill, the same on every device and library, and poison that unwritten elements cannot hide."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch

from ktuned import tensor
from ktuned.checking.tensor_library import TORCH
from ktuned.declaration import draws
from ktuned.declaration.arrays import NumPyArrays
from ktuned.declaration.poisons import fill_with_poison, view_as_bits
from ktuned.declaration.tensors import (
    COMPLEX,
    DTYPES,
    FILLS,
    FLOATS,
    INTEGER_BITS,
    TensorSpec,
    materialise,
    materialise_numpy,
)
from ktuned.model.errors import UsageError


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fill", FILLS)
def test_every_dtype_can_be_made_with_every_fill(dtype: str, fill: str) -> None:
    """A dtype refuses fills that make no sense for it with a clear message."""
    if fill in ("uniform", "normal") and dtype not in FLOATS + COMPLEX:
        with pytest.raises(UsageError, match=f"{dtype} cannot be filled '{fill}': use fill='integer'"):
            tensor((4, 3), dtype, fill)
        return
    spec = tensor((40, 3), dtype, fill)
    cpu_tensor = materialise(spec, "A", "k", "cpu")
    assert (tuple(cpu_tensor.shape), cpu_tensor.dtype) == ((40, 3), getattr(torch, dtype))
    widened = torch.view_as_real(cpu_tensor.to(torch.complex128)) if dtype in COMPLEX else cpu_tensor.to(torch.float64)
    values, resolved = set(widened.flatten().tolist()), spec.resolved_fill
    if resolved == "ones":
        assert values == ({1.0, 0.0} if dtype in COMPLEX else {1.0})
    if resolved == "zeros":
        assert values == {0.0}
    if resolved in ("uniform", "normal", "integer"):
        assert len(values) > 1
    if resolved == "uniform":
        assert -1 <= min(values) <= max(values) <= 1
    if resolved == "integer":
        assert values <= set(range(int(spec.range[0]), int(spec.range[1])))


def test_the_auto_fill_depends_on_the_dtype() -> None:
    """``auto`` is uniform for floating dtypes, small integers for other dtypes, and poison for an output."""
    assert tensor(1, "bfloat16").resolved_fill == "uniform"
    assert tensor(1, "int8").resolved_fill == "integer"
    assert tensor(1, "bool").resolved_fill == "integer"
    assert materialise(tensor(5, output=True), "C", "k", "cpu").isnan().all()


def test_random_numbers_are_of_the_declared_range() -> None:
    """``low`` is included, ``high`` excluded, up to the dtype's own limits."""
    drawn = materialise(tensor(1000, "int32", "integer", low=10, high=12), "A", "k", "cpu")
    assert set(drawn.tolist()) == {10, 11}
    wide = materialise(tensor(1000, "float32", low=5, high=6), "A", "k", "cpu")
    assert wide.min() >= 5
    assert wide.max() <= 6
    top = materialise(tensor(100, "int64", "integer", low=2**63 - 3, high=2**63 - 1), "A", "k", "cpu")
    assert set(top.tolist()) == {2**63 - 3, 2**63 - 2}


QUANTILES_DIGEST = "b5eae150beded850aa745929a810e4752dfa1e2a784d6125ff90bc2176c4eb03"

RANGES: tuple[dict[str, float], ...] = (
    {},
    {"low": -1.7, "high": 5.3},
    {"low": 2, "high": 9},
    {"low": -600, "high": 1e6},
    {"low": 0, "high": 2**40 + 5},
    {"low": -(2**63), "high": 2**63 - 1},
)


def list_tensor_specs(dtype: str, shape: tuple[int, ...]) -> Iterator[TensorSpec]:
    """Return a dtype's tensors with every fill and range that it allows."""
    for fill in FILLS:
        for limits in RANGES:
            with suppress(UsageError):
                yield tensor(shape, dtype, fill, low=limits.get("low"), high=limits.get("high"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_makes_the_bytes_of_torch(dtype: str) -> None:
    """The comparison covers rounding, subnormal numbers, both zeros and values beyond the dtype's range."""
    for spec in list_tensor_specs(dtype, (127, 31)):
        torch_bytes = view_as_bits(materialise(spec, "A", "k", "cpu")).contiguous().numpy().tobytes()
        assert materialise_numpy(spec, "A", "k").tobytes() == torch_bytes, spec


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_makes_the_bytes_of_a_cpu(dtype: str) -> None:
    """The tensors span several chunks of the CPU and of the GPU."""
    for spec in list_tensor_specs(dtype, (1 << 12, 33)):
        cpu_tensor, gpu_tensor = (materialise(spec, "A", "k", device) for device in ("cpu", "cuda:0"))
        assert view_as_bits(cpu_tensor).equal(view_as_bits(gpu_tensor.cpu())), spec
    large = tensor((1 << 25) + 7, "float16")
    assert materialise(large, "A", "k", "cuda:0").cpu().equal(materialise(large, "A", "k", "cpu"))


def test_the_generator_is_splitmix64() -> None:
    """The words are those of the reference implementation for seed 1234567; chunks do not change them."""
    reference_words = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    arrays = NumPyArrays()
    assert draws.generate_words(arrays, 1234567, 0, 5).astype("uint64").tolist() == reference_words
    assert draws.generate_words(arrays, 1234567, 2, 3).astype("uint64").tolist() == reference_words[2:]


def test_a_prefix_of_a_larger_tensor_is_the_smaller_one() -> None:
    """An element depends on its index alone, whatever its chunk."""
    for dtype in ("float16", "float32", "float64", "int8"):
        large = materialise(tensor(300_001, dtype), "A", "k", "cpu")
        assert large[:1001].equal(materialise(tensor(1001, dtype), "A", "k", "cpu"))


def test_random_numbers_have_the_documented_distributions() -> None:
    """Uniform numbers and integers have their documented distributions, too."""
    normal = materialise(tensor(1 << 20, "float32", "normal"), "A", "k", "cpu").double()
    assert (abs(normal.mean()) < 0.004, abs(normal.std() - 1) < 0.004) == (True, True)
    assert 4 < normal.abs().max() < 5.2
    assert abs((normal.abs() < 1).double().mean() - 0.6827) < 0.003
    uniform = materialise(tensor(1 << 20, "float16"), "A", "k", "cpu").double()
    assert (abs(uniform.mean()) < 0.003, abs(uniform.std() - 3**-0.5) < 0.003) == (True, True)
    integer = materialise(tensor(1 << 20, "int32", "integer"), "A", "k", "cpu")
    assert ((torch.bincount(integer + 3) * 7 / (1 << 20) - 1).abs() < 0.02).all()


def test_the_table_of_quantiles_is_the_same_everywhere() -> None:
    """The table is computed with the machine's logarithm and rounded so that machines agree."""
    table = draws.compute_quantiles()
    assert hashlib.sha256(",".join(map(str, table)).encode()).hexdigest() == QUANTILES_DIGEST
    assert sum(table) == 0


def test_user_code_that_sets_defaults_changes_no_data() -> None:
    """Neither torch's default dtype nor its seed matters."""
    spec = tensor(64, "float32", "normal")
    before = materialise(spec, "A", "k", "cpu")
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(5)
    try:
        assert materialise(spec, "A", "k", "cpu").equal(before)
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_seed_is_declared_or_derived_from_the_name() -> None:
    """Without a seed, other names or texts give other data; with equal seeds, the data is equal."""
    spec, seeded = tensor(64), tensor(64, seed=3)
    first = materialise(spec, "A", "k", "cpu")
    assert first.equal(materialise(spec, "A", "k", "cpu"))
    assert not first.equal(materialise(spec, "B", "k", "cpu"))
    assert not first.equal(materialise(spec, "A", "other", "cpu"))
    assert materialise(seeded, "A", "k", "cpu").equal(materialise(seeded, "B", "other", "cpu"))


FINGERPRINT_PROGRAM = """
import hashlib, torch
from ktuned import tensor
from ktuned.declaration.tensors import materialise
total = hashlib.sha256()
for dtype, fill in [("float32", "uniform"), ("float64", "normal"), ("float16", "normal"), ("bfloat16", "uniform"),
                    ("float8_e4m3fn", "uniform"), ("complex64", "normal"), ("int8", "integer"), ("bool", "auto")]:
    made = materialise(tensor((33, 7), dtype, fill), "A", "gemm", "cpu")
    total.update(bytes(made.view(torch.uint8).flatten().tolist()))
print(total.hexdigest())
"""


def test_fills_are_the_same_in_every_process(capsys: pytest.CaptureFixture[str]) -> None:
    exec(FINGERPRINT_PROGRAM, {})
    output = capsys.readouterr().out
    other_output = subprocess.run(
        [sys.executable, "-c", FINGERPRINT_PROGRAM], check=True, capture_output=True, text=True
    ).stdout
    assert output == other_output != ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_is_extreme(dtype: str) -> None:
    """Poison is NaN, a number near the dtype's maximum, or True."""
    target = torch.zeros((2, 3), dtype=getattr(torch, dtype))
    assert fill_with_poison(target) is target
    if dtype == "bool":
        assert target.all()
    elif dtype in INTEGER_BITS:
        (value,) = {value % 2**64 for value in target.to(torch.int64).flatten().tolist()}
        assert 0.8 * INTEGER_BITS[dtype][1] < value < INTEGER_BITS[dtype][1]
    else:
        assert target.to(torch.complex128 if dtype in COMPLEX else torch.float64).isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_unwritten_elements_are_found(dtype: str) -> None:
    """No written element counts as unwritten, not even NaN or the largest value. For narrow dtypes, only an output
    that holds nothing but poison is recognised.
    """
    target = fill_with_poison(torch.zeros((2, 3), dtype=getattr(torch, dtype)))
    assert TORCH.find_unwritten(target).all()
    target[0, 1] = 0
    is_narrow = dtype in ("float8_e4m3fnuz", "float8_e5m2fnuz", "int8", "uint8", "bool")
    assert TORCH.find_unwritten(target).sum() == (0 if is_narrow else 5)
    if not is_narrow:
        largest = INTEGER_BITS[dtype][1] - 1 if dtype in INTEGER_BITS else float("nan")
        target[1, 1] = torch.tensor(largest, dtype=target.dtype)
        assert TORCH.find_unwritten(target).tolist() == [[True, False, True], [True, False, True]]


def test_poison_reaches_strided_views() -> None:
    for dtype in (torch.float32, torch.int32):
        target = torch.zeros((2, 3), dtype=dtype).T
        assert not (fill_with_poison(target) == 0).any()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"shape": (2, -1)}, "the shape (2, -1) holds -1"),
        ({"shape": (2.0,)}, "holds 2.0, which is not an int"),
        ({"shape": 2.0}, "the shape 2.0 is not an int; // divides ints"),
        ({"shape": "64"}, "the shape '64' is neither an int nor a tuple of ints"),
        ({"shape": 1, "dtype": "float17"}, "there is no dtype 'float17'"),
        ({"shape": 1, "fill": "unifrom"}, "did you mean 'uniform'?"),
        ({"shape": 1, "seed": "x"}, "the seed 'x' is not an int"),
        ({"shape": 1, "fill": "zeros", "low": 1}, "low and high have no effect with the fill 'zeros'"),
        ({"shape": 1, "low": 2, "high": 1}, "low=2 is not below high=1"),
        ({"shape": 1, "dtype": "uint8", "low": -1}, "uint8 cannot hold all values of [-1, 4)"),
        ({"shape": 1, "dtype": "uint64", "high": 2**64}, "uint64 cannot hold all values of [0,"),
        ({"shape": 1, "dtype": "int8", "low": 0.5}, "needs whole numbers"),
        ({"shape": 1, "high": float("inf")}, "the limit inf is not finite"),
    ],
)
def test_a_wrong_tensor_names_its_error(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        tensor(**arguments)
    assert words in caught.value.message


def test_torch_dtypes_are_accepted() -> None:
    """A bare int is a shape of one dimension."""
    assert tensor(3, torch.float16) == tensor((3,), "float16") == tensor([3], "torch.float16")
