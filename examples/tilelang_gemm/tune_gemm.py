"""The space of the matrix product in `gemm.py`: 72 of the 288 configs of TileLang's example."""

from gemm import matmul

from ktuned import kernel, space, tensor
from ktuned_tilelang import Build


@kernel(
    backend="tilelang",
    space=space(
        block_M=[64, 128, 256],
        block_N=[64, 128, 256],
        block_K=[32, 64],
        num_stages=[2, 3],
        thread_num=[128, 256],
        enable_rasterization=[True],
    ),
    problems=[dict(M=4096, N=4096, K=4096)],
    inputs=lambda p: dict(
        a=tensor((p.M, p.K), "bfloat16", fill="normal"),
        b=tensor((p.N, p.K), "bfloat16", fill="normal"),
        c=tensor((p.M, p.N), "bfloat16", output=True),
    ),
    reference=lambda a, b: a @ b.T,
    # The sums have a deviation of 64, and bfloat16 has eight significant bits.
    rtol=2e-2,
    atol=1.0,
    default=dict(block_M=128, block_N=128, block_K=64, num_stages=2, thread_num=128, enable_rasterization=True),
)
def tilelang_gemm(p, c):
    return Build(matmul, dict(p) | dict(c), execution_backend="nvrtc")
