"""Tensors keep the strides, offsets, alignment and shared memory that a kernel file gives them; some are refused."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ktuned.checking.guards import Guards
from ktuned.checking.problem_data import ProblemData
from ktuned.checking.tensor_library import NUMPY, TORCH
from ktuned.declaration import Kernel, TensorSpec, kernel, space, tensor
from ktuned.model import Device, DeviceModel, DeviceName, KernelFileError, Target

CPU = Device(DeviceName("cpu:0"), DeviceModel("m"), Target("t"))


def declare_kernel(inputs: Callable[[Any], dict[str, Any]]) -> Kernel:
    """Return a kernel with these inputs."""

    @kernel(backend="none", space=space(n=[1]), inputs=inputs, check=lambda inputs, outputs: True)
    def it(p: Any, c: Any) -> Any:
        return None

    assert isinstance(it, Kernel)
    return it


def make_problem_data(tensors: dict[str, Any], library: Any, guards: Guards) -> ProblemData:
    """Return the data of a problem with these tensors, reset for a config."""
    data = ProblemData(declare_kernel(lambda p: tensors), {}, CPU, library=library, guards=guards)
    data.reset_tensors()
    return data


def make_aligned_array(count: int, offset: int = 0) -> np.ndarray[Any, Any]:
    """Return float32 numbers that start ``offset`` bytes behind a cache line."""
    base = np.arange(count + 64, dtype="float32")
    start = (-base.ctypes.data % 64 + offset) // 4
    return base[start : start + count]


def make_random_views(rng: random.Random) -> dict[str, np.ndarray[Any, Any]]:
    """Return random views of one array: sliced, strided, transposed and broadcast."""
    packed = make_aligned_array(1024, 4 * rng.randrange(16)).reshape(8, 128)
    views = {}
    for name in "abcd"[: rng.randint(1, 4)]:
        first, width, step = rng.randrange(100), rng.randrange(1, 24), rng.randrange(1, 4)
        view = packed[rng.randrange(4) :, first : first + width : step]
        view = view.T if rng.random() < 0.3 else view
        views[name] = np.broadcast_to(view[:, :1], view.shape) if rng.random() < 0.2 else view
    return views


@pytest.mark.parametrize("is_guarded", [True, False], ids=["guarded", "plain"])
@pytest.mark.parametrize("seed", range(20))
def test_numpy_views_keep_strides_alignment_and_distances(seed: int, is_guarded: bool) -> None:
    """The content stays the same, too."""
    tensors = make_random_views(random.Random(seed))
    placed = make_problem_data(tensors, NUMPY, Guards(is_active=is_guarded)).tensors
    first = next(iter(tensors))
    for name, array in tensors.items():
        assert placed[name].strides == array.strides
        assert placed[name].ctypes.data % 64 == array.ctypes.data % 64
        distance = array.ctypes.data - tensors[first].ctypes.data
        assert placed[name].ctypes.data - placed[first].ctypes.data == distance
        np.testing.assert_array_equal(placed[name], array)


@pytest.mark.parametrize("seed", range(20))
def test_torch_views_keep_strides_alignment_and_distances(seed: int) -> None:
    """This holds for views of tensors and for arrays that become tensors; an expanded tensor takes no more memory."""
    rng = random.Random(seed)
    tensors: dict[str, Any] = dict(make_random_views(rng))
    if seed % 2:
        tensors = {
            name: torch.as_tensor(array.copy()) if not array.flags.writeable else torch.as_tensor(array)
            for name, array in tensors.items()
        }
    placed = make_problem_data(tensors, TORCH, Guards()).tensors
    for name, value in tensors.items():
        expected = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
        strides = value.stride() if isinstance(value, torch.Tensor) else tuple(step // 4 for step in value.strides)
        assert placed[name].stride() == strides
        assert torch.equal(placed[name], expected)


def test_an_array_of_its_own_starts_at_a_cache_line() -> None:
    """NumPy's own alignment is chance; an offset within the array is intended."""
    array = np.arange(1000, dtype="float32")
    tensors = {"x": array, "y": array[3:]}
    placed = make_problem_data(tensors, NUMPY, Guards()).tensors
    assert placed["x"].ctypes.data % 64 == 0
    assert placed["y"].ctypes.data - placed["x"].ctypes.data == 12


def test_tensors_that_share_memory_share_it_in_launches() -> None:
    """A write through one is visible through the other, and both are restored."""
    array = np.zeros(64, "float32")
    data = make_problem_data({"x": array[:32], "y": array[16:48]}, NUMPY, Guards())
    data.tensors["x"][20] = 7
    assert data.tensors["y"][4] == 7
    data.reset_tensors()
    assert data.tensors["y"][4] == 0


def declare_laid_out_tensors() -> dict[str, TensorSpec]:
    """Return tensors as a drop-in records them: one that is misaligned, and three that share memory."""
    row = tensor(64, "float32", "uniform")
    return {
        "misaligned": replace(row, remainder=12),
        "whole": replace(row, remainder=128, memory="whole"),
        "part": replace(row, shape=(40,), memory="whole", offset=96),
        "indices": replace(tensor(8, "int64", "zeros"), memory="whole", offset=32),
        "empty": tensor(0, "float16", "uniform"),
    }


def test_recorded_layouts_are_those_of_launches() -> None:
    """Addresses modulo 64 and distances; a tensor's content replaces that of the tensor in whose memory it lies."""
    data = make_problem_data(declare_laid_out_tensors(), TORCH, Guards())
    address = {name: value.data_ptr() for name, value in data.tensors.items()}
    assert address["misaligned"] % 64 == 12
    assert (address["part"] - address["whole"], address["indices"] - address["whole"]) == (96, 32)
    whole = data.tensors["whole"]
    assert torch.equal(whole[24:], data.tensors["part"])
    assert not whole[8:24].any()
    before = whole.clone()
    data.tensors["indices"][0] = 7
    assert not torch.equal(whole, before)
    data.reset_tensors()
    assert torch.equal(data.tensors["whole"], before)


@pytest.mark.parametrize("name", ["misaligned", "whole"])
def test_a_write_outside_a_laid_out_tensor_ends_the_process(name: str) -> None:
    """The element after the last one lies in a page that cannot be accessed."""
    data = make_problem_data(declare_laid_out_tensors(), TORCH, Guards())
    value = data.tensors[name]
    end = value.data_ptr() + 4 * value.numel() + 64
    child = os.fork()
    if not child:
        faulthandler.disable()
        ctypes.memset(end, 0, 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV


def test_tensors_that_share_memory_get_no_hard_numbers() -> None:
    """One may hold another's indices."""
    data = make_problem_data(declare_laid_out_tensors(), TORCH, Guards())
    for number in range(1, 9):
        assert not {"whole", "part", "indices"} & {*data._inputs.provide_further_inputs(number)}


def test_a_tensor_that_is_expanded_is_restored(tmp_path: Path) -> None:
    """Torch cannot copy into a tensor whose elements share memory; and only its real memory is copied."""
    single = torch.ones(1, 1)
    data = make_problem_data({"x": single.expand(1 << 20, 1 << 12)}, TORCH, Guards())
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
    """The error comes before any measurement and has a hint."""
    with pytest.raises(KernelFileError, match=words) as caught:
        ProblemData(declare_kernel(lambda p: {"x": value}), {}, CPU, library=TORCH)
    assert caught.value.hint


@pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"])
def test_a_sparse_input_is_restored_compared_and_digested_by_its_parts(layout: str) -> None:
    """A config that writes to its values is found, and the next one sees the values as they were."""
    dense = torch.arange(16.0).reshape(4, 4) % 3
    block = (2, 2) if layout.startswith("sparse_b") else None

    def make(scale: float) -> ProblemData:
        value = (dense * scale).to_sparse(layout=getattr(torch, layout), blocksize=block)
        return ProblemData(declare_kernel(lambda p: {"x": value}), {}, CPU, library=TORCH)

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
