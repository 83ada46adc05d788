// y += alpha x, and how often this library has done so.
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include "axpy.h"

namespace {

void axpy(tvm::ffi::TensorView x, tvm::ffi::TensorView y, int64_t alpha) {
  for (int64_t i = 0; i < y.size(0); ++i) {
    static_cast<float*>(y.data_ptr())[i] += static_cast<float>(alpha) * static_cast<float*>(x.data_ptr())[i];
  }
  ++calls();
}

int64_t count() { return calls(); }

const char* file() { return __FILE__ " " __DATE__ " " __TIME__; }

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(axpy, axpy);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(count, count);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(file, file);
