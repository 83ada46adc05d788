"""NumPy's arrays in the place of torch's tensors: the same data, guards and verdicts."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ktuned import tensor
from ktuned.checking.guards import Guards
from ktuned.checking.problem_data import ProblemData
from ktuned.checking.tensor_library import NUMPY, TORCH, choose_library
from ktuned.checking.verdict import compare_outputs
from ktuned.declaration.tensors import find_layout
from ktuned.model.errors import KernelFileError
from tests.worker.declaring import CPU, N, declare

PROBLEM = {"M": 4}
DTYPES = ["float64", "float32", "float16", "complex64", "int8", "uint16", "int64", "uint64", "bool"]


def opened(cached: Path | None = None, **arguments: Any) -> ProblemData:
    """Return the data of a problem, made of NumPy's arrays, ready for trials."""
    data = ProblemData(declare(**arguments), PROBLEM, CPU, library=NUMPY)
    if cached is not None:
        data.provide_expected_outputs(cached)
    return data


def run(data: ProblemData, launch: Callable[[dict[str, Any]], object]) -> Any:
    """Try one config, as the bench does, and return the verdict."""
    data.reset_tensors()
    data.prepare_checked_launch()
    launch(data.tensors)
    assert data.take_damage() is None
    return data.check_outputs()


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8", "complex64"])
def test_right_wrong_and_idle_configs_are_told_apart(tmp_path: Path, dtype: str) -> None:
    """A right config passes, a wrong or an idle one does not; a second worker reads what was expected."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(N, dtype), y=tensor(N, dtype, output=True))

    for _ in range(2):
        data = opened(tmp_path / "expected.safetensors", inputs=inputs)
        assert run(data, lambda tensors: np.multiply(tensors["x"], 2, out=tensors["y"])).ok
        verdict = run(data, lambda tensors: None)
        assert (verdict.ok, verdict.mismatched_ratio) == (False, 1.0)
        wrong = run(data, lambda tensors: np.multiply(tensors["x"], 3, out=tensors["y"]))
        assert "out of tolerance" in wrong.message


def test_the_data_are_those_of_torch() -> None:
    """Which library makes a problem's tensors changes none of their bytes, nor the layouts that a build is given."""
    kernel = declare()
    ours, theirs = (ProblemData(kernel, PROBLEM, CPU, library=library) for library in (NUMPY, TORCH))
    assert ours.tensors["x"].tobytes() == theirs.tensors["x"].numpy().tobytes()
    assert find_layout(np.ones((3, 4), "float32", order="F")) == find_layout(torch.ones(4, 3).t())


def test_inputs_are_restored_and_their_overwriting_is_named(tmp_path: Path) -> None:
    """As with tensors."""
    data = opened(tmp_path / "expected.safetensors")
    run(data, lambda tensors: tensors["x"].fill(7))
    assert data.find_overwritten_inputs() == ("x",)
    assert run(data, lambda tensors: np.multiply(tensors["x"], 2, out=tensors["y"])).ok
    assert data.find_overwritten_inputs() == ()


def test_writes_outside_an_array_are_noticed() -> None:
    """An array stands between guards, and keeps its memory and its order."""
    guards = Guards()
    given = {"y": np.asfortranarray(np.arange(15, dtype="float32").reshape(3, 5))}
    placed = guards.place_tensors(given, guards.find_spans(given))["y"]
    assert placed.flags.f_contiguous
    assert placed[2, 4] == 14
    ctypes.memset(placed.ctypes.data + 60, 1, 2)
    damage = guards.find_damage()
    assert damage is not None
    assert damage.message == "wrote outside its tensors: 0 bytes after y"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4,), (2, 2), ()], ids=str)
def test_verdicts_are_those_of_torch(dtype: str, shape: tuple[int, ...]) -> None:
    """Word for word, for equal and for different arrays."""
    right = np.array([0, 1, 1, 0]).astype(dtype)[: int(np.prod(shape))].reshape(shape)
    wrong = np.array([1, 1, 0, 0]).astype(dtype)[: int(np.prod(shape))].reshape(shape)
    for out in (right, wrong):
        ours, theirs = (
            compare_outputs({"y": own(out)}, {"y": own(right)}, rtol=1e-3, atol=1e-3, max_mismatched_ratio=0.0)
            for own in (np.array, torch.as_tensor)
        )
        assert ours == theirs


def test_infinities_and_nan_are_compared_without_a_warning() -> None:
    """NaN equals NaN, infinity only itself."""
    out, reference = np.array([np.nan, np.inf, np.inf]), np.array([np.nan, np.inf, -np.inf])
    verdict = compare_outputs({"y": out}, {"y": reference}, rtol=0.1, atol=0.1, max_mismatched_ratio=0.0)
    assert (verdict.ok, verdict.mismatched_ratio) == (False, 1 / 3)


def test_a_dtype_that_numpy_lacks_names_the_remedy() -> None:
    """The message says which torch is enough, and how to install it."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(N, "bfloat16"), y=tensor(N, output=True))

    with pytest.raises(KernelFileError, match=r"inputs\(p\): x: NumPy has no bfloat16, and torch is not") as raised:
        opened(inputs=inputs)
    assert "pip install torch --index-url" in raised.value.hint


@pytest.mark.parametrize("library", [NUMPY, TORCH], ids=["numpy", "torch"])
def test_a_kernel_file_may_compute_with_numpy(tmp_path: Path, library: Any) -> None:
    """Inputs and references that are arrays serve either library, so that a file needs no torch where there is one."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=np.arange(N, dtype="float32"), y=tensor(N, output=True))

    kernel = declare(inputs=inputs, reference=lambda x: dict(y=np.asarray(x) * 2))
    data = ProblemData(kernel, PROBLEM, CPU, library=library)
    data.provide_expected_outputs(tmp_path / "expected.safetensors")
    data.reset_tensors()
    data.prepare_checked_launch()
    data.tensors["y"][:] = 2 * data.tensors["x"]
    assert data.check_outputs().ok


def test_a_reference_that_returns_no_array_is_named(tmp_path: Path) -> None:
    """By the type that it is not."""
    with pytest.raises(KernelFileError, match=r"returned a list for y, not a numpy\.ndarray"):
        opened(tmp_path / "expected.safetensors", reference=lambda x: dict(y=list(x)))


def test_torch_is_chosen_if_it_is_installed() -> None:
    """So nothing changes for those who have it."""
    assert choose_library(CPU) is TORCH
