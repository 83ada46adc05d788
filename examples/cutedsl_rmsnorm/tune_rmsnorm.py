"""RMS normalisation of a matrix's rows in CuTe DSL, with tuned threads and vectors. GPU only."""

import cutlass
from cuda.bindings.driver import CUstream
from cutlass import cute
from cutlass.memory import SmemAllocator

from ktuned import kernel, space, tensor
from ktuned_cutedsl import Build

EPSILON = 1e-5
WARP = 32

MAX_VECTORS = 16
"""Limit of a row's vectors per thread: each is unrolled, once for each row of the block."""


@cute.kernel
def rmsnorm_kernel(
    x: cute.Tensor,
    weight: cute.Tensor,
    y: cute.Tensor,
    epsilon: cutlass.Float32,
    THREADS: cutlass.Constexpr,
    VECTOR: cutlass.Constexpr,
    ROWS: cutlass.Constexpr,
    KEEP: cutlass.Constexpr,
):
    """Normalise ROWS rows, one after the other: each is summed by all threads of the block, then scaled."""
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    columns = cute.size(x, mode=[1])
    steps = columns // (THREADS * VECTOR)
    warps = THREADS // WARP
    # Each row has its own sums, so a warp may start a row while another still reads those of the last one.
    sums = SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout((ROWS, warps), stride=(warps, 1)), 16)
    weights = cute.zipped_divide(weight, (VECTOR,))
    for row in cutlass.range_constexpr(ROWS):
        source = cute.zipped_divide(x[block * ROWS + row, None], (VECTOR,))
        target = cute.zipped_divide(y[block * ROWS + row, None], (VECTOR,))
        total = cutlass.Float32(0.0)
        kept = []
        for step in cutlass.range_constexpr(steps):
            values = source[None, step * THREADS + thread].load()
            if cutlass.const_expr(KEEP):
                kept.append(values)
            wide = values.to(cutlass.Float32)
            total += (wide * wide).reduce(cute.ReductionOp.ADD, 0.0, 0)
        total = cute.arch.warp_reduction_sum(total)
        if thread % WARP == 0:
            sums[row, thread // WARP] = total
        cute.arch.sync_threads()
        total = cutlass.Float32(0.0)
        for warp in cutlass.range_constexpr(warps):
            total += sums[row, warp]
        scale = cute.math.rsqrt(total / columns + epsilon)
        for step in cutlass.range_constexpr(steps):
            index = step * THREADS + thread
            values = kept[step] if cutlass.const_expr(KEEP) else source[None, index].load()
            scaled = values.to(cutlass.Float32) * scale * weights[None, index].load().to(cutlass.Float32)
            target[None, index].store(scaled.to(y.element_type))


@cute.jit
def rmsnorm_rows(
    x: cute.Tensor,
    weight: cute.Tensor,
    y: cute.Tensor,
    epsilon: cutlass.Float32,
    stream: CUstream,
    THREADS: cutlass.Constexpr,
    VECTOR: cutlass.Constexpr,
    ROWS: cutlass.Constexpr,
    KEEP: cutlass.Constexpr,
):
    """Launch one block for each ROWS rows."""
    rmsnorm_kernel(x, weight, y, epsilon, THREADS, VECTOR, ROWS, KEEP).launch(
        grid=(cute.size(x, mode=[0]) // ROWS, 1, 1), block=(THREADS, 1, 1), stream=stream
    )


def reference(x, weight):
    """Compute in float32."""
    wide = x.float()
    return wide * (wide.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt() * weight.float()


def cuts_evenly(p, c):
    """Keep the configs in which every thread and block has a full share."""
    return p.COLUMNS % (c.THREADS * c.VECTOR) == 0 and p.ROWS % c.ROWS == 0


@kernel(
    backend="cutedsl",
    space=space(
        THREADS=[64, 128, 256, 512, 1024],
        VECTOR=[1, 2, 4, 8],
        ROWS=[1, 2, 4],
        KEEP=[False, True],
        where=[cuts_evenly, lambda p, c: p.COLUMNS // (c.THREADS * c.VECTOR) <= MAX_VECTORS],
    ),
    problems=[dict(ROWS=8192, COLUMNS=4096, DTYPE="float16")],
    inputs=lambda p: dict(
        x=tensor((p.ROWS, p.COLUMNS), p.DTYPE, fill="normal"),
        weight=tensor(p.COLUMNS, p.DTYPE, fill="normal"),
        y=tensor((p.ROWS, p.COLUMNS), p.DTYPE, output=True),
    ),
    reference=reference,
    # float16 has eleven significant bits.
    rtol=2e-3,
    atol=1e-4,
    default=dict(THREADS=256, VECTOR=1, ROWS=1, KEEP=False),
)
def cutedsl_rmsnorm(p, c):
    return Build(function=rmsnorm_rows, args=("x", "weight", "y", EPSILON), constants=dict(c))
