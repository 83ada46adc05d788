"""The example that the tvm_ffi_cuda backend shows the conformance suite: y = x + 3."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ktuned.testing.backends import BackendExample
from ktuned_tvm_ffi import Build

SOURCE = Path(__file__).with_name("shift.cu")


def make_inputs(device: str) -> Mapping[str, Any]:
    """Return x = 0, 1, 2, … and y = 0."""
    import torch

    return {"x": torch.arange(1000.0, device=device), "y": torch.zeros(1000, device=device)}


def verify_output(tensors: Mapping[str, Any]) -> None:
    import torch

    assert torch.equal(tensors["y"].cpu(), torch.arange(1000.0) + 3), f"y is {tensors['y']}"


EXAMPLE = BackendExample(
    good=Build("shift", ("x", "y", 128), {"SHIFT_BY": 3}),
    bad=Build("shift", ("x", "y", 128), {"SHIFT_BY": 300}),
    complaint="BY is too large",
    sources=(SOURCE,),
    kernel_file=SOURCE,
    kernel="shift",
    inputs=make_inputs,
    verify=verify_output,
    target="sm_90a",
)
