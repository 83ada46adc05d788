// The problem of all candidates, y = f(x), and what they are made of.
#pragma once
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <queue>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

using Tensor = tvm::ffi::TensorView;

inline float* data(Tensor t) { return static_cast<float*>(t.data_ptr()); }
inline long size(Tensor t) { return t.numel(); }
inline size_t bytes(Tensor t) { return t.numel() * sizeof(float); }

inline void compute(const float* x, float* y, long count) {
  for (long i = 0; i < count; ++i) {
    float value = 0;
    for (int step = 0; step < 12; ++step) value = value * 0.5f + x[i];
    y[i] = value;
  }
}
inline void compute(Tensor x, Tensor y) { compute(data(x), data(y), size(x)); }

// The first page of a tensor's memory, and its size in whole pages.
inline char* first_page(Tensor t) { return reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(t.data_ptr()) & ~4095ul); }
inline size_t pages(Tensor t) {
  return (reinterpret_cast<char*>(t.data_ptr()) + bytes(t) - first_page(t) + 4095) & ~4095ul;
}
