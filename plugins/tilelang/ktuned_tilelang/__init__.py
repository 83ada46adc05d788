"""ktuned's backend for kernels that are written in TileLang, and the drop-ins for its autotuner."""

from ktuned_tilelang.artifact import load
from ktuned_tilelang.backend import TileLang
from ktuned_tilelang.build import Build
from ktuned_tilelang.kernel import TileLangKernel

__all__ = ["Build", "TileLang", "TileLangKernel", "load"]
