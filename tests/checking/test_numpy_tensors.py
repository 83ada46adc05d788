"""NumPy arrays in place of torch tensors: the same data, guards and verdicts."""

import ctypes
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
from tests.checking.problems import PROBLEM, run_config
from tests.worker.declaring import CPU, LENGTH, declare_kernel

DTYPES = ["float64", "float32", "float16", "complex64", "int8", "uint16", "int64", "uint64", "bool"]


def make_problem_data(expected_path: Path | None = None, **arguments: Any) -> ProblemData:
    """Return the data of a problem, made of NumPy arrays, ready for trials."""
    data = ProblemData(declare_kernel(**arguments), PROBLEM, CPU, library=NUMPY)
    if expected_path is not None:
        data.provide_expected_outputs(expected_path)
    return data


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8", "complex64"])
def test_right_wrong_and_idle_configs_are_told_apart(tmp_path: Path, dtype: str) -> None:
    """A second worker reads the expected outputs that the first one saved."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(LENGTH, dtype), y=tensor(LENGTH, dtype, output=True))

    for _ in range(2):
        data = make_problem_data(tmp_path / "expected.safetensors", inputs=inputs)
        assert run_config(data, lambda tensors: np.multiply(tensors["x"], 2, out=tensors["y"])).ok
        verdict = run_config(data, lambda tensors: None)
        assert (verdict.ok, verdict.mismatched_ratio) == (False, 1.0)
        wrong = run_config(data, lambda tensors: np.multiply(tensors["x"], 3, out=tensors["y"]))
        assert "out of tolerance" in wrong.message


def test_the_data_are_those_of_torch() -> None:
    """The library changes neither the bytes of the tensors nor the layouts that a Build gets."""
    kernel = declare_kernel()
    numpy_data, torch_data = (ProblemData(kernel, PROBLEM, CPU, library=library) for library in (NUMPY, TORCH))
    assert numpy_data.tensors["x"].tobytes() == torch_data.tensors["x"].numpy().tobytes()
    assert find_layout(np.ones((3, 4), "float32", order="F")) == find_layout(torch.ones(4, 3).t())


def test_inputs_are_restored_and_their_overwriting_is_named(tmp_path: Path) -> None:
    data = make_problem_data(tmp_path / "expected.safetensors")
    run_config(data, lambda tensors: tensors["x"].fill(7))
    assert data.find_overwritten_inputs() == ("x",)
    assert run_config(data, lambda tensors: np.multiply(tensors["x"], 2, out=tensors["y"])).ok
    assert data.find_overwritten_inputs() == ()


def test_writes_outside_an_array_are_noticed() -> None:
    """An array between guards keeps its content and its order."""
    guards = Guards()
    arrays = {"y": np.asfortranarray(np.arange(15, dtype="float32").reshape(3, 5))}
    placed = guards.place_tensors(arrays, guards.find_spans(arrays))["y"]
    assert placed.flags.f_contiguous
    assert placed[2, 4] == 14
    ctypes.memset(placed.ctypes.data + 60, 1, 2)
    damage = guards.find_damage()
    assert damage is not None
    assert damage.message == "wrote outside its tensors: 0 bytes after y"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4,), (2, 2), ()], ids=str)
def test_verdicts_are_those_of_torch(dtype: str, shape: tuple[int, ...]) -> None:
    """The messages are equal, too."""
    right = np.array([0, 1, 1, 0]).astype(dtype)[: int(np.prod(shape))].reshape(shape)
    wrong = np.array([1, 1, 0, 0]).astype(dtype)[: int(np.prod(shape))].reshape(shape)
    for out in (right, wrong):
        numpy_verdict, torch_verdict = (
            compare_outputs(
                {"y": make_array(out)}, {"y": make_array(right)}, rtol=1e-3, atol=1e-3, max_mismatched_ratio=0.0
            )
            for make_array in (np.array, torch.as_tensor)
        )
        assert numpy_verdict == torch_verdict


def test_infinities_and_nan_are_compared_without_a_warning() -> None:
    """NaN equals NaN; an infinity equals only itself."""
    out, reference = np.array([np.nan, np.inf, np.inf]), np.array([np.nan, np.inf, -np.inf])
    verdict = compare_outputs({"y": out}, {"y": reference}, rtol=0.1, atol=0.1, max_mismatched_ratio=0.0)
    assert (verdict.ok, verdict.mismatched_ratio) == (False, 1 / 3)


def test_a_dtype_that_numpy_lacks_names_the_remedy() -> None:
    """The message says which torch suffices and how to install it."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=tensor(LENGTH, "bfloat16"), y=tensor(LENGTH, output=True))

    with pytest.raises(KernelFileError, match=r"inputs\(p\): x: NumPy has no bfloat16, and torch is not") as caught:
        make_problem_data(inputs=inputs)
    assert "pip install torch --index-url" in caught.value.hint


@pytest.mark.parametrize("library", [NUMPY, TORCH], ids=["numpy", "torch"])
def test_a_kernel_file_may_compute_with_numpy(tmp_path: Path, library: Any) -> None:
    """Inputs and references that are arrays work with either library."""

    def inputs(p: Any) -> dict[str, Any]:
        return dict(x=np.arange(LENGTH, dtype="float32"), y=tensor(LENGTH, output=True))

    kernel = declare_kernel(inputs=inputs, reference=lambda x: dict(y=np.asarray(x) * 2))
    data = ProblemData(kernel, PROBLEM, CPU, library=library)
    data.provide_expected_outputs(tmp_path / "expected.safetensors")
    data.reset_tensors()
    data.prepare_checked_launch()
    data.tensors["y"][:] = 2 * data.tensors["x"]
    assert data.check_outputs().ok


def test_a_reference_that_returns_no_array_is_named(tmp_path: Path) -> None:
    """The message names the returned type."""
    with pytest.raises(KernelFileError, match=r"returned a list for y, not a numpy\.ndarray"):
        make_problem_data(tmp_path / "expected.safetensors", reference=lambda x: dict(y=list(x)))


def test_torch_is_chosen_if_it_is_installed() -> None:
    assert choose_library(CPU) is TORCH
