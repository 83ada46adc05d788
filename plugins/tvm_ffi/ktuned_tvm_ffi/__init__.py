"""Backends for C++ and CUDA C++ kernels that are called through apache-tvm-ffi."""

from ktuned_tvm_ffi.backend import TvmFfi, TvmFfiCuda
from ktuned_tvm_ffi.build import Build
from ktuned_tvm_ffi.kernel import TvmFfiKernel

__all__ = ["Build", "TvmFfi", "TvmFfiCuda", "TvmFfiKernel"]
