"""Winners for programs without ktuned: vLLM's JSON by one size, and a header that C and C++ compilers take."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ktuned.model import UsageError
from ktuned.protocol import ExportedWinner, WinnersDocument
from ktuned.report import render_c_file, render_vllm_files


def document(*winners: tuple[dict[str, Any], dict[str, Any]], kernel: str = "project:gemm") -> WinnersDocument:
    """Return a document of winners: problems with their configs."""
    found = [
        ExportedWinner(problem, config, 10.0 + number, 0.0, "digest", "toolchain", "device", 1)
        for number, (problem, config) in enumerate(winners)
    ]
    return WinnersDocument(1, kernel, "NVIDIA H100 80GB HBM3", found)


def test_vllm_has_a_file_for_each_shape_and_an_entry_for_each_size() -> None:
    """The other keys name the file, sizes are its keys in order."""
    rows = [({"E": 8, "M": m, "N": n}, {"BLOCK_SIZE_M": m, "num_warps": 4}) for m in (64, 1, 16) for n in (7168, 2048)]
    files = render_vllm_files(document(*rows), "M")
    assert sorted(files) == [
        "E=8,N=2048,device_name=NVIDIA_H100_80GB_HBM3.json",
        "E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json",
    ]
    found = json.loads(files["E=8,N=7168,device_name=NVIDIA_H100_80GB_HBM3.json"])
    assert list(found) == ["1", "16", "64"]
    assert found["16"] == {"BLOCK_SIZE_M": 16, "num_warps": 4}


@pytest.mark.parametrize("size", ["K", "dtype"])
def test_vllm_needs_a_size(size: str) -> None:
    """A key that the problem lacks, or that is no integer, is one clear error."""
    with pytest.raises(UsageError, match=f"has no size '{size}'"):
        render_vllm_files(document(({"M": 1, "dtype": "f16"}, {"B": 1})), size)


def test_a_file_name_leaves_the_directory_alone() -> None:
    """A string of the problem cannot lead to another directory."""
    (name,) = render_vllm_files(document(({"M": 1, "dtype": "../../x"}, {"B": 1})), "M")
    assert "/" not in name


PROGRAM = """
#include "%s"
#include <inttypes.h>
#include <stdio.h>

int main(void) {
  const int64_t sizes[] = {1, 100, 1000, 3000, 100000};
  for (size_t i = 0; i < 5; ++i) {
    ktuned_gemm_problem problem;
    memset(&problem, 0, sizeof problem);
    problem.M = sizes[i];
    problem.k_int = 2.0;
    problem.dtype = "f16";
    problem.is_causal = true;
    printf("%%" PRId64 "\\n", ktuned_gemm_nearest(&problem)->config.BM);
  }
  return strcmp(ktuned_gemm_winners[0].config.text, "a\\"\\\\?\\n\\303\\251") != 0;
}
"""

COMPILERS = [("gcc", "-std=c99", "main.c"), ("g++", "-std=c++11", "main.cc")]


@pytest.mark.parametrize(("compiler", "standard", "source"), COMPILERS)
def test_the_header_finds_the_nearest_problem(tmp_path: Path, compiler: str, standard: str, source: str) -> None:
    """C and C++ compilers take it without a warning, and a lookup gives the config of the nearest size."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}: apt install gcc g++")
    rows = [
        (
            {"M": m, "int": 2.5 if m > 64 else 2, "dtype": "f16", "is causal": True},
            {"BM": m, "FAST": False, "text": 'a"\\?\né', "class": 1.5},
        )
        for m in (64, 1024, 4096)
    ]
    name, text = render_c_file(document(*rows))
    assert name == "ktuned_gemm_nvidia_h100_80gb_hbm3.h"
    (tmp_path / name).write_text(text)
    (tmp_path / source).write_text(PROGRAM % name)
    strict = [standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    subprocess.run([compiler, *strict, source, "-lm", "-o", "main"], cwd=tmp_path, check=True, timeout=60)
    ran = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True, timeout=10)
    assert ran.stdout.split() == ["64", "64", "1024", "4096", "4096"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([({"M": 1}, {"B": 1}), ({"M": "one"}, {"B": 1})], "M is a int here and a str there"),
        ([({"M": 1}, {"B": 2**63})], "does not fit 64 bits"),
        ([({"M": 1}, {"B_": 1, "B": 1})], "are one name in C"),
    ],
)
def test_what_c_cannot_hold_is_refused(rows: Any, words: str) -> None:
    """Values of several types, too large ones and names that C does not report apart are one clear error."""
    with pytest.raises(UsageError, match=words):
        render_c_file(document(*rows))


def test_a_hostile_name_stays_a_comment() -> None:
    """A kernel's name cannot end the comment that it stands in."""
    _, text = render_c_file(document(({"M": 1}, {"B": 1}), kernel="p:x*/\n#error no"))
    assert text.splitlines()[0] == "/* Winners of p:x* / #error no on NVIDIA H100 80GB HBM3, by ktuned. */"
