"""The example that the triton plugin shows the conformance suite: y = factor x, and what else its tests compile."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.language.extra import cuda

from ktuned.testing.backends import BackendExample
from ktuned_triton import Build

FILE = Path(__file__)
SIZE = 1 << 16
DTYPES = {"x": "float32", "y": "float32"}


@triton.jit
def doubled(value):
    """Return twice the value."""
    return value + value


@triton.jit
def scale(x, y, size, factor, BLOCK: tl.constexpr, FAULT: tl.constexpr = "", THROUGH: tl.constexpr = tl.float32):
    """Scale a block of x, by way of another dtype, or fail in a chosen way."""
    if FAULT == "assertion":
        tl.static_assert(BLOCK == 0, "FAULT is an assertion")
    if FAULT == "name":
        missing_name()  # type: ignore[name-defined]  # noqa: F821
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < size).to(THROUGH)
    tl.store(y + offsets, (values * factor).to(y.dtype.element_ty), mask=offsets < size)


@triton.jit
def sized(x, y, size, factor):
    """Scale as many elements of x as ``size`` says, if it says."""
    if size is None:
        tl.store(y, tl.load(x) * factor)
    else:
        for index in range(size):
            tl.store(y + index, tl.load(x + index) * factor)


@triton.jit
def scale_by(
    x,
    y,
    scales,
    SIZE: tl.constexpr,
    FUNCTION: tl.constexpr,
    WIDTHS: tl.constexpr = (1, 2),
    THROUGH: tl.constexpr = tl.float32,
):
    """Apply a function to x and scale it by the members of a tuple."""
    offsets = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    values = FUNCTION(tl.load(x + offsets)).to(THROUGH).to(tl.float32)
    tl.store(y + offsets, values * scales[0] * scales[1] * WIDTHS[1])


@triton.jit
def product(a, b, c, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """Multiply square matrices by blocks: what takes shared memory and registers."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for first in range(0, SIZE, 64):
        inner = first + tl.arange(0, 64)
        left = tl.load(a + rows[:, None] * SIZE + inner[None, :])
        right = tl.load(b + inner[:, None] * SIZE + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * SIZE + columns[None, :], total.to(tl.float16))


@triton.jit
def announced(y, TEXT: tl.constexpr):
    """Print when it is translated."""
    tl.static_print("translated")
    tl.store(y, 1.0)


@triton.jit
def warps(y):
    """Store how many warps there are."""
    tl.store(y, cuda.num_warps())


@triton.jit
def copy_by_descriptor(x, y, size, BLOCK: tl.constexpr):
    """Copy through descriptors that the kernel makes, in scratch memory."""
    source = tl.make_tensor_descriptor(x, shape=[size, BLOCK], strides=[BLOCK, 1], block_shape=[64, BLOCK])
    target = tl.make_tensor_descriptor(y, shape=[size, BLOCK], strides=[BLOCK, 1], block_shape=[64, BLOCK])
    row = tl.program_id(0) * 64
    target.store([row, 0], source.load([row, 0]))


def plain(x, y):
    """Be no ``@triton.jit`` function."""


def inputs(device: str) -> Mapping[str, Any]:
    """Return x = 0, 1, 2, … and y = 1."""
    import torch

    return {"x": torch.arange(float(SIZE), device=device), "y": torch.ones(SIZE, device=device)}


def verify(tensors: Mapping[str, Any]) -> None:
    """Check y."""
    import torch

    assert torch.equal(tensors["y"].cpu(), 3 * torch.arange(float(SIZE))), f"y is {tensors['y']}"


def build(function: Any = "scale", args: tuple[Any, ...] = ("x", "y", SIZE, 3.0), **constants: Any) -> Build:
    """Return a Build of one of the functions here."""
    if function == "scale":
        constants.setdefault("BLOCK", 1024)
    return Build(function, args, constants, grid=(SIZE // constants.get("BLOCK", SIZE),), dtypes=DTYPES)


EXAMPLE = BackendExample(
    good=build(),
    bad=build(FAULT="assertion"),
    complaint="FAULT is an assertion",
    sources=(),
    kernel_file=FILE,
    kernel="scale",
    inputs=inputs,
    verify=verify,
    target="sm_90a",
)
