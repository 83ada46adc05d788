"""Three autotuned Triton functions, as a library has them: the keys of the program in ``beside.py``."""

from typing import Any

import triton
import triton.language as tl


@triton.autotune(
    [triton.Config({"BLOCK": block}, num_warps=warps) for block in (256, 512, 1024, 2048) for warps in (1, 2, 4, 8)],
    key=["size"],
)
@triton.jit
def gate(x, y, out, count, size, BLOCK: tl.constexpr):
    """Multiply ``x`` by the SiLU of ``y``."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < count
    value = tl.load(y + place, mask).to(tl.float32)
    tl.store(out + place, tl.load(x + place, mask) * (value * tl.sigmoid(value)).to(tl.float16), mask)


def gate_grid(meta: dict[str, Any]) -> tuple[int]:
    """Return the grid of ``gate``."""
    return (triton.cdiv(meta["count"], meta["BLOCK"]),)


@triton.autotune(
    [triton.Config({"ROWS": rows}, num_warps=warps) for rows in (1, 2, 4, 8) for warps in (1, 2, 4, 8)],
    key=["size"],
)
@triton.jit
def normalise(x, out, rows, size, ROWS: tl.constexpr):
    """Divide each row by its root mean square."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, 1024)[None, :]
    mask = (row < rows) & (column < size)
    value = tl.load(x + row * size + column, mask, 0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 1, keep_dims=True) / size + 1e-5)
    tl.store(out + row * size + column, (value * scale).to(tl.float16), mask)


def normalise_grid(meta: dict[str, Any]) -> tuple[int]:
    """Return the grid of ``normalise``."""
    return (triton.cdiv(meta["rows"], meta["ROWS"]),)


@triton.autotune(
    [
        triton.Config({"M": m, "N": n, "K": k}, num_warps=warps, num_stages=stages)
        for m, n in ((64, 64), (64, 128), (128, 64), (128, 128))
        for k in (32, 64)
        for warps in (4, 8)
        for stages in (2, 4)
    ],
    key=["columns", "depth"],
)
@triton.jit
def product(a, b, out, rows, columns, depth, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Multiply two matrices."""
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.program_id(1) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, depth, K):
        left = tl.load(a + row[:, None] * depth + (first + inner)[None, :])
        right = tl.load(b + (first + inner)[:, None] * columns + column[None, :])
        total = tl.dot(left, right, total)
    tl.store(out + row[:, None] * columns + column[None, :], total.to(tl.float16))


def product_grid(meta: dict[str, Any]) -> tuple[int, int]:
    """Return the grid of ``product``."""
    return triton.cdiv(meta["rows"], meta["M"]), triton.cdiv(meta["columns"], meta["N"])
