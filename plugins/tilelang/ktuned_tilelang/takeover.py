"""What ``ktuned run`` calls: adopts all of TileLang's tuners in a program that does not know of ktuned.

``ktuned run`` finds this module by name in every Python process of the program, so it imports next to nothing: the
drop-in itself comes when the program imports TileLang.
"""

from __future__ import annotations

import sys
from typing import Any

from ktuned.dropin import account, when_imported

MODULE = "tilelang.autotuner.tuner"
"""The module that defines TileLang's tuners."""


def install(mode: str, numerics: str) -> None:
    """Adopt TileLang's tuners, now or when TileLang is imported.

    They wait for winners in every ``mode``, as TileLang's own do: programs read a kernel's latency at once.
    """
    when_imported(MODULE, lambda module: _adopt_tilelang(module, numerics))


def _adopt_tilelang(module: Any, numerics: str) -> None:
    try:
        from ktuned_tilelang import autotuner

        autotuner.adopt_process(module, "wait", numerics)
    except (ImportError, AttributeError) as error:
        # The program runs as it would without ktuned.
        version = getattr(sys.modules.get("tilelang"), "__version__", "")
        account.record_left_alone("tilelang.autotune", f"ktuned-tilelang does not know TileLang {version}: {error}")
