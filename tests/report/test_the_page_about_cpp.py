"""The programs of ``docs/from-cpp.md``, word for word: with an exported header, and with a compiled winner."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.backends import Unit, cpu
from ktuned.protocol import ExportedWinner, WinnersDocument
from ktuned.report import render_c_file
from ktuned_tvm_ffi import Build, TvmFfi

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: apt install g++")


def read_blocks(document: str, language: str = "") -> list[str]:
    """Return a document's blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def test_the_page_s_program_finds_the_nearest_winner(tmp_path: Path) -> None:
    """It compiles without a warning, and prints the config of the nearest size."""
    program, _ = read_blocks("docs/from-cpp.md", "cpp")
    rows = [ExportedWinner({"M": m}, {"BM": m // 16}, m / 10, 0.0, "", "", "", 1) for m in (64, 1024, 4096)]
    name, header = render_c_file(WinnersDocument(1, "project:gemm", "demo", rows))
    assert f'#include "{name}"' in program
    (tmp_path / name).write_text(header)
    (tmp_path / "main.cc").write_text(program)
    strict = ["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run(["g++", *strict, "main.cc", "-lm", "-o", "main"], cwd=tmp_path, check=True, timeout=60)
    ran = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True, timeout=10)
    assert ran.stdout == "BM=256, measured in 409.6 us for M=4096\n"


def test_the_page_s_program_runs_a_compiled_winner(tmp_path: Path) -> None:
    """By the page's own command: it loads the artifact that the backend makes of the README's kernel."""
    _, program = read_blocks("docs/from-cpp.md", "cpp")
    (source,) = read_blocks("README.md", "cpp")
    (tmp_path / "main.cc").write_text(program)
    (tmp_path / "dot.cc").write_text(source)
    backend = TvmFfi()
    build = Build(function="dot", args=("x", "y", "out"), defines={"LANES": 8})
    unit = Unit("KEY", build, (tmp_path / "dot.cc",), tmp_path / "tune_dot.py", "dot", cpu.device().target)
    artifact = tmp_path / "winners/artifacts/KEY"
    artifact.mkdir(parents=True)
    (result,) = backend.compile([unit], artifact.parent)
    assert not result.message
    commands = next(block for block in read_blocks("docs/from-cpp.md") if "g++" in block)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "-e", "-c", commands],
        cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert ran.stdout == "65536\n"
