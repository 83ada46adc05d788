"""``ktuned run``: the drop-in in the place of ``triton.autotune``, in a program that does not know of it.

A module of its own: `ktuned run` finds it by its name, and imports nothing else before the program does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from ktuned.dropin import account, when_imported

MODULE = "triton.runtime.autotuner"
"""The module that defines ``triton.autotune``; all others import it from there."""


def install(mode: str) -> None:
    """Replace ``triton.autotune``, now or when it is imported."""
    when_imported(MODULE, lambda module: _replace(module, mode))


def _replace(module: Any, mode: str) -> None:
    theirs = module.autotune

    def autotune(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
        # Not before the program's first decorator: Triton is still being imported here.
        try:
            from ktuned_triton import autotuner

            autotuner.autotuner_class()
        except (ImportError, AttributeError) as error:
            # The program is no worse off than without ktuned.
            version = getattr(sys.modules["triton"], "__version__", "")
            account.leave_alone("triton.autotune", f"Triton {version} is not one that ktuned-triton knows: {error}")
            made: Callable[[Any], Any] = theirs(*args, **kwargs)
            return made
        return autotuner.autotune(*args, **{"mode": mode, **kwargs})

    autotune.__doc__ = theirs.__doc__
    module.autotune = autotune
