"""A matrix product in Triton, from its tutorial: blocks in an order that reuses the L2 cache."""

import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a,
    b,
    c,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    """Compute one block of c = a @ b; GROUP_M rows of blocks are computed together."""
    program = tl.program_id(0)
    blocks_m, blocks_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    in_group = GROUP_M * blocks_n
    first_m = program // in_group * GROUP_M
    group_m = min(blocks_m - first_m, GROUP_M)
    block_m = first_m + program % in_group % group_m
    block_n = program % in_group // group_m

    rows = (block_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (block_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    inner = tl.arange(0, BLOCK_K)
    lefts = a + rows[:, None] * stride_am + inner[None, :] * stride_ak
    rights = b + inner[:, None] * stride_bk + columns[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(tl.cdiv(K, BLOCK_K)):
        left = tl.load(lefts, mask=inner[None, :] < K - step * BLOCK_K, other=0.0)
        right = tl.load(rights, mask=inner[:, None] < K - step * BLOCK_K, other=0.0)
        total = tl.dot(left, right, total)
        lefts += BLOCK_K * stride_ak
        rights += BLOCK_K * stride_bk

    rows = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    targets = c + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(targets, total.to(c.dtype.element_ty), mask=(rows[:, None] < M) & (columns[None, :] < N))
