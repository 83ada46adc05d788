"""ktuned's backend for C++ kernels that are called through apache-tvm-ffi."""

from ktuned_tvm_ffi.backend import Build, TvmFfi, TvmFfiKernel

__all__ = ["Build", "TvmFfi", "TvmFfiKernel"]
