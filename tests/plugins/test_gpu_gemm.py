"""The tensor-core GEMM: its space is large and valid, its configs compile here and compute correctly on a GPU."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ktuned.backends.contract import Absent, Compiled, Unit
from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.loader import load_file
from ktuned.model.values import Scalar
from ktuned_nvrtc import Nvrtc

DIRECTORY = Path(__file__).parents[2] / "examples" / "gpu_gemm"
SOURCE = DIRECTORY / "gemm.cu"

CONFIGS: Mapping[str, dict[str, Scalar]] = {
    "default": {"BM": 64, "BN": 64, "BK": 32, "WARPS_M": 2, "WARPS_N": 2, "STAGES": 2},
    "wide": {"BM": 64, "BN": 256, "BK": 32, "WARPS_M": 1, "WARPS_N": 4, "STAGES": 4},
    "large": {"BM": 128, "BN": 256, "BK": 64, "WARPS_M": 2, "WARPS_N": 4, "STAGES": 4},
}

SHAPES = [(512, 512, 512), (1, 8, 8), (200, 264, 136), (65, 520, 1000)]
"""All tiles divide the first shape, and no tile divides the others; N and K are multiples of 8."""


def load_kernel() -> Kernel:
    loaded = load_file(DIRECTORY / "tune_gemm.py", DIRECTORY)
    assert loaded.errors == ()
    (kernel,) = loaded.kernels
    return kernel


def compile_configs(
    problem: Mapping[str, Scalar], configs: Mapping[str, Mapping[str, Scalar]], into: Path, target: str
) -> dict[str, tuple[Unit, Compiled]]:
    """Compile configs as one group; return each config's unit and result."""
    kernel = load_kernel()
    units = {
        name: Unit(name, kernel.build(problem, config), (SOURCE,), kernel.file, "gemm", target)
        for name, config in configs.items()
    }
    for name in units:
        (into / name).mkdir()
    return {result.key: (units[result.key], result) for result in Nvrtc().compile(list(units.values()), into)}


def test_the_space_is_large_and_its_configs_fit() -> None:
    """It has at least 100 configs, including the default, whose shared memory fits and whose sums do not spill."""
    kernel = load_kernel()
    (problem,) = kernel.list_problems()
    configs = list(kernel.bind_space(problem))
    assert len(configs) >= 100
    for config in (kernel.default, *CONFIGS.values()):
        assert config in configs
    for config in configs:
        build = kernel.build(problem, config).to_plain()
        assert 128 <= build["block"][0] <= 256
        assert build["shared_bytes"] <= 227 * 1024


def test_configs_compile_without_a_gpu_and_do_not_spill(tmp_path: Path) -> None:
    """They are compiled as one program."""
    (problem,) = load_kernel().list_problems()
    for _, result in compile_configs(problem, CONFIGS, tmp_path, "sm_90a").values():
        assert result.outcome is None, result.message
        assert result.facts["spill_store_bytes"] == 0
        assert b"-arch sm_90a" in (tmp_path / result.key / "kernel.cubin").read_bytes()


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES)
def test_configs_agree_with_torch(shape: tuple[int, int, int], tmp_path: Path) -> None:
    """The shapes include some that no tile divides."""
    import torch

    backend = Nvrtc()
    devices = backend.devices()
    assert not isinstance(devices, Absent)
    m, n, k = shape
    torch.manual_seed(0)
    a, b = (torch.rand(size, device="cuda", dtype=torch.float16) * 2 - 1 for size in ((m, k), (k, n)))
    expected = a.double() @ b.double()
    compiled = compile_configs({"M": m, "N": n, "K": k}, CONFIGS, tmp_path, devices[0].target)
    for name, (unit, result) in compiled.items():
        assert result.outcome is None, result.message
        c = torch.full((m, n), float("nan"), device="cuda")
        tensors: dict[str, Any] = {"A": a, "B": b, "C": c}
        backend.load(tmp_path / name, unit, devices[0]).bind(tensors)()
        torch.testing.assert_close(c.double(), expected, rtol=1e-4, atol=1e-3)
