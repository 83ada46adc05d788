"""The program of ``docs/from-cpp.md``, word for word, with a header that ``ktuned export --format c`` writes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ktuned.protocol import ExportedWinner, WinnersDocument
from ktuned.report import c_file

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler: apt install g++")
def test_the_page_s_program_finds_the_nearest_winner(tmp_path: Path) -> None:
    """It compiles without a warning, and prints the config of the nearest size."""
    (program,) = re.findall(r"^```cpp\n(.*?)^```$", (ROOT / "docs/from-cpp.md").read_text(), re.DOTALL | re.MULTILINE)
    rows = [ExportedWinner({"M": m}, {"BM": m // 16}, m / 10, 0.0, "", "", "", 1) for m in (64, 1024, 4096)]
    name, header = c_file(WinnersDocument(1, "project:gemm", "demo", rows))
    assert f'#include "{name}"' in program
    (tmp_path / name).write_text(header)
    (tmp_path / "main.cc").write_text(program)
    strict = ["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run(["g++", *strict, "main.cc", "-lm", "-o", "main"], cwd=tmp_path, check=True, timeout=60)
    ran = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True, timeout=10)
    assert ran.stdout == "BM=256, measured in 409.6 us for M=4096\n"
