"""A matrix product in TileLang, from its example of autotuning: bfloat16 in, sums in float32."""

import tilelang
import tilelang.language as T


@tilelang.jit(out_idx=[-1])
def matmul(M, N, K, block_M, block_N, block_K, num_stages, thread_num, enable_rasterization):
    """Return the program for one size: c = a @ b transposed, block by block."""

    @T.prim_func
    def main(a: T.Tensor((M, K), "bfloat16"), b: T.Tensor((N, K), "bfloat16"), c: T.Tensor((M, N), "bfloat16")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=thread_num) as (bx, by):
            a_shared = T.alloc_shared((block_M, block_K), "bfloat16")
            b_shared = T.alloc_shared((block_N, block_K), "bfloat16")
            c_local = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(panel_size=10, enable=enable_rasterization)
            T.clear(c_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(a[by * block_M, k * block_K], a_shared)
                T.copy(b[bx * block_N, k * block_K], b_shared)
                T.gemm(a_shared, b_shared, c_local, transpose_B=True)
            T.copy(c_local, c[by * block_M, bx * block_N])

    return main
