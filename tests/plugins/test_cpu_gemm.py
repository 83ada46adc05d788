"""The example kernel: its good configs compute correctly, and each of its four wrong configs fails in its own way."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ktuned.backends.contract import Absent, Compiled, Unit
from ktuned.declaration.declared_kernel import Kernel
from ktuned.declaration.loader import load_file
from ktuned.model.values import Outcome, Scalar
from ktuned_tvm_ffi import TvmFfi

DIRECTORY = Path(__file__).parents[2] / "examples" / "cpu_gemm"
WRONG_VARIANTS = ("BROKEN_BUILD", "DROPS_TAIL", "NULL_DEREF", "ENDLESS")

LARGE_TILES = {
    "wide": {"TILE_ROWS": 4, "TILE_COLUMNS": 24, "BLOCK_ROWS": 48, "BLOCK_DEPTH": 200, "THREADS": 1},
    "tall": {"TILE_ROWS": 6, "TILE_COLUMNS": 16, "BLOCK_ROWS": 192, "BLOCK_DEPTH": 96, "THREADS": 2},
}

ENDLESS_AFTER_S = 0.5
"""Hundreds of times what the product takes."""

# NumPy arrays, because importing torch, if tvm_ffi finds it, takes 2 s.
LAUNCH_PROGRAM = """
import sys
sys.modules["torch"] = None
import numpy, tvm_ffi
gemm, random = tvm_ffi.load_module(sys.argv[1]).gemm, numpy.random.default_rng(3)
for m, n, k in eval(sys.argv[2]):
    a, b = (random.random(shape, "float32") - 0.5 for shape in ((m, k), (k, n)))
    c = numpy.full((m, n), numpy.nan, "float32")
    print("launching", flush=True)
    gemm(*map(tvm_ffi.from_dlpack, (a, b, c)))
    print(numpy.allclose(c, a @ b, rtol=1e-4, atol=1e-4), flush=True)
"""


def load_kernel() -> Kernel:
    loaded = load_file(DIRECTORY / "tune_gemm.py", DIRECTORY)
    assert loaded.errors == ()
    (kernel,) = loaded.kernels
    return kernel


@pytest.fixture(scope="module")
def build_results(tmp_path_factory: pytest.TempPathFactory, compiler_cache: Path) -> dict[str, tuple[Compiled, Path]]:
    """Compilation results and libraries, by name, of the default, its wrong variants and two large tiles."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KTUNED_CACHE", str(compiler_cache))
        kernel, into, backend = load_kernel(), tmp_path_factory.mktemp("gemm"), TvmFfi()
        assert kernel.default is not None
        (problem,) = kernel.list_problems()
        configs: dict[str, Mapping[str, Scalar]] = {"default": kernel.default}
        configs |= {variant: {**kernel.default, "VARIANT": variant} for variant in WRONG_VARIANTS}
        configs |= {name: {**kernel.default, **knobs} for name, knobs in LARGE_TILES.items()}
        devices = backend.devices()
        assert not isinstance(devices, Absent)
        source = DIRECTORY / "gemm.cc"
        units = [
            Unit(name, kernel.build(problem, config), (source,), kernel.file, "gemm", devices[0].target)
            for name, config in configs.items()
        ]
        for unit in units:
            (into / unit.key).mkdir()
        return {result.key: (result, into / result.key / "kernel.so") for result in backend.compile(units, into)}


def launch_kernel(library: Path, shapes: str = "[(384, 384, 400)]") -> subprocess.Popen[str]:
    """Launch a kernel in a process group of its own; it prints `launching`, and then whether it agrees with NumPy."""
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH_PROGRAM, str(library), shapes],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_the_space_holds_each_wrong_config_once() -> None:
    """The space has 64 good configs, including the default, and one of each wrong variant."""
    kernel = load_kernel()
    (problem,) = kernel.list_problems()
    configs = list(kernel.bind_space(problem))
    variants = [config["VARIANT"] for config in configs]
    assert kernel.default in configs
    assert variants.count("BLOCKED") == 64
    assert sorted(set(variants) - {"BLOCKED"}) == sorted(WRONG_VARIANTS)
    assert len(configs) == 64 + len(WRONG_VARIANTS)


@pytest.mark.parametrize("name", ["default", *LARGE_TILES])
def test_good_configs_agree_with_numpy(name: str, build_results: dict[str, tuple[Compiled, Path]]) -> None:
    """They do so on the declared problem, and on sizes that no tile divides."""
    result, library = build_results[name]
    assert result.outcome is None, result.message
    output, _ = launch_kernel(library, "[(384, 384, 400), (1, 1, 1), (97, 101, 103), (5, 300, 401)]").communicate()
    assert output.split() == ["launching", "True"] * 4


def test_broken_build_does_not_compile(build_results: dict[str, tuple[Compiled, Path]]) -> None:
    """It violates the static_assert on the tile's width."""
    result, _ = build_results["BROKEN_BUILD"]
    assert result.outcome is Outcome.COMPILE_ERROR
    assert "TILE_COLUMNS must be a whole number of vectors" in result.message.splitlines()[0]


def test_drops_tail_computes_wrongly(build_results: dict[str, tuple[Compiled, Path]]) -> None:
    process = launch_kernel(build_results["DROPS_TAIL"][1])
    output, _ = process.communicate()
    assert (process.returncode, output.split()) == (0, ["launching", "False"])


def test_null_deref_dies_of_sigsegv(build_results: dict[str, tuple[Compiled, Path]]) -> None:
    """A compiler that sees the null pointer would make it SIGILL."""
    process = launch_kernel(build_results["NULL_DEREF"][1])
    output, _ = process.communicate()
    assert (process.returncode, output.split()) == (-signal.SIGSEGV, ["launching"])


def test_endless_never_returns_until_its_group_is_killed(build_results: dict[str, tuple[Compiled, Path]]) -> None:
    process = launch_kernel(build_results["ENDLESS"][1])
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "launching\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(ENDLESS_AFTER_S)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
