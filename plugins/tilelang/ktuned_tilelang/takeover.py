"""``ktuned run``: all of TileLang's tuners are adopted, in a program that does not know of it.

A module of its own: `ktuned run` finds it by its name, and imports nothing else before the program does.
"""

from __future__ import annotations

import sys
from typing import Any

from ktuned.dropin import account, when_imported

MODULE = "tilelang.autotuner.tuner"
"""The module that defines them."""


def install(mode: str, numerics: str) -> None:
    """Adopt TileLang's tuners, now or when TileLang is imported.

    They wait for winners in every ``mode``, as TileLang's do: programs read a kernel's latency at once.
    """
    when_imported(MODULE, lambda module: _adopt(module, numerics))


def _adopt(module: Any, numerics: str) -> None:
    try:
        from ktuned_tilelang import autotuner

        autotuner.adopt_process(module, "wait", numerics)
    except (ImportError, AttributeError) as error:
        # The program is no worse off than without ktuned.
        version = getattr(sys.modules.get("tilelang"), "__version__", "")
        account.record_left_alone(
            "tilelang.autotune", f"TileLang {version} is not one that ktuned-tilelang knows: {error}"
        )
