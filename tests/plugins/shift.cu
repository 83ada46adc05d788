// y = x + BY, one element for each thread: what the tvm_ffi_cuda backend is tested with.
//
// Exported by hand through tvm-ffi's C ABI, unless its C++ headers are asked for: they take most of the compile time.

#include <cuda_runtime.h>
#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

template <int BY>
__global__ void shift_each(const float* x, float* y, int count) {
  static_assert(BY < 100, "BY is too large");
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = x[i] + BY;
}

template <int BY>
cudaError_t launch(const void* x, void* y, int count, DLDevice device, int threads) {
  const auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  shift_each<BY><<<(count + threads - 1) / threads, threads, 0, stream>>>(static_cast<const float*>(x),
                                                                      static_cast<float*>(y), count);
  return cudaGetLastError();
}

#ifdef SHIFT_BY
static const DLTensor& tensor(const TVMFFIAny& arg) {
  return *(arg.type_index == kTVMFFITensor ? TVMFFITensorGetDLTensorPtr(arg.v_obj)
                                           : static_cast<DLTensor*>(arg.v_ptr));
}

extern "C" __attribute__((visibility("default"))) int __tvm_ffi_shift(void*, const TVMFFIAny* args, int32_t,
                                                                       TVMFFIAny*) {
  const DLTensor &x = tensor(args[0]), &y = tensor(args[1]);
  const cudaError_t error = launch<SHIFT_BY>(x.data, y.data, x.shape[0], x.device, args[2].v_int64);
  if (error != cudaSuccess) TVMFFIErrorSetRaisedFromCStr("RuntimeError", cudaGetErrorString(error));
  return error == cudaSuccess ? 0 : -1;
}
#else
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

template <int BY>
void shift(tvm::ffi::TensorView x, tvm::ffi::TensorView y, int64_t threads) {
  const cudaError_t error = launch<BY>(x.data_ptr(), y.data_ptr(), x.numel(), x.device(), threads);
  TVM_FFI_ICHECK(error == cudaSuccess) << cudaGetErrorString(error);
}
#endif
