// C = A B in float32, row-major: tiles in shared memory, sums in registers. The sizes are multiples of the tiles.

#define ROWS (block_size_y * tile_y)
#define COLUMNS (block_size_x * tile_x)
#define THREADS (block_size_x * block_size_y)

extern "C" __global__ void __launch_bounds__(THREADS)
    sgemm(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C, int M, int N, int K) {
    __shared__ float left[tile_k][ROWS + 1];
    __shared__ float right[tile_k][COLUMNS];
    const int thread = threadIdx.y * block_size_x + threadIdx.x;
    const int row = blockIdx.y * ROWS;
    const int column = blockIdx.x * COLUMNS;
    float sums[tile_y][tile_x] = {};
    for (int step = 0; step < K; step += tile_k) {
        for (int i = thread; i < ROWS * tile_k; i += THREADS) {
            left[i % tile_k][i / tile_k] = A[(long long)(row + i / tile_k) * K + step + i % tile_k];
        }
        for (int i = thread; i < COLUMNS * tile_k; i += THREADS) {
            right[i / COLUMNS][i % COLUMNS] = B[(long long)(step + i / COLUMNS) * N + column + i % COLUMNS];
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < tile_k; ++k) {
            float a[tile_y], b[tile_x];
#pragma unroll
            for (int i = 0; i < tile_y; ++i) {
                a[i] = left[k][threadIdx.y + i * block_size_y];
            }
#pragma unroll
            for (int j = 0; j < tile_x; ++j) {
                b[j] = right[k][threadIdx.x + j * block_size_x];
            }
#pragma unroll
            for (int i = 0; i < tile_y; ++i) {
#pragma unroll
                for (int j = 0; j < tile_x; ++j) {
                    sums[i][j] += a[i] * b[j];
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < tile_y; ++i) {
#pragma unroll
        for (int j = 0; j < tile_x; ++j) {
            C[(long long)(row + threadIdx.y + i * block_size_y) * N + column + threadIdx.x + j * block_size_x] = sums[i][j];
        }
    }
}
