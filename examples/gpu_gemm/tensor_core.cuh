// Instructions of a tensor-core GEMM: asynchronous copies, matrix loads, the product itself.
//
// Fragments have the layout of the PTX ISA for mma.m16n8k16: each lane of a warp holds four registers of A
// (16 x 16), two of B (16 x 8), four floats of C (16 x 8).
#pragma once

#include <cuda_fp16.h>

namespace tensor_core {

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Starts to copy 16 bytes to shared memory; writes zeros for elements outside.
__device__ inline void copy_async(__half* to, const __half* from, bool is_there) {
  const int bytes = is_there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}

// Closes a group of copies, which may be empty.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;"); }

// Waits until at most the last kPending groups are pending.
template <int kPending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Loads four 8 x 8 matrices; lane i names the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(unsigned (&to)[4], const __half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// The same, each matrix transposed.
__device__ inline void load_matrices_transposed(unsigned (&to)[4], const __half* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// C += A B, on one tile of 16 x 8 with a depth of 16.
__device__ inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
               "{%0, %1, %2, %3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace tensor_core
