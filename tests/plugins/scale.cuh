// Included by scale.cu.
#pragma once

template <typename T>
__device__ T scaled(T value, T factor) {
  return value * factor;
}
