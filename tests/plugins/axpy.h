// Included by axpy.cc.
#pragma once

#include <cstdint>

#ifdef BROKEN
#error "BROKEN is defined"
#endif

inline int64_t& calls() {
  static int64_t value = 0;
  return value;
}
