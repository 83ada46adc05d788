// A row of a matrix and the THREADS threads that share it; ROWS rows are one block.
#pragma once

#include <cuda_fp16.h>

/// The largest element of a row so far, and the sum of exp(element - largest).
struct State {
  float largest = -INFINITY;
  float sum = 0;
};

struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

/// The elements of one load.
template <int SIZE>
struct alignas(SIZE * sizeof(__half)) Vector {
  __half elements[SIZE];

  __device__ float largest() const {
    float found = -INFINITY;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) found = fmaxf(found, __half2float(elements[i]));
    return found;
  }

  __device__ float sum_of_powers(float largest) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) sum += __expf(__half2float(elements[i]) - largest);
    return sum;
  }

  __device__ Vector softmax(const State& state) const {
    const float scale = 1 / state.sum;
    Vector result;
#pragma unroll
    for (int i = 0; i < SIZE; ++i) {
      result.elements[i] = __float2half(__expf(__half2float(elements[i]) - state.largest) * scale);
    }
    return result;
  }
};

template <int THREADS, int VECTOR, int ROWS>
class Row {
 public:
  __device__ Row(const __half* matrix, int row, int columns) : start_(matrix + static_cast<int64_t>(row) * columns) {}

  /// Start of this thread's i-th vector: neighbouring threads read neighbouring vectors.
  __device__ static int at(int i) { return (i * THREADS + threadIdx.x) * VECTOR; }

  __device__ Vector<VECTOR> read(int at) const { return *reinterpret_cast<const Vector<VECTOR>*>(start_ + at); }

  __device__ static void write(__half* matrix, int row, int columns, int at, const Vector<VECTOR>& vector) {
    *reinterpret_cast<Vector<VECTOR>*>(matrix + static_cast<int64_t>(row) * columns + at) = vector;
  }

  /// Combine one value of each of the row's threads; all of them get the result.
  template <typename Combine>
  __device__ static float reduce(float value, Combine combine) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      value = combine(value, __shfl_xor_sync(0xffffffff, value, distance));
    }
    if constexpr (THREADS > 32) {
      __shared__ float of_warps[ROWS][THREADS / 32];
      __syncthreads();  // the last reduction's readers are done
      if (threadIdx.x % 32 == 0) of_warps[threadIdx.y][threadIdx.x / 32] = value;
      __syncthreads();
      value = of_warps[threadIdx.y][0];
#pragma unroll
      for (int warp = 1; warp < THREADS / 32; ++warp) value = combine(value, of_warps[threadIdx.y][warp]);
    }
    return value;
  }

 private:
  const __half* start_;
};
