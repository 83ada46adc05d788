"""A kernel whose configs are bad in ways of their own."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def bad_kernel(x, y, size, MODE: tl.constexpr, BLOCK: tl.constexpr):
    """Scale x into y, or do what MODE says."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < size
    values = tl.load(x + offsets, mask=mask)
    if MODE == "endless":
        # The inputs are all below 2, so that this never ends.
        count = tl.sum(values * 0.0)
        while count < 1.0:
            count = tl.minimum(tl.load(y) * 0.0, 0.0)
        tl.store(y + offsets, values + count, mask=mask)
    elif MODE == "illegal":
        tl.store(y + offsets.to(tl.int64) + (1 << 44), values)
    elif MODE == "wrong":
        tl.store(y + offsets, values * 3.0, mask=mask)
    elif MODE == "shared":
        rows, inner = tl.arange(0, 64), tl.arange(0, 1024)
        left = tl.load(x + rows[:, None] * 1024 + inner[None, :])
        right = tl.load(x + inner[:, None] * 64 + rows[None, :])
        tl.store(y + rows[:, None] * 64 + rows[None, :], tl.dot(left.to(tl.float16), right.to(tl.float16)))
    elif MODE == "syntax":
        tl.store(y + offsets, no_such_function(values), mask=mask)  # type: ignore[name-defined]  # noqa: F821
    else:
        tl.store(y + offsets, values * 2.0, mask=mask)
