"""The cutedsl plugin's example for the conformance suite, y = factor x, and further functions for its tests."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import cute
from cutlass.memory import SmemAllocator

from ktuned.model.errors import Unsupported
from ktuned.testing.backends import BackendExample
from ktuned_cutedsl import Build

FILE = Path(__file__)
SIZE = 1 << 16
LAYOUTS = dict.fromkeys(("x", "y"), ("float32", (SIZE,), (1,)))


@cute.kernel
def scale_kernel(
    x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32, VECTOR: cutlass.Constexpr, SHARED: cutlass.Constexpr
) -> None:
    """Scale one vector per thread; ``SHARED`` floats of shared memory carry the factor."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    threads, _, _ = cute.arch.block_dim()
    if cutlass.const_expr(SHARED > 0):
        shared = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout((SHARED,)), 16)
        if thread == 0:
            shared[0] = factor
        cute.arch.sync_threads()
        factor = shared[0]
    source = cute.zipped_divide(x, (VECTOR,))
    target = cute.zipped_divide(y, (VECTOR,))
    index = block * threads + thread
    if index < cute.size(source, mode=[1]):
        target[None, index].store(source[None, index].load() * factor)


@cute.jit
def scale(
    x: cute.Tensor,
    y: cute.Tensor,
    factor: cutlass.Float32,
    stream: CUstream,
    THREADS: cutlass.Constexpr = 128,
    VECTOR: cutlass.Constexpr = 4,
    SHARED: cutlass.Constexpr = 0,
    CLUSTER: cutlass.Constexpr = 1,
    FAULT: cutlass.Constexpr = "",
) -> None:
    """Launch the kernel over all of x, or fail in a chosen way."""
    assert FAULT != "broken", "FAULT is broken"
    if cutlass.const_expr(FAULT == "unsupported"):
        raise Unsupported("this config is for another GPU")
    if cutlass.const_expr(FAULT == "name"):
        missing_name()  # type: ignore[name-defined]  # noqa: F821
    scale_kernel(x, y, factor, VECTOR, SHARED).launch(
        grid=(cute.ceil_div(cute.size(x), THREADS * VECTOR), 1, 1),
        block=(THREADS, 1, 1),
        cluster=(CLUSTER, 1, 1),
        stream=stream,
    )


@cute.jit
def without_stream(x: cute.Tensor, y: cute.Tensor) -> None:
    """Launch on the legacy default stream."""
    scale_kernel(x, y, 1.0, 1, 0).launch(grid=(SIZE // 128, 1, 1), block=(128, 1, 1))


class Scale:
    """The same kernel as an object, as CUTLASS writes its own kernels."""

    def __init__(self, threads: int, tile: tuple[int, ...]) -> None:
        self.threads = threads
        (self.vector,) = tile

    @cute.jit
    def __call__(self, x: cute.Tensor, y: cute.Tensor, factor: cutlass.Float32, stream: CUstream) -> None:
        """Launch the kernel over all of x."""
        scale_kernel(x, y, factor, self.vector, 0).launch(
            grid=(cute.ceil_div(cute.size(x), self.threads * self.vector), 1, 1),
            block=(self.threads, 1, 1),
            stream=stream,
        )


def undecorated(x: cute.Tensor, stream: CUstream) -> None:
    """Do nothing: a function without ``@cute.jit``."""


def make_inputs(device: str) -> Mapping[str, Any]:
    """Return x = 0, 1, 2, … and y = 1."""
    import torch

    return {"x": torch.arange(float(SIZE), device=device), "y": torch.ones(SIZE, device=device)}


def verify_output(tensors: Mapping[str, Any]) -> None:
    import torch

    assert torch.equal(tensors["y"].cpu(), 3 * torch.arange(float(SIZE))), f"y is {tensors['y']}"


def make_build(function: str = "scale", args: tuple[Any, ...] = ("x", "y", 3.0), **constants: Any) -> Build:
    """Return a Build of one of the functions here."""
    return Build(function, args, constants, layouts=LAYOUTS)


EXAMPLE = BackendExample(
    good=make_build(THREADS=256),
    bad=make_build(FAULT="broken"),
    complaint="AssertionError: FAULT is broken",
    sources=(),
    kernel_file=FILE,
    kernel="scale",
    inputs=make_inputs,
    verify=verify_output,
    target="sm_90a",
)
