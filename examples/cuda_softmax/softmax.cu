// The softmax of each row of a float16 matrix, in float32, with a tuned split of rows among threads.

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

#include "row.cuh"

/// Number of reads of a row: for its largest element, for the sum, and for the result.
enum Method {
  THREE_READS,  ///< once for each
  TWO_READS,    ///< the sum follows the largest element so far
  ONE_READ,     ///< the row stays in registers: VECTORS of it in each thread
};

template <int THREADS, int VECTOR, int VECTORS, int ROWS, Method METHOD>
__global__ void __launch_bounds__(THREADS* ROWS)
    softmax_rows(const __half* __restrict__ x, __half* __restrict__ y, int rows, int columns) {
  using Row = Row<THREADS, VECTOR, ROWS>;
  const int row = blockIdx.x * ROWS + threadIdx.y;
  // A thread without a row works on the last one and writes nothing: all threads must meet in the reductions.
  const bool writes = row < rows;
  const Row in(x, min(row, rows - 1), columns);

  if constexpr (METHOD == ONE_READ) {
    Vector<VECTOR> kept[VECTORS];
    State state;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const int at = Row::at(i);
      if (at < columns) {
        kept[i] = in.read(at);
        state.largest = fmaxf(state.largest, kept[i].largest());
      }
    }
    state.largest = Row::reduce(state.largest, Larger());
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      if (Row::at(i) < columns) state.sum += kept[i].sum_of_powers(state.largest);
    }
    state.sum = Row::reduce(state.sum, Sum());
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
      const int at = Row::at(i);
      if (at < columns && writes) Row::write(y, row, columns, at, kept[i].softmax(state));
    }
    return;
  } else {
    State state;
    for (int i = 0; Row::at(i) < columns; ++i) {
      const Vector<VECTOR> read = in.read(Row::at(i));
      const float largest = fmaxf(state.largest, read.largest());
      if constexpr (METHOD == TWO_READS) {
        state.sum = state.sum * __expf(state.largest - largest) + read.sum_of_powers(largest);
      }
      state.largest = largest;
    }
    const float own = state.largest;
    state.largest = Row::reduce(own, Larger());
    if constexpr (METHOD == TWO_READS) {
      // A thread that read nothing has no largest element: its sum is 0 whatever it is scaled with.
      state.sum = state.sum == 0 ? 0 : state.sum * __expf(own - state.largest);
    } else {
      for (int i = 0; Row::at(i) < columns; ++i) state.sum += in.read(Row::at(i)).sum_of_powers(state.largest);
    }
    state.sum = Row::reduce(state.sum, Sum());
    if (!writes) return;
    for (int i = 0; Row::at(i) < columns; ++i) {
      const int at = Row::at(i);
      Row::write(y, row, columns, at, in.read(at).softmax(state));
    }
  }
}

/// Write the softmax of each row of x into y, on the caller's stream.
template <int THREADS, int VECTOR, int VECTORS, int ROWS, Method METHOD>
void softmax(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  const int64_t rows = x.size(0), columns = x.size(1);
  TVM_FFI_ICHECK(columns % VECTOR == 0) << "the rows must be multiples of " << VECTOR;
  TVM_FFI_ICHECK(METHOD != ONE_READ || columns <= THREADS * VECTOR * VECTORS) << "a row does not fit the registers";
  const DLDevice device = x.device();
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  softmax_rows<THREADS, VECTOR, VECTORS, ROWS, METHOD><<<(rows + ROWS - 1) / ROWS, dim3(THREADS, ROWS), 0, stream>>>(
      static_cast<const __half*>(x.data_ptr()), static_cast<__half*>(y.data_ptr()), rows, columns);
  const cudaError_t error = cudaGetLastError();
  TVM_FFI_ICHECK(error == cudaSuccess) << cudaGetErrorString(error);
}
