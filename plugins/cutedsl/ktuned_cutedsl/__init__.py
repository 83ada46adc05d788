"""Backend for CUDA kernels in CuTe DSL (nvidia-cutlass-dsl)."""

from ktuned_cutedsl.backend import CuteDsl, CuteDslKernel
from ktuned_cutedsl.build import Build

__all__ = ["Build", "CuteDsl", "CuteDslKernel"]
