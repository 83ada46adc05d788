"""Whether this machine has nvcc, which tests of CUDA through C++ need."""

import pytest

from ktuned_tvm_ffi.compiler import NoCompiler
from ktuned_tvm_ffi.nvcc import Nvcc


def has_nvcc() -> bool:
    """Return whether there is a CUDA compiler here."""
    try:
        Nvcc.find()
    except NoCompiler:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason="no nvcc here")
