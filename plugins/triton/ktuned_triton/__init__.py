"""ktuned's backend for kernels that are written in Triton, and the drop-in for ``triton.autotune``."""

from typing import TYPE_CHECKING, Any

from ktuned_triton.artifact import install, load
from ktuned_triton.backend import Triton
from ktuned_triton.build import Build
from ktuned_triton.launch import TritonKernel

if TYPE_CHECKING:
    from ktuned_triton.autotuner import autotune

__all__ = ["Build", "Triton", "TritonKernel", "autotune", "install", "load"]


def __getattr__(name: str) -> Any:
    # Applications need it, workers do not.
    if name == "autotune":
        from ktuned_triton import autotuner

        return autotuner.autotune
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
