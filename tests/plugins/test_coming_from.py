"""The page for those who come from another autotuner: its kernel files compile and run, its imports are there."""

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

PAGE = (Path(__file__).parent.parent.parent / "docs/coming-from.md").read_text()

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


def declared(directory: Path, name: str) -> Kernel:
    """Return the kernel that the page declares in a file, beside the sources that it names."""
    for source, text in SOURCES.items():
        (directory / source).write_text(text)
    (block,) = [text for text in re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
                if f"def {name}(" in text]  # fmt: skip
    path = directory / f"tune_{name}.py"
    path.write_text(block)
    loaded = load_file(path, directory)
    assert not loaded.errors, loaded.errors
    return loaded.kernels[0]


def compiled(kernel: Kernel, backend: Backend, target: str, into: Path, config: Config) -> Any:
    """Compile a config of the declared problem."""
    build = kernel.build(kernel.list_problems()[0], config)
    unit = Unit("unit", build, kernel.source_paths, kernel.file, kernel.name, target)
    (into / "unit").mkdir()
    (result,) = backend.compile([unit], into)
    assert result.outcome is None, result.message
    return unit


def test_a_script_of_kernel_tuner_becomes_a_kernel_file(tmp_path: Path) -> None:
    """Restrictions, grid and macros are as before, and the kernel compiles."""
    kernel = declared(tmp_path, "vector_add")
    (problem,) = kernel.list_problems()
    configs = list(kernel.bind_space(problem))
    assert len(configs) == 4 * 3 - 1
    config = {"block_size_x": 128, "per_thread": 4}
    unit = compiled(kernel, Nvrtc(), "sm_90a", tmp_path, config)
    assert unit.build.grid == (-(-10_000_000 // 512),)


def test_an_objective_of_optuna_becomes_a_kernel_file(tmp_path: Path) -> None:
    """The program is compiled by a config's macro, and runs with its arguments."""
    kernel = declared(tmp_path, "sort")
    device = Command().devices()[0]  # type: ignore[index]
    unit = compiled(kernel, Command(), device.target, tmp_path, {"chunk": 64, "unroll": 4})
    Command().load(tmp_path / "unit", unit, device).bind({})()


def test_triton_changes_one_import() -> None:
    """The drop-in takes each argument of Triton's decorator, under its name and in its place."""
    autotuner = pytest.importorskip("triton.runtime.autotuner")
    theirs = list(inspect.signature(autotuner.autotune).parameters)
    assert list(inspect.signature(ktuned_triton.autotune).parameters)[: len(theirs)] == theirs
    assert "from ktuned_triton import autotune" in PAGE


def test_nothing_of_the_page_is_unknown_to_the_samplers() -> None:
    """Each strategy that it names is installed."""
    from ktuned.search import installed_strategies

    ours = "\n".join(row.rstrip("|").rpartition("|")[2] for row in PAGE.splitlines() if row.startswith("|"))
    named = re.findall(r'strategy="(\w+)"', ours) + re.findall(r'"(optuna_\w+)"', ours)
    assert set(named) - set(installed_strategies()) == set()
