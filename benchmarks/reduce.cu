// The sum of each row of a float16 matrix, with CUB: a kernel like most, whose headers are longer than itself.

#include <cuda_fp16.h>
#include <cub/block/block_load.cuh>
#include <cub/block/block_reduce.cuh>

template <int THREADS, int ITEMS>
__global__ void __launch_bounds__(THREADS) row_sums(const __half* __restrict__ x, float* __restrict__ sums, int columns) {
  using Load = cub::BlockLoad<__half, THREADS, ITEMS, cub::BLOCK_LOAD_VECTORIZE>;
  using Reduce = cub::BlockReduce<float, THREADS>;
  __shared__ union {
    typename Load::TempStorage load;
    typename Reduce::TempStorage reduce;
  } shared;

  const __half* row = x + static_cast<size_t>(blockIdx.x) * columns;
  float sum = 0;
  for (int start = 0; start < columns; start += THREADS * ITEMS) {
    __half items[ITEMS];
    Load(shared.load).Load(row + start, items, columns - start, __float2half(0));
    for (int i = 0; i < ITEMS; ++i) sum += __half2float(items[i]);
    __syncthreads();
  }
  sum = Reduce(shared.reduce).Sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}
