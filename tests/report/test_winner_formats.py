"""Winners for vLLM, which needs no ktuned: a JSON file for each shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ktuned.model import UsageError
from ktuned.protocol import ExportedWinner, WinnersDocument
from ktuned.report import render_vllm_files


def make_document(*winners: tuple[dict[str, Any], dict[str, Any]], kernel: str = "project:gemm") -> WinnersDocument:
    """Return a document of winners from problems and configs."""
    found = [
        ExportedWinner(problem, config, 10.0 + number, 0.0, "digest", "toolchain", "device", 1)
        for number, (problem, config) in enumerate(winners)
    ]
    return WinnersDocument(1, kernel, "NVIDIA H100 80GB HBM3", found, None, None, {}, {})


def test_vllm_has_a_file_for_each_shape_and_an_entry_for_each_size() -> None:
    """The sizes are the file's keys in order; the other problem keys are in its name."""
    rows = [({"E": 8, "M": m, "N": n}, {"BLOCK_SIZE_M": m, "num_warps": 4}) for m in (64, 1, 16) for n in (7168, 2048)]
    files = render_vllm_files(make_document(*rows), "M")
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
def test_files_have_the_names_that_vllm_requests(problem: dict[str, Any], name: str) -> None:
    """The order of the declared keys does not matter."""
    assert [*render_vllm_files(make_document((problem | {"M": 1}, {"B": 1})), "M")] == [
        name.format("NVIDIA_H100_80GB_HBM3")
    ]


@pytest.mark.parametrize("size", ["K", "dtype"])
def test_vllm_needs_an_integer_size(size: str) -> None:
    with pytest.raises(UsageError, match=f"has no size '{size}'"):
        render_vllm_files(make_document(({"M": 1, "dtype": "f16"}, {"B": 1})), size)


def test_a_file_name_cannot_lead_to_another_directory() -> None:
    (name,) = render_vllm_files(make_document(({"M": 1, "dtype": "../../x"}, {"B": 1})), "M")
    assert "/" not in name
