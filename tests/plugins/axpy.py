"""The example that the tvm_ffi plugin shows the conformance suite: y += 3 x."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ktuned.testing.backends import BackendExample
from ktuned_tvm_ffi import Build

SOURCE = Path(__file__).with_name("axpy.cc")


def make_inputs(device: str) -> Mapping[str, Any]:
    """Return x = 0, 1, 2, … and y = 1."""
    import torch

    return {"x": torch.arange(1000.0, device=device), "y": torch.ones(1000, device=device)}


def verify_output(tensors: Mapping[str, Any]) -> None:
    import torch

    assert torch.equal(tensors["y"].cpu(), 1 + 3 * torch.arange(1000.0)), f"y is {tensors['y']}"


EXAMPLE = BackendExample(
    good=Build("axpy", ("x", "y", 3), {"TILE": 8}),
    bad=Build("axpy", ("x", "y", 3), {"BROKEN": True}),
    complaint="BROKEN is defined",
    sources=(SOURCE,),
    kernel_file=SOURCE,
    kernel="axpy",
    inputs=make_inputs,
    verify=verify_output,
)
