"""What ``ktuned run`` calls: adopts all of Triton's autotuned functions of a program that does not know of ktuned.

``ktuned run`` finds this module by name in every Python process of the program, so it imports next to nothing: the
drop-in itself comes when the program imports Triton.
"""

from __future__ import annotations

import sys
from typing import Any

from ktuned.dropin import account, when_imported

MODULE = "triton.runtime.autotuner"
"""The module that defines Triton's ``Autotuner``."""


def install(mode: str, numerics: str) -> None:
    """Adopt Triton's autotuned functions, now or when Triton is imported."""
    when_imported(MODULE, lambda module: _adopt_triton(module, mode, numerics))


def _adopt_triton(module: Any, mode: str, numerics: str) -> None:
    try:
        from ktuned_triton import autotuner

        autotuner.adopt_process(module.Autotuner, mode, numerics)
    except (ImportError, AttributeError) as error:
        # The program runs as it would without ktuned.
        version = getattr(sys.modules.get("triton"), "__version__", "")
        account.record_left_alone("triton.autotune", f"ktuned-triton does not know Triton {version}: {error}")
