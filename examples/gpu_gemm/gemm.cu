// C = A B on tensor cores: float16 in, float32 out, all row-major.
//
// A block computes BM x BN of C along the depth in steps of BK: STAGES - 1 tiles of A and B are being copied
// to shared memory while one is multiplied. WARPS_M x WARPS_N warps share the block's tile.

#include "tensor_core.cuh"

namespace tiles {

constexpr int kChunk = 8;  // float16s in 16 bytes, the width of one copy or load

// A tile in shared memory, its chunks permuted so that the eight rows of a matrix load fall into different banks.
template <int kRows, int kColumns>
struct Tile {
  static constexpr int kRowChunks = kColumns / kChunk;
  static constexpr int kPeriod = kRowChunks < 8 ? kRowChunks : 8;  // 8 chunks are the 32 banks
  static constexpr int kSize = kRows * kColumns;

  __device__ static int offset(int row, int chunk) {
    return (row * kRowChunks + (chunk ^ (row / (8 / kPeriod) % kPeriod))) * kChunk;
  }

  // Starts to copy the tile at (row, column) of a rows x columns matrix; elements outside are zero.
  template <int kThreads>
  __device__ static void copy(__half* tile, const __half* matrix, int row, int column, int rows, int columns) {
#pragma unroll
    for (int i = threadIdx.x; i < kRows * kRowChunks; i += kThreads) {
      const int r = i / kRowChunks, chunk = i % kRowChunks;
      const bool is_there = row + r < rows && column + chunk * kChunk < columns;
      const long long from = is_there ? (row + r) * static_cast<long long>(columns) + column + chunk * kChunk : 0;
      tensor_core::copy_async(tile + offset(r, chunk), matrix + from, is_there);
    }
  }
};

}  // namespace tiles

// N and K must be multiples of 8. Launched on ceil(N / BN) x ceil(M / BM) blocks with
// STAGES * (BM + BN) * BK * 2 bytes of dynamic shared memory.
template <int BM, int BN, int BK, int WARPS_M, int WARPS_N, int STAGES>
__global__ void __launch_bounds__(WARPS_M* WARPS_N * 32)
    gemm(const __half* __restrict__ a, const __half* __restrict__ b, float* __restrict__ c, int m, int n, int k) {
  constexpr int kThreads = WARPS_M * WARPS_N * 32;
  constexpr int kWarpM = BM / WARPS_M, kWarpN = BN / WARPS_N;
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0, "a warp multiplies tiles of 16 x 16");
  static_assert(BK % 16 == 0 && STAGES >= 2, "the depth goes in steps of 16, and one stage is always being filled");
  using TileA = tiles::Tile<BM, BK>;
  using TileB = tiles::Tile<BK, BN>;

  extern __shared__ __align__(128) __half stages[];
  const int row = blockIdx.y * BM, column = blockIdx.x * BN;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int warp_row = warp / WARPS_N * kWarpM, warp_column = warp % WARPS_N * kWarpN;

  const auto fill = [&](int step) {
    __half* stage = stages + step % STAGES * (TileA::kSize + TileB::kSize);
    TileA::template copy<kThreads>(stage, a, row, step * BK, m, k);
    TileB::template copy<kThreads>(stage + TileA::kSize, b, step * BK, column, k, n);
  };

  float sum[kWarpM / 16][kWarpN / 8][4] = {};
  const int steps = (k + BK - 1) / BK;
#pragma unroll
  for (int step = 0; step < STAGES - 1; ++step) {
    if (step < steps) fill(step);
    tensor_core::commit_copies();
  }
  for (int step = 0; step < steps; ++step) {
    tensor_core::wait_for_copies<STAGES - 2>();
    __syncthreads();  // this step's tiles have arrived, and no warp uses the stage that is filled next
    if (step + STAGES - 1 < steps) fill(step + STAGES - 1);
    tensor_core::commit_copies();

    const __half* tile_a = stages + step % STAGES * (TileA::kSize + TileB::kSize);
    const __half* tile_b = tile_a + TileA::kSize;
#pragma unroll
    for (int depth = 0; depth < BK; depth += 16) {
      unsigned of_a[kWarpM / 16][4], of_b[kWarpN / 16][4];
#pragma unroll
      for (int i = 0; i < kWarpM / 16; ++i) {
        const int chunk = depth / tiles::kChunk + lane / 16;
        tensor_core::load_matrices(of_a[i], tile_a + TileA::offset(warp_row + i * 16 + lane % 16, chunk));
      }
#pragma unroll
      for (int j = 0; j < kWarpN / 16; ++j) {
        const int chunk = (warp_column + j * 16) / tiles::kChunk + lane / 16;
        tensor_core::load_matrices_transposed(of_b[j], tile_b + TileB::offset(depth + lane % 16, chunk));
      }
#pragma unroll
      for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < kWarpN / 8; ++j) {
          tensor_core::multiply_add(sum[i][j], of_a[i], of_b[j / 2][j % 2 * 2], of_b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kWarpM / 16; ++i) {
#pragma unroll
    for (int j = 0; j < kWarpN / 8; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = row + warp_row + i * 16 + half * 8 + lane / 4;
        const int s = column + warp_column + j * 8 + lane % 4 * 2;
        if (r < m && s < n) {
          *reinterpret_cast<float2*>(c + r * static_cast<long long>(n) + s) =
              make_float2(sum[i][j][half * 2], sum[i][j][half * 2 + 1]);
        }
      }
    }
  }
}
