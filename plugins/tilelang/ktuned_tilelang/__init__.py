"""ktuned's backend for kernels that are written in TileLang, and the drop-ins for its autotuner."""

from typing import TYPE_CHECKING, Any

from ktuned_tilelang.artifact import load
from ktuned_tilelang.backend import TileLang
from ktuned_tilelang.build import Build
from ktuned_tilelang.kernel import TileLangKernel

if TYPE_CHECKING:
    from ktuned_tilelang.autotuner import autotune

__all__ = ["AutoTuner", "Build", "TileLang", "TileLangKernel", "autotune", "load"]


def __getattr__(name: str) -> Any:
    # Applications need them, workers do not.
    if name in ("AutoTuner", "autotune"):
        from ktuned_tilelang import autotuner

        return autotuner.autotune if name == "autotune" else autotuner.make_tuner_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
