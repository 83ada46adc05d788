// Runs the winner of the guide's `dot`, without Python: ./run_dot winners/artifacts/KEY/kernel.so

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>

#include <cstdio>
#include <vector>

int main(int, char **arguments) {
  auto kernel = tvm::ffi::Module::LoadFromFile(arguments[1]);
  tvm::ffi::Function dot = kernel->GetFunction("dot").value();
  std::vector<float> x(65536, 2.0f), y(65536, 0.5f), out(1);
  int64_t shape[] = {65536}, one[] = {1};
  DLTensor tensors[] = {  // DLPack's: data, device, dimensions, type, shape, strides, offset
      {x.data(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, one, 0},
      {y.data(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, one, 0},
      {out.data(), {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, one, one, 0},
  };
  dot(&tensors[0], &tensors[1], &tensors[2]);  // in the order of `args`
  std::printf("%g\n", out[0]);
}
