"""A softmax over the rows of a matrix in Triton, with tuned blocks, warps and stages. GPU only."""

import torch
import triton
import triton.language as tl

from ktuned import kernel, space, tensor
from ktuned_torch import Build

PROGRAMS_PER_MULTIPROCESSOR = 8
"""Limit of programs; with more rows each computes several, and loads a row ahead meanwhile."""


@triton.jit
def softmax_kernel(x, y, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    """Read each row twice, block by block: for the maximum and the sum (rescaled as the maximum grows), then for y."""
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = tl.cast(row, tl.int64) * columns
        highest = tl.full((BLOCK,), -1e30, tl.float32)
        total = tl.zeros((BLOCK,), tl.float32)
        for first in tl.range(0, columns, BLOCK, num_stages=STAGES):
            offsets = first + tl.arange(0, BLOCK)
            values = tl.load(x + start + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
            # Finite, so that lanes beyond the row do not compute -inf + inf; float16 has no such number.
            values = tl.where(offsets < columns, values, -1e30)
            higher = tl.maximum(highest, values)
            total = total * tl.exp(highest - higher) + tl.exp(values - higher)
            highest = higher
        row_highest = tl.max(highest, axis=0)
        scale = 1.0 / tl.sum(total * tl.exp(highest - row_highest), axis=0)
        for first in tl.range(0, columns, BLOCK, num_stages=STAGES):
            offsets = first + tl.arange(0, BLOCK)
            values = tl.load(x + start + offsets, mask=offsets < columns, other=0.0).to(tl.float32)
            tl.store(y + start + offsets, tl.exp(values - row_highest) * scale, mask=offsets < columns)


def softmax(x, y, block, warps, stages):
    rows, columns = x.shape
    multiprocessors = torch.cuda.get_device_properties(x.device).multi_processor_count
    programs = min(rows, multiprocessors * PROGRAMS_PER_MULTIPROCESSOR)
    softmax_kernel[(programs,)](x, y, rows, columns, BLOCK=block, STAGES=stages, num_warps=warps, num_stages=stages)


@kernel(
    backend="torch",
    space=space(
        BLOCK=[512, 1024, 2048, 4096, 8192],
        WARPS=[1, 2, 4, 8, 16],
        STAGES=[1, 2, 3, 4],
        # At most 64 elements per thread; more would spill.
        where=lambda p, c: c.BLOCK <= 64 * 32 * c.WARPS,
    ),
    problems=[dict(ROWS=8192, COLUMNS=4096, DTYPE="float16")],
    inputs=lambda p: dict(
        x=tensor((p.ROWS, p.COLUMNS), p.DTYPE, fill="normal"),
        y=tensor((p.ROWS, p.COLUMNS), p.DTYPE, output=True),
    ),
    reference=lambda x, y: torch.softmax(x.float(), dim=-1),
    # The results are near 1/COLUMNS, and float16 has eleven significant bits.
    rtol=2e-3,
    atol=1e-6,
    default=dict(BLOCK=512, WARPS=1, STAGES=1),
)
def triton_softmax(p, c):
    return Build(function=softmax, args=("x", "y", c.BLOCK, c.WARPS, c.STAGES))
