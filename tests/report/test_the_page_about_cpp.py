"""The programs of ``docs/reference/from-cpp.md``: they read an export, ask a daemon, run a winner."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ktuned.backends import Unit, cpu
from ktuned_tvm_ffi import Build, TvmFfi
from tests.e2e.harness import Daemon, make_kernel_text

ROOT = Path(__file__).resolve().parents[2]


pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: apt install g++")


def read_blocks(document: str, language: str = "") -> list[str]:
    """Return a document's code blocks in a language."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    return [block for name, block in blocks if name == language]


def test_the_page_s_programs_find_a_winner(tmp_path: Path) -> None:
    """The programs compile without a warning, find a winner, and report failures."""
    strict = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    for name in ("winners", "lookup"):
        program = ROOT / f"examples/from_cpp/{name}.cc"
        subprocess.run(["g++", *strict, str(program), "-o", name], cwd=tmp_path, check=True, timeout=60)

    def run_program(*words: str) -> tuple[int, str]:
        ran = subprocess.run([f"./{words[0]}", *words[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=10)
        return ran.returncode, ran.stdout + ran.stderr

    with Daemon(tmp_path) as daemon:
        text = make_kernel_text("space([dict(us=50.0, tag='a'), dict(us=90.0, tag='b')])")
        daemon.tune(path=daemon.write_kernel(text))
        assert daemon.run_ktuned("export", str(tmp_path / "exported"), "--kernel", "it").returncode == 0
        (file,) = (tmp_path / "exported").glob("*.json")
        code, output = run_program("winners", str(file), "n=64")
        assert (code, output.startswith("tag=a us=50.0 in ")) == (0, True), output
        assert run_program("winners", str(file), "n=65") == (1, "")
        code, output = run_program("winners", str(tmp_path / "gone.json"), "n=64")
        assert (code != 0, "iostream error" in output) == (True, True)
        assert run_program("lookup", str(daemon.socket), "it", "n=64") == (0, "fresh: us=50.000000 tag=a\n")
        assert run_program("lookup", str(daemon.socket), "nothing", "n=64") == (0, "unknown:\n")
        code, output = run_program("lookup", str(daemon.socket), "it", "wrong=1")
        assert (code, "wrong" in output) == (1, True), output
    code, output = run_program("lookup", str(daemon.socket), "it", "n=64")
    assert (code, str(daemon.socket) in output) == (1, True), output


def test_the_page_s_program_runs_a_compiled_winner(tmp_path: Path) -> None:
    """The page's command compiles the program, which loads the artifact of the guide's kernel."""
    (source,) = read_blocks("docs/guide/first-kernel.md", "cpp")
    shutil.copy(ROOT / "examples/from_cpp/run_dot.cc", tmp_path)
    (tmp_path / "dot.cc").write_text(source)
    backend = TvmFfi()
    build = Build(function="dot", args=("x", "y", "out"), defines={"LANES": 8})
    unit = Unit("KEY", build, (tmp_path / "dot.cc",), tmp_path / "tune_dot.py", "dot", cpu.device().target)
    artifact = tmp_path / "winners/artifacts/KEY"
    artifact.mkdir(parents=True)
    (result,) = backend.compile([unit], artifact.parent)
    assert not result.message
    commands = next(block for block in read_blocks("docs/reference/from-cpp.md") if "g++" in block)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "-e", "-c", commands],
        cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert ran.stdout == "65536\n"
