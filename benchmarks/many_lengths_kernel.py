"""The autotuned function of ``many_lengths.py``."""

import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": block}, num_warps=warps)
        for block in (256, 1024, 4096, 16384)
        for warps in (1, 4, 8, 16)
    ],
    key=["length"],
)
@triton.jit
def normalize_rows(x, y, length, BLOCK: tl.constexpr):
    """Divide each row of ``x`` by its sum."""
    start = tl.program_id(0).to(tl.int64) * length
    columns = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, length, BLOCK):
        total += tl.load(x + start + first + columns, mask=first + columns < length, other=0.0)
    scale = 1.0 / tl.sum(total)
    for first in range(0, length, BLOCK):
        is_inside = first + columns < length
        value = tl.load(x + start + first + columns, mask=is_inside, other=0.0)
        tl.store(y + start + first + columns, value * scale, mask=is_inside)
