"""The pages for users of other autotuners: their kernel files compile and run, and their imports exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import ktuned_triton
from ktuned.backends import Backend, Unit
from ktuned.declaration import Kernel, load_file
from ktuned.model import Config
from ktuned_command import Command
from ktuned_nvrtc import Nvrtc

ROOT = Path(__file__).parent.parent.parent
PAGE = "".join((ROOT / page).read_text() for page in ("docs/reference/coming-from.md", "plugins/optuna/README.md"))

SOURCES = {
    "vector_add.cu": """
extern "C" __global__ void vector_add(float *c, const float *a, const float *b, int n) {
  int first = (blockIdx.x * blockDim.x + threadIdx.x) * per_thread;
  for (int i = first; i < min(n, first + per_thread); ++i) c[i] = a[i] + b[i];
}
""",
    "sort.cc": """
#include <cstdlib>
int main(int count, char **argv) { return count == 3 && std::atoi(argv[1]) > UNROLL ? 0 : 1; }
""",
}


def load_kernel_of_page(directory: Path, name: str) -> Kernel:
    """Write a page's kernel file and its sources, and return the kernel."""
    for source, text in SOURCES.items():
        (directory / source).write_text(text)
    (code,) = [text for text in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
                if f"def {name}(" in text]  # fmt: skip
    path = directory / f"tune_{name}.py"
    path.write_text(code)
    loaded = load_file(path, directory)
    assert not loaded.errors, loaded.errors
    return loaded.kernels[0]


def compile_config(kernel: Kernel, backend: Backend, target: str, into: Path, config: Config) -> Any:
    """Compile a config of the declared problem and return its unit."""
    build = kernel.build(kernel.list_problems()[0], config)
    unit = Unit("unit", build, kernel.source_paths, kernel.file, kernel.name, target)
    (into / "unit").mkdir()
    (result,) = backend.compile([unit], into)
    assert result.outcome is None, result.message
    return unit


def test_a_script_of_kernel_tuner_becomes_a_kernel_file(tmp_path: Path) -> None:
    """Restrictions, grid and macros stay as they were, and the kernel compiles."""
    kernel = load_kernel_of_page(tmp_path, "vector_add")
    (problem,) = kernel.list_problems()
    configs = list(kernel.bind_space(problem))
    assert len(configs) == 4 * 3 - 1
    config = {"block_size_x": 128, "per_thread": 4}
    unit = compile_config(kernel, Nvrtc(), "sm_90a", tmp_path, config)
    assert unit.build.grid == (-(-10_000_000 // 512),)


def test_an_objective_of_optuna_becomes_a_kernel_file(tmp_path: Path) -> None:
    """A config's macro compiles the program, which runs with its arguments."""
    kernel = load_kernel_of_page(tmp_path, "sort")
    device = Command().devices()[0]  # type: ignore[index]
    unit = compile_config(kernel, Command(), device.target, tmp_path, {"chunk": 64, "unroll": 4})
    Command().load(tmp_path / "unit", unit, device).bind({})()


def test_triton_changes_one_import() -> None:
    """The drop-in takes each argument of Triton's decorator by name and by position."""
    autotuner = pytest.importorskip("triton.runtime.autotuner")
    triton_parameters = list(inspect.signature(autotuner.autotune).parameters)
    assert list(inspect.signature(ktuned_triton.autotune).parameters)[: len(triton_parameters)] == triton_parameters
    assert "from ktuned_triton import autotune" in PAGE


def test_every_strategy_that_the_pages_name_is_installed() -> None:
    from ktuned.search import installed_strategies

    our_column = "\n".join(row.rstrip("|").rpartition("|")[2] for row in PAGE.splitlines() if row.startswith("|"))
    strategies = re.findall(r'strategy="(\w+)"', our_column) + re.findall(r'"(optuna_\w+)"', our_column)
    assert set(strategies) - set(installed_strategies()) == set()
