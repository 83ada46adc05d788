"""``ktuned run``: all of Triton's autotuned functions are adopted, in a program that does not know of it.

A module of its own: `ktuned run` finds it by its name, and imports nothing else before the program does.
"""

from __future__ import annotations

import sys
from typing import Any

from ktuned.dropin import account, when_imported

MODULE = "triton.runtime.autotuner"
"""The module that defines Triton's ``Autotuner``."""


def install(mode: str, numerics: str) -> None:
    """Adopt Triton's autotuned functions, now or when Triton is imported."""
    when_imported(MODULE, lambda module: _adopt(module, mode, numerics))


def _adopt(module: Any, mode: str, numerics: str) -> None:
    try:
        from ktuned_triton import autotuner

        autotuner.adopt_process(module.Autotuner, mode, numerics)
    except (ImportError, AttributeError) as error:
        # The program is no worse off than without ktuned.
        version = getattr(sys.modules.get("triton"), "__version__", "")
        account.record_left_alone("triton.autotune", f"Triton {version} is not one that ktuned-triton knows: {error}")
