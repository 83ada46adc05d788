"""A program that is one file: its autotuned functions are of ``__main__``."""

import io
import math
from typing import Any

import triton
import triton.language as tl

from ktuned_triton import autotune

HALF = tl.constexpr(0.5)
ROOT: tl.constexpr = math.sqrt(2.0)
THROUGH = tl.float16
OPEN = io.BytesIO()
CONFIGS = [triton.Config({"BLOCK": 64}, num_warps=warps) for warps in (1, 2)]
values = {"a global of a name": "that a kernel uses for a local"}


def launch_metadata(grid: Any, kernel: Any, args: Any) -> dict[str, Any]:
    """Name a launch."""
    return {"name": f"{kernel.name} {math.prod(grid)}"}


@autotune(
    configs=CONFIGS,
    key=["size"],
)
@triton.heuristics({"EVEN": lambda args: args["size"] % args["BLOCK"] == 0})
@triton.jit(launch_metadata=launch_metadata)
def scaled(x, y, size, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    """Scale x into y."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + offsets, mask=offsets < size)
    tl.store(y + offsets, doubled(values.to(THROUGH)) * HALF, mask=offsets < size)


@triton.jit
def doubled(x):
    """Double x."""
    return x * 2


@autotune(configs=CONFIGS, key=[])
@triton.jit
def reads_a_file(x, BLOCK: tl.constexpr):
    """Read what no other process has."""
    tl.store(x, OPEN)


def fill(named: dict[str, Any]) -> None:
    """Begin with ones."""
    named["x"].fill_(1)


@autotune(configs=[triton.Config({"BLOCK": 64}, pre_hook=fill), *CONFIGS], key=[])
@triton.jit
def hooked(x, BLOCK: tl.constexpr):
    """Have a hook."""
    tl.store(x, BLOCK)
