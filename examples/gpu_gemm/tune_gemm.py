"""A float16 matrix product on tensor cores, with tuned blocks, warps and pipeline stages."""

from ktuned import kernel, space, tensor
from ktuned_nvrtc import Build

MAX_SHARED_BYTES = 227 * 1024
"""Limit of a block on sm_90; on a device with less the largest configs are unsupported."""

MAX_ACCUMULATORS = 128
"""Of a thread's 255 registers; the others hold fragments of A and B, and addresses."""


def shared_bytes(c):
    """Return the shared memory of the stages of A and B."""
    return c.STAGES * (c.BM + c.BN) * c.BK * 2


def fits_shared_memory(p, c):
    """Keep the configs whose stages fit a multiprocessor."""
    return shared_bytes(c) <= MAX_SHARED_BYTES


def warps_have_enough_to_do(p, c):
    """Keep the warps' tiles that reuse their loads, and whose sums fit the registers."""
    rows, columns = c.BM // c.WARPS_M, c.BN // c.WARPS_N
    return 32 <= rows <= 64 and 32 <= columns <= 128 and rows * columns // 32 <= MAX_ACCUMULATORS


def has_four_warps(p, c):
    """Keep the blocks that can fill the four schedulers of a multiprocessor."""
    return 4 <= c.WARPS_M * c.WARPS_N <= 8


@kernel(
    backend="nvrtc",
    sources=["gemm.cu"],
    space=space(
        BM=[64, 128, 256],
        BN=[64, 128, 256],
        BK=[32, 64],
        WARPS_M=[1, 2, 4],
        WARPS_N=[1, 2, 4],
        STAGES=[2, 3, 4],
        where=[fits_shared_memory, warps_have_enough_to_do, has_four_warps],
    ),
    problems=[dict(M=4096, N=4096, K=4096)],
    inputs=lambda p: dict(
        A=tensor((p.M, p.K), "float16"),
        B=tensor((p.K, p.N), "float16"),
        C=tensor((p.M, p.N), "float32", output=True),
    ),
    reference=lambda A, B: dict(C=A.float() @ B.float()),
    rtol=1e-3,
    atol=1e-2,
    default=dict(BM=64, BN=64, BK=32, WARPS_M=2, WARPS_N=2, STAGES=2),
)
def gemm(p, c):
    """Instantiate one tiling; N and K must be multiples of 8."""
    return Build(
        entry=f"gemm<{c.BM}, {c.BN}, {c.BK}, {c.WARPS_M}, {c.WARPS_N}, {c.STAGES}>",
        args=("A", "B", "C", p.M, p.N, p.K),
        grid=(-(-p.N // c.BN), -(-p.M // c.BM)),
        block=(32 * c.WARPS_M * c.WARPS_N,),
        shared_bytes=shared_bytes(c),
    )
