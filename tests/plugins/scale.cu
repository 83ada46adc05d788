// The example that the nvrtc plugin shows the conformance suite: y = factor x, TILE elements a thread.
#include "scale.cuh"

#ifdef BROKEN
#error "BROKEN is defined"
#endif

template <typename T, int TILE>
__global__ void scale(const T* x, T* y, T factor, int n) {
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * TILE;
  for (int i = first; i < first + TILE && i < n; ++i) y[i] = scaled(x[i], factor);
}
