"""Kernels that no import finds: one of the script itself, a closure, and one that ``exec`` has made."""

import linecache
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.library_program import Workload, need_gpu, run_program

ROWS, COLUMNS = 4096, 4096

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (64, 256, 1024, 4096) for warps in (1, 4, 8)]

EXECUTED = """\
@triton.autotune(CONFIGS, key=["size"])
@triton.jit
def scale(x, y, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < size) * 2, mask=at < size)
"""


@triton.autotune(CONFIGS, key=["columns"])
@triton.jit
def add_rows(x, y, columns, BLOCK: tl.constexpr):
    """Sum each row."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + tl.program_id(0) * columns + at, mask=at < columns, other=0.0)
    tl.store(y + tl.program_id(0), tl.sum(total))


def make_closure() -> Any:
    """Return an autotuned function that calls another one, both defined here."""

    @triton.jit
    def square(value):
        return value * value

    @triton.autotune(CONFIGS, key=["size"])
    @triton.jit
    def apply(x, y, size, FUNCTION: tl.constexpr, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, FUNCTION(tl.load(x + at, mask=at < size)), mask=at < size)

    return lambda grid, x, y, size: apply[grid](x, y, size, FUNCTION=square)


def execute() -> Any:
    """Return the function that ``exec`` makes."""
    names = {"triton": triton, "tl": tl, "CONFIGS": CONFIGS}
    linecache.cache["<cell>"] = len(EXECUTED), None, EXECUTED.splitlines(keepends=True), "<cell>"
    exec(compile(EXECUTED, "<cell>", "exec"), names)
    return names["scale"]


def make_workload() -> Workload:
    """Return steps of the three functions."""
    torch.manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, device="cuda")
    sums, squares, doubles = torch.empty(ROWS, device="cuda"), torch.empty_like(x), torch.empty_like(x)
    square, scale = make_closure(), execute()

    def count_blocks(meta: dict[str, Any]) -> tuple[int]:
        return (triton.cdiv(x.numel(), meta["BLOCK"]),)

    def step() -> list[torch.Tensor]:
        add_rows[ROWS,](x, sums, COLUMNS)
        square(count_blocks, x, squares, x.numel())
        scale[count_blocks](x, doubles, x.numel())
        return [sums, squares, doubles]

    return Workload(step, lambda: [x.sum(1), x * x, x * 2])


if __name__ == "__main__":
    need_gpu()
    run_program(make_workload)
