"""The example that the nvrtc plugin shows the conformance suite: y = 3 x."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ktuned.testing.backends import BackendExample
from ktuned_nvrtc import Build

SOURCE = Path(__file__).with_name("scale.cu")
ARGS = ("x", "y", 3.0, 1000)
GRID = (2,)
BLOCK = (256,)


def make_inputs(device: str) -> Mapping[str, Any]:
    """Return x = 0, 1, 2, … and y = 0."""
    import torch

    return {"x": torch.arange(1000.0, device=device), "y": torch.zeros(1000, device=device)}


def verify_output(tensors: Mapping[str, Any]) -> None:
    import torch

    assert torch.equal(tensors["y"].cpu(), 3 * torch.arange(1000.0)), f"y is {tensors['y']}"


EXAMPLE = BackendExample(
    good=Build("scale<float, 2>", ARGS, GRID, BLOCK),
    bad=Build("scale<float, 2>", ARGS, GRID, BLOCK, defines={"BROKEN": True}),
    complaint="BROKEN is defined",
    sources=(SOURCE,),
    kernel_file=SOURCE,
    kernel="scale",
    inputs=make_inputs,
    verify=verify_output,
    target="sm_90a",
)
