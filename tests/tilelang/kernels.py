"""Kernels that TileLang's tests compile: y = factor x in TileLang's three styles, and a matrix product."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tilelang
import tilelang.language as T

from ktuned.testing import backends
from ktuned_tilelang import Build

FILE = Path(__file__)
SIZE = 1 << 16
LAYOUT = ((SIZE,), (1,))


@tilelang.jit
def scale(size, factor, block=1024, threads=128, dtype="float32", fault=""):
    """Return a program that scales a block of x, or fails in a chosen way."""
    if fault == "name":
        missing_name()  # type: ignore[name-defined]  # noqa: F821

    @T.prim_func
    def main(x: T.Tensor((size,), dtype), y: T.Tensor((size,), dtype)):
        with T.Kernel(T.ceildiv(size, block), threads=threads) as bx:
            for i in T.Parallel(block):
                y[bx * block + i] = x[bx * block + i] * factor

    return main


def make_program(size, factor, block=1024):
    """Return a program, undecorated."""

    @T.prim_func
    def main(x: T.Tensor((size,), "float32"), y: T.Tensor((size,), "float32")):
        with T.Kernel(T.ceildiv(size, block), threads=128) as bx:
            for i in T.Parallel(block):
                y[bx * block + i] = x[bx * block + i] * factor

    return main


@tilelang.jit(out_idx=[-1])
def scale_any(block=1024, dtype=T.float32):
    """Return a program for any size, whose call returns y."""
    size = T.dynamic("size")

    @T.prim_func
    def main(x: T.Tensor((size,), dtype), y: T.Tensor((size,), dtype)):
        with T.Kernel(T.ceildiv(size, block), threads=128) as bx:
            for i in T.Parallel(block):
                if bx * block + i < size:
                    y[bx * block + i] = x[bx * block + i] * 3.0

    return main


@tilelang.jit
def eager(x, y, block: int = 1024):
    """Scale by 3 in the eager style."""
    size = T.const("size")
    x: T.Tensor[[size], T.float32]
    y: T.Tensor[[size], T.float32]
    with T.Kernel(T.ceildiv(size, block), threads=128) as bx:
        for i in T.Parallel(block):
            y[bx * block + i] = x[bx * block + i] * 3.0


@tilelang.jit(out_idx=[-1], pass_configs={tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True})
def product(size, block=64, depth=32, stages=2, threads=128, policy=T.GemmWarpPolicy.Square):
    """Return a program that multiplies square matrices."""

    @T.prim_func
    def main(
        a: T.Tensor((size, size), "float16"),
        b: T.Tensor((size, size), "float16"),
        c: T.Tensor((size, size), "float16"),
    ):
        with T.Kernel(T.ceildiv(size, block), T.ceildiv(size, block), threads=threads) as (bx, by):
            left = T.alloc_shared((block, depth), "float16")
            right = T.alloc_shared((depth, block), "float16")
            total = T.alloc_fragment((block, block), "float32")
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(size, depth), num_stages=stages):
                T.copy(a[by * block, k * depth], left)
                T.copy(b[k * depth, bx * block], right)
                T.gemm(left, right, total, policy=policy)
            T.copy(total, c[by * block, bx * block])

    return main


def return_no_program(size):
    """Return no program."""
    return size


def make_inputs(device: str) -> Mapping[str, Any]:
    """Return x = 0, 1, 2, … and y = 1."""
    import torch

    return {"x": torch.arange(float(SIZE), device=device), "y": torch.ones(SIZE, device=device)}


def verify_output(tensors: Mapping[str, Any]) -> None:
    """Check y."""
    import torch

    assert torch.equal(tensors["y"].cpu(), 3 * torch.arange(float(SIZE))), f"y is {tensors['y']}"


def make_build(function: Any = "scale", execution_backend: str = "nvrtc", **arguments: Any) -> Build:
    """Return a Build of one of the functions here."""
    if function in ("scale", "make_program"):
        arguments = {"size": SIZE, "factor": 3.0, **arguments}
    layouts = dict.fromkeys(("x", "y"), ("float32", *LAYOUT))
    return Build(function, arguments, execution_backend=execution_backend, layouts=layouts)


EXAMPLE = backends.BackendExample(
    good=make_build(),
    bad=make_build(fault="name"),
    complaint="missing_name",
    sources=(),
    kernel_file=FILE,
    kernel="scale",
    inputs=make_inputs,
    verify=verify_output,
    target="sm_90a",
)
