"""The torch plugin's examples for the conformance suite: y = 3 x, eager and through torch.compile."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from ktuned.backends import Compiled, Unit
from ktuned.testing.backends import BackendExample
from ktuned_torch import Build, Torch

FILE = Path(__file__)
LAYOUTS = dict.fromkeys(("x", "y"), ("float32", (1000,), (1,)))


def scale(x: torch.Tensor, y: torch.Tensor, factor: float) -> None:
    """Write ``factor * x`` into ``y``."""
    y.copy_(factor * x)


def return_result(x: torch.Tensor) -> torch.Tensor:
    """Return a result that nobody takes."""
    return 2 * x


def add_in_place(x: torch.Tensor) -> torch.Tensor:
    """Add 1 to ``x`` and return it, as torch's own in-place functions do."""
    return x.add_(1)


def record_whether_compiled(x: torch.Tensor) -> None:
    """Write 1 into ``x`` if torch.compile runs this function, otherwise 0."""
    x.fill_(1 if torch.compiler.is_compiling() else 0)


def run_cudnn_attention(x: torch.Tensor) -> None:
    """Run an attention that no CPU has."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        x.copy_(torch.nn.functional.scaled_dot_product_attention(x, x, x))


def make_inputs(device: str) -> Mapping[str, Any]:
    """Return x = 0, 1, 2, … and y = 1."""
    return {"x": torch.arange(1000.0, device=device), "y": torch.ones(1000, device=device)}


def verify_output(tensors: Mapping[str, Any]) -> None:
    assert torch.equal(tensors["y"].cpu(), 3 * torch.arange(1000.0)), f"y is {tensors['y']}"


def verify_kept(tensors: Mapping[str, Any]) -> None:
    """Check y, and that Inductor loaded the code for a CPU instead of compiling it."""
    from torch._dynamo.utils import counters

    verify_output(tensors)
    cache_counters = counters["inductor"]
    is_kept = (cache_counters["fxgraph_cache_hit"], cache_counters["fxgraph_cache_miss"]) == (1, 0)
    assert is_kept or tensors["y"].is_cuda, f"Inductor's cache: {dict(cache_counters)}"


class OnOneCore(Torch):
    """The backend in a daemon's compile workers, which leave the other cores to the lanes."""

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(cores)})
        try:
            yield from super().compile(units, into)
        finally:
            os.sched_setaffinity(0, cores)


EAGER = BackendExample(
    good=Build("scale", ("x", "y", 3)),
    bad=Build("missing", ("x", "y", 3)),
    complaint="there is no function 'missing'",
    sources=(),
    kernel_file=FILE,
    kernel="scale",
    inputs=make_inputs,
    verify=verify_output,
    # An artifact holds its key, so that equal artifacts are equal functions.
    is_deterministic=False,
)

COMPILED = replace(
    EAGER,
    good=Build("scale", ("x", "y", 3), {"options": {"max_autotune": False}}, LAYOUTS),
    bad=Build("scale", ("x", "y", 3), {"options": {"no_such_option": True}}, LAYOUTS),
    complaint="no_such_option",
    verify=verify_kept,
)
