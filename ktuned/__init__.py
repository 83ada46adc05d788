"""ktuned: a per-user daemon that owns the tuning of kernels. This module is what kernel files and programs import.

::

    from ktuned import kernel, space, tensor, tune

It imports the standard library alone; torch and backends come in only where something runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ktuned.declaration import kernel, load_tensors, space, tensor
    from ktuned.model import Unsupported, maximize, minimize
    from ktuned.protocol import VERSION as __version__  # noqa: N811
    from ktuned.python import Result, TuningFailed, tune

__all__ = [
    "Result",
    "TuningFailed",
    "Unsupported",
    "__version__",
    "kernel",
    "load_tensors",
    "maximize",
    "minimize",
    "space",
    "tensor",
    "tune",
]


def __getattr__(name: str) -> Any:
    # The daemon and the command line import this package too, and declare no kernels.
    if name in {"Unsupported", "maximize", "minimize"}:
        from ktuned import model

        return getattr(model, name)
    if name in {"kernel", "load_tensors", "space", "tensor"}:
        from ktuned import declaration

        return getattr(declaration, name)
    if name == "__version__":
        from ktuned import protocol

        return protocol.VERSION
    if name in {"Result", "TuningFailed", "tune"}:
        from ktuned import python

        return getattr(python, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
