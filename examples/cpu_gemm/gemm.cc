// C = A B in float32, row-major: packed blocks of A, packed slivers of B, a register tile of C.
//
// The blocking is that of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>

#include "blocking.h"

namespace {

using blocking::kBlockDepth;
using blocking::kBlockRows;
using blocking::kLanes;
using blocking::kThreads;
using blocking::kTileColumns;
using blocking::kTileRows;
using blocking::kTileVectors;

using Vector = float __attribute__((vector_size(kLanes * sizeof(float))));

struct Matrix {
  float* data;
  int64_t rows;
  int64_t columns;

  float* at(int64_t row, int64_t column) const { return data + row * columns + column; }
};

// Copies a block of A so that each register tile reads it in order: depth by depth, kTileRows floats each.
// Rows past the edge are zero.
void pack_a(const Matrix& a, int64_t row, int64_t rows, int64_t k, int64_t depth, float* packed) {
  for (int64_t tile = 0; tile < rows; tile += kTileRows) {
    for (int64_t p = 0; p < depth; ++p) {
      for (int64_t i = 0; i < kTileRows; ++i) {
        *packed++ = tile + i < rows ? *a.at(row + tile + i, k + p) : 0.0f;
      }
    }
  }
}

// Copies kTileColumns columns of B next to each other. Columns past the edge are zero.
void pack_b(const Matrix& b, int64_t k, int64_t depth, int64_t column, int64_t columns, float* packed) {
  for (int64_t p = 0; p < depth; ++p, packed += kTileColumns) {
    const float* source = b.at(k + p, column);
    if (columns == kTileColumns) {
      std::memcpy(packed, source, kTileColumns * sizeof(float));
    } else {
      std::fill(std::copy(source, source + columns, packed), packed + kTileColumns, 0.0f);
    }
  }
}

// One register tile: C[kTileRows, kTileColumns] (+)= A sliver x B sliver.
void multiply_tile(const float* a, const float* b, int64_t depth, float* c, int64_t stride, int64_t rows,
                   int64_t columns, bool accumulate) {
  Vector sum[kTileRows][kTileVectors] = {};
  for (int64_t p = 0; p < depth; ++p, a += kTileRows, b += kTileColumns) {
    Vector row_of_b[kTileVectors];
    std::memcpy(row_of_b, b, sizeof(row_of_b));
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 16
      for (int v = 0; v < kTileVectors; ++v) sum[i][v] += a[i] * row_of_b[v];
    }
  }
  float tile[kTileRows][kTileColumns];
  std::memcpy(tile, sum, sizeof(tile));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float& out = c[i * stride + j];
      out = accumulate ? out + tile[i][j] : tile[i][j];
    }
  }
}

int64_t end_of_depth(int64_t depth) {
  return VARIANT == DROPS_TAIL ? depth / kBlockDepth * kBlockDepth : depth;
}

// How far to go along the depth; volatile, so that the compiler cannot conclude that the endless variant ends.
int64_t step_of_depth() {
  volatile int64_t step = VARIANT == ENDLESS ? 0 : kBlockDepth;
  return step;
}

// Computes rows [first, last) of C on the calling thread. Not inlined: its two callers would compile it twice.
[[gnu::noinline]] void multiply_rows(const Matrix& a, const Matrix& b, const Matrix& c, int64_t first, int64_t last) {
  alignas(64) float storage_of_a[kBlockRows * kBlockDepth];
  alignas(64) float packed_b[kBlockDepth * kTileColumns];
  float* volatile unset = nullptr;
  float* packed_a = VARIANT == NULL_DEREF ? unset : storage_of_a;
  for (int64_t k = 0; k < end_of_depth(a.columns); k += step_of_depth()) {
    const int64_t depth = std::min<int64_t>(kBlockDepth, a.columns - k);
    for (int64_t row = first; row < last; row += kBlockRows) {
      const int64_t rows = std::min<int64_t>(kBlockRows, last - row);
      pack_a(a, row, rows, k, depth, packed_a);
      for (int64_t column = 0; column < c.columns; column += kTileColumns) {
        const int64_t columns = std::min<int64_t>(kTileColumns, c.columns - column);
        pack_b(b, k, depth, column, columns, packed_b);
        for (int64_t tile = 0; tile < rows; tile += kTileRows) {
          multiply_tile(packed_a + tile * depth, packed_b, depth, c.at(row + tile, column), c.columns,
                        std::min<int64_t>(kTileRows, rows - tile), columns, k > 0);
        }
      }
    }
  }
}

Matrix matrix(const tvm::ffi::TensorView& tensor, const char* name) {
  const DLDataType dtype = tensor.dtype();
  if (tensor.ndim() != 2 || !tensor.IsContiguous() || dtype.code != kDLFloat || dtype.bits != 32) {
    TVM_FFI_THROW(ValueError) << name << " must be a contiguous float32 matrix";
  }
  return {static_cast<float*>(tensor.data_ptr()), tensor.size(0), tensor.size(1)};
}

void gemm(tvm::ffi::TensorView a_tensor, tvm::ffi::TensorView b_tensor, tvm::ffi::TensorView c_tensor) {
  const Matrix a = matrix(a_tensor, "A"), b = matrix(b_tensor, "B"), c = matrix(c_tensor, "C");
  if (a.columns != b.rows || c.rows != a.rows || c.columns != b.columns) {
    TVM_FFI_THROW(ValueError) << "the shapes of A, B and C do not fit together";
  }
  // Each thread takes a share of whole register tiles; the caller's own is the first.
  const int64_t share = blocking::round_up((c.rows + kThreads - 1) / kThreads, kTileRows);
  std::thread threads[kThreads];
  for (int i = 1; i < kThreads; ++i) {
    threads[i] = std::thread(multiply_rows, a, b, c, i * share, std::min((i + 1) * share, c.rows));
  }
  multiply_rows(a, b, c, 0, std::min(share, c.rows));
  for (int i = 1; i < kThreads; ++i) threads[i].join();
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(gemm, gemm);
