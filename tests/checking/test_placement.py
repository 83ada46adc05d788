"""Tensors are used as a kernel file gives them: strides, offsets, alignment, shared memory, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ktuned.checking.guards import Guards
from ktuned.checking.problem_data import ProblemData
from ktuned.checking.tensor_library import NUMPY, TORCH
from ktuned.declaration import Kernel, kernel, space
from ktuned.model import Device, DeviceModel, DeviceName, KernelFileError, Target

CPU = Device(DeviceName("cpu:0"), DeviceModel("m"), Target("t"))


def declare(inputs: Callable[[Any], dict[str, Any]]) -> Kernel:
    """Return a kernel with these inputs."""

    @kernel(backend="none", space=space(n=[1]), inputs=inputs, check=lambda inputs, outputs: True)
    def it(p: Any, c: Any) -> Any:
        return None

    assert isinstance(it, Kernel)
    return it


def opened(given: dict[str, Any], library: Any, guards: Guards) -> ProblemData:
    """Return the data of a problem with given tensors, as a config finds them."""
    data = ProblemData(declare(lambda p: given), {}, CPU, library=library, guards=guards)
    data.reset_tensors()
    return data


def aligned(count: int, offset: int = 0) -> np.ndarray[Any, Any]:
    """Return float32 numbers that begin so many bytes behind a cache line."""
    base = np.arange(count + 64, dtype="float32")
    start = (-base.ctypes.data % 64 + offset) // 4
    return base[start : start + count]


def views(numbers: random.Random) -> dict[str, np.ndarray[Any, Any]]:
    """Return some views of one array, cut, stepped, turned and repeated at random."""
    packed = aligned(1024, 4 * numbers.randrange(16)).reshape(8, 128)
    found = {}
    for name in "abcd"[: numbers.randint(1, 4)]:
        first, width, step = numbers.randrange(100), numbers.randrange(1, 24), numbers.randrange(1, 4)
        view = packed[numbers.randrange(4) :, first : first + width : step]
        view = view.T if numbers.random() < 0.3 else view
        found[name] = np.broadcast_to(view[:, :1], view.shape) if numbers.random() < 0.2 else view
    return found


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "plain"])
@pytest.mark.parametrize("seed", range(20))
def test_numpy_views_keep_strides_alignment_and_distances(seed: int, is_guarded: bool) -> None:
    """Whatever they are views of, in every combination, with the same numbers."""
    given = views(random.Random(seed))
    placed = opened(given, NUMPY, Guards(is_active=is_guarded)).tensors
    first = next(iter(given))
    for name, array in given.items():
        assert placed[name].strides == array.strides
        assert placed[name].ctypes.data % 64 == array.ctypes.data % 64
        distance = array.ctypes.data - given[first].ctypes.data
        assert placed[name].ctypes.data - placed[first].ctypes.data == distance
        np.testing.assert_array_equal(placed[name], array)


@pytest.mark.parametrize("seed", range(20))
def test_torch_views_keep_strides_alignment_and_distances(seed: int) -> None:
    """Those of a tensor, and those of an array that becomes one; what is expanded takes no more memory."""
    numbers = random.Random(seed)
    given: dict[str, Any] = dict(views(numbers))
    if seed % 2:
        given = {
            name: torch.as_tensor(array.copy()) if not array.flags.writeable else torch.as_tensor(array)
            for name, array in given.items()
        }
    placed = opened(given, TORCH, Guards()).tensors
    for name, value in given.items():
        own = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
        steps = value.stride() if isinstance(value, torch.Tensor) else tuple(step // 4 for step in value.strides)
        assert placed[name].stride() == steps
        assert torch.equal(placed[name], own)


def test_an_array_of_its_own_starts_at_a_cache_line() -> None:
    """NumPy's place for it is chance; an offset within it is not."""
    whole = np.arange(1000, dtype="float32")
    given = {"x": whole, "y": whole[3:]}
    placed = opened(given, NUMPY, Guards()).tensors
    assert placed["x"].ctypes.data % 64 == 0
    assert placed["y"].ctypes.data - placed["x"].ctypes.data == 12


def test_tensors_that_share_memory_share_it_in_launches() -> None:
    """A write through one is seen through the other, and both are restored."""
    whole = np.zeros(64, "float32")
    data = opened({"x": whole[:32], "y": whole[16:48]}, NUMPY, Guards())
    data.tensors["x"][20] = 7
    assert data.tensors["y"][4] == 7
    data.reset_tensors()
    assert data.tensors["y"][4] == 0


def test_a_tensor_that_is_expanded_is_restored(tmp_path: Path) -> None:
    """Torch copies into none whose elements share memory; nor is all of it taken that it shows."""
    one = torch.ones(1, 1)
    data = opened({"x": one.expand(1 << 20, 1 << 12)}, TORCH, Guards())
    assert data.tensors["x"].stride() == (0, 0)
    data.tensors["x"][:1, :1] = 5
    data.reset_tensors()
    assert float(data.tensors["x"][3, 3]) == 1


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "x: it is a nested tensor"),
        (torch.eye(3).to_mkldnn(), "x: it is a _mkldnn tensor"),
        (np.arange(8.0)[::-1], "x: it has a negative stride"),
    ],
    ids=["nested", "mkldnn", "negative"],
)
def test_tensors_that_no_kernel_can_be_launched_with_are_refused_by_name(value: Any, words: str) -> None:
    """Before anything is measured, with the remedy."""
    with pytest.raises(KernelFileError, match=words) as raised:
        ProblemData(declare(lambda p: {"x": value}), {}, CPU, library=TORCH)
    assert raised.value.hint


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"])
def test_a_sparse_input_is_restored_compared_and_digested_by_its_parts(layout: str) -> None:
    """A config that writes to its values is found, and the next one sees the values as they were."""
    dense = torch.arange(16.0).reshape(4, 4) % 3
    block = (2, 2) if layout.startswith("sparse_b") else None

    def make(scale: float) -> ProblemData:
        value = (dense * scale).to_sparse(layout=getattr(torch, layout), blocksize=block)
        return ProblemData(declare(lambda p: {"x": value}), {}, CPU, library=TORCH)

    data = make(1.0)
    data.reset_tensors()
    x = data.tensors["x"]
    assert str(x.layout) == f"torch.{layout}"
    assert data.find_overwritten_inputs() == ()
    (x._values() if layout == "sparse_coo" else x.values()).add_(1)
    assert data.find_overwritten_inputs() == ("x",)
    data.reset_tensors()
    assert torch.equal(x.to_dense(), dense)
    assert data.digest_problem() == make(1.0).digest_problem() != make(2.0).digest_problem()
