"""``ktuned run`` calls this module by name when a process imports TileLang, to adopt all of TileLang's tuners."""

from __future__ import annotations

from typing import Any

from ktuned.dropin import WinnersFile, adopt_framework


def adopt(module: Any, mode: str, numerics: str, winners: str, summary: str) -> None:
    """Adopt TileLang's tuners; ``module`` is the one that defines them.

    They wait for winners in every ``mode``, as TileLang's own tuners do, because programs read a kernel's latency at
    once.
    """
    with adopt_framework("TileLang", summary):
        from ktuned_tilelang import autotuner

        autotuner.adopt_process(module, "wait", numerics, WinnersFile.read_snapshot(winners))
