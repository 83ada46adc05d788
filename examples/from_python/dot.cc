// Dot product of two vectors of any length; LANES partial sums run side by side.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

void dot(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView out) {
  const auto a = static_cast<const float*>(x.data_ptr()), b = static_cast<const float*>(y.data_ptr());
  float sum[LANES] = {};
  int64_t i = 0;
  for (; i + LANES <= x.numel(); i += LANES)
    for (int lane = 0; lane < LANES; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  for (; i < x.numel(); ++i) sum[0] += a[i] * b[i];
  for (int lane = 1; lane < LANES; ++lane) sum[0] += sum[lane];
  *static_cast<float*>(out.data_ptr()) = sum[0];
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(dot, dot);
