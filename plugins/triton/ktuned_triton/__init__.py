"""ktuned's backend for kernels that are written in Triton."""

from ktuned_triton.artifact import install, load
from ktuned_triton.backend import Triton
from ktuned_triton.build import Build
from ktuned_triton.launch import TritonKernel

__all__ = ["Build", "Triton", "TritonKernel", "install", "load"]
