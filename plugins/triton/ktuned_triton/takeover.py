"""``ktuned run``: the drop-in in the place of ``triton.autotune``, in a program that does not know of it.

A module of its own: `ktuned run` finds it by its name, and imports nothing else before the program does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ktuned.dropin import when_imported

MODULE = "triton.runtime.autotuner"
"""The module that defines ``triton.autotune``; all others import it from there."""


def install(mode: str) -> None:
    """Replace ``triton.autotune``, now or when it is imported."""
    when_imported(MODULE, lambda module: _replace(module, mode))


def _replace(module: Any, mode: str) -> None:
    from ktuned_triton import autotuner

    def autotune(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        return autotuner.autotune(*args, **{"mode": mode, **kwargs})

    autotune.__doc__ = module.autotune.__doc__
    module.autotune = autotune
