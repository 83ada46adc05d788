"""Winners for programs without ktuned: vLLM's JSON by one size."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ktuned.model import UsageError
from ktuned.protocol import ExportedWinner, WinnersDocument
from ktuned.report import render_vllm_files


def document(*winners: tuple[dict[str, Any], dict[str, Any]], kernel: str = "project:gemm") -> WinnersDocument:
    """Return a document of winners: problems with their configs."""
    found = [
        ExportedWinner(problem, config, 10.0 + number, 0.0, "digest", "toolchain", "device", 1)
        for number, (problem, config) in enumerate(winners)
    ]
    return WinnersDocument(1, kernel, "NVIDIA H100 80GB HBM3", found, None, None, {}, {})


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


@pytest.mark.parametrize(
    ("problem", "name"),
    [
        ({"E": 8, "N": 14336}, "E=8,N=14336,device_name={}.json"),
        ({"N": 14336, "dtype": "fp8_w8a8", "E": 8}, "E=8,N=14336,device_name={},dtype=fp8_w8a8.json"),
        ({"E": 8, "N": 14336, "dtype": ""}, "E=8,N=14336,device_name={}.json"),
        (
            {"K": 512, "N": 4096, "dtype": "fp8_w8a8", "block_shape": "[128, 128]"},
            "N=4096,K=512,device_name={},dtype=fp8_w8a8,block_shape=[128,128].json",
        ),
    ],
)
def test_files_have_the_names_that_vllm_asks_for(problem: dict[str, Any], name: str) -> None:
    """Whatever order the kernel file declares the keys in."""
    assert [*render_vllm_files(document((problem | {"M": 1}, {"B": 1})), "M")] == [name.format("NVIDIA_H100_80GB_HBM3")]


@pytest.mark.parametrize("size", ["K", "dtype"])
def test_vllm_needs_a_size(size: str) -> None:
    """A key that the problem lacks, or that is no integer, is one clear error."""
    with pytest.raises(UsageError, match=f"has no size '{size}'"):
        render_vllm_files(document(({"M": 1, "dtype": "f16"}, {"B": 1})), size)


def test_a_file_name_leaves_the_directory_alone() -> None:
    """A string of the problem cannot lead to another directory."""
    (name,) = render_vllm_files(document(({"M": 1, "dtype": "../../x"}, {"B": 1})), "M")
    assert "/" not in name
