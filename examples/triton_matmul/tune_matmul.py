"""The space of the matrix product in `matmul.py`: the sizes of a block, its warps, and its pipeline's depth."""

import triton
from matmul import matmul_kernel

from ktuned import kernel, space, tensor
from ktuned_triton import Build


@kernel(
    backend="triton",
    space=space(
        BLOCK_M=[64, 128, 256],
        BLOCK_N=[64, 128, 256],
        BLOCK_K=[32, 64, 128],
        GROUP_M=[8],
        WARPS=[4, 8],
        STAGES=[3, 4, 5],
        # At most 128 accumulators per thread; more would spill.
        where=lambda p, c: c.BLOCK_M * c.BLOCK_N <= 128 * 32 * c.WARPS,
    ),
    problems=[dict(M=4096, N=4096, K=4096)],
    inputs=lambda p: dict(
        a=tensor((p.M, p.K), "float16", fill="normal"),
        b=tensor((p.K, p.N), "float16", fill="normal"),
        c=tensor((p.M, p.N), "float16", output=True),
    ),
    reference=lambda a, b: a @ b,
    # The sums have a deviation of 64, and float16 has eleven significant bits.
    rtol=1e-2,
    atol=0.2,
    default=dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, GROUP_M=8, WARPS=4, STAGES=4),
)
def triton_matmul(p, c):
    return Build(
        function=matmul_kernel,
        args=("a", "b", "c", p.M, p.N, p.K, p.K, 1, p.N, 1, p.N, 1),
        constants={name: c[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")},
        grid=(triton.cdiv(p.M, c.BLOCK_M) * triton.cdiv(p.N, c.BLOCK_N),),
        num_warps=c.WARPS,
        num_stages=c.STAGES,
    )
