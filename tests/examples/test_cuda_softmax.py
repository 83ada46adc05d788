"""The softmax through tvm-ffi and nvcc: its space is valid, a config compiles here, all methods compute on a GPU."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ktuned.backends.contract import Absent, Compiled, Unit
from ktuned.backends.registry import Registry
from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.loader import load_file
from ktuned.model.values import Scalar
from ktuned.testing.backends import BackendExample, check_backend, check_load_without_device
from ktuned_tvm_ffi import Build, TvmFfiCuda
from tests.plugins.nvcc_here import needs_nvcc

DIRECTORY = Path(__file__).parents[2] / "examples" / "cuda_softmax"
SOURCE = DIRECTORY / "softmax.cu"

CONFIGS: Mapping[str, dict[str, Scalar]] = {
    "default": {"THREADS": 128, "VECTOR": 1, "VECTORS": 1, "ROWS": 1, "METHOD": "THREE_READS"},
    "online": {"THREADS": 256, "VECTOR": 8, "VECTORS": 1, "ROWS": 2, "METHOD": "TWO_READS"},
    "kept": {"THREADS": 256, "VECTOR": 8, "VECTORS": 2, "ROWS": 1, "METHOD": "ONE_READ"},
}


def load_kernel() -> Kernel:
    """Load the example as a worker does."""
    loaded = load_file(DIRECTORY / "tune_softmax.py", DIRECTORY)
    assert loaded.errors == ()
    (kernel,) = loaded.kernels
    return kernel


def make_tensors(device: str) -> Mapping[str, Any]:
    """Return a small matrix with one constant row, and an array for the result."""
    import torch

    x = torch.linspace(-8, 8, 7 * 4096, device=device).half().view(7, 4096)
    x[3] = 5.0
    return {"x": x, "y": torch.full_like(x, float("nan"))}


def check_tensors(tensors: Mapping[str, Any]) -> None:
    """Compare the result with float64."""
    import torch

    expected = tensors["x"].double().softmax(dim=1)
    torch.testing.assert_close(tensors["y"].double(), expected, rtol=2e-3, atol=1e-7)


EXAMPLE = BackendExample(
    good=Build("softmax<256, 8, 2, 1, ONE_READ>", ("x", "y")),
    bad=Build("softmax<256, 8, 2, 1, FOUR_READS>", ("x", "y")),
    complaint="FOUR_READS",
    sources=(SOURCE,),
    kernel_file=SOURCE,
    kernel="softmax",
    inputs=make_tensors,
    verify=check_tensors,
    target="sm_90a",
)


def compile_configs(into: Path, target: str) -> dict[str, tuple[Unit, Compiled]]:
    """Compile configs as one group and return each one's unit and result."""
    kernel = load_kernel()
    (problem,) = kernel.list_problems()
    units = {
        name: Unit(name, kernel.build(problem, config), (SOURCE,), kernel.file, "softmax", target)
        for name, config in CONFIGS.items()
    }
    for name in units:
        (into / name).mkdir()
    return {result.key: (units[result.key], result) for result in TvmFfiCuda().compile(list(units.values()), into)}


def test_the_space_has_some_hundred_valid_configs() -> None:
    """Of all methods, with the default among them."""
    kernel = load_kernel()
    (problem,) = kernel.list_problems()
    configs = list(kernel.bind_space(problem))
    assert len(configs) >= 100
    assert {config["METHOD"] for config in configs} == {"THREE_READS", "TWO_READS", "ONE_READ"}
    assert all(config in configs for config in (kernel.default, *CONFIGS.values()))
    assert all(kernel.build(problem, config).to_plain()["args"] == ["x", "y"] for config in configs)
    assert Registry().load(kernel.backend).for_sources(kernel.source_paths) == "tvm_ffi_cuda"


@needs_nvcc
def test_every_method_compiles_without_a_gpu_and_does_not_spill(tmp_path: Path) -> None:
    """They are one library of three functions and three kernels, which a new process loads until it needs a GPU."""
    for _, result in compile_configs(tmp_path, "sm_90a").values():
        assert result.outcome is None, result.message
        assert len(result.facts["kernels"]) == 3
        assert all(kernel["spill_store_bytes"] == 0 for kernel in result.facts["kernels"].values())
    (library,) = {path.read_bytes() for path in tmp_path.rglob("kernel.so")}
    assert len(set(re.findall(rb"__tvm_ffi_(?!_metadata)(\w+)\0", library))) == 3
    check_load_without_device(TvmFfiCuda(), EXAMPLE, "sm_90a", tmp_path / "kept")


@pytest.mark.gpu
def test_the_example_passes_the_conformance_suite(tmp_path: Path) -> None:
    """With a launch."""
    check_backend(TvmFfiCuda(), EXAMPLE, tmp_path)


@pytest.mark.gpu
def test_every_method_agrees_with_torch(tmp_path: Path) -> None:
    """In float64, also for rows that are no multiple of a block."""
    devices = TvmFfiCuda().devices()
    assert not isinstance(devices, Absent)
    for name, (unit, result) in compile_configs(tmp_path, devices[0].target).items():
        assert result.outcome is None, result.message
        tensors = make_tensors("cuda:0")
        TvmFfiCuda().load(tmp_path / name, unit, devices[0]).bind(tensors)()
        check_tensors(tensors)
