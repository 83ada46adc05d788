"""``ktuned run`` calls this module by name: ``announce`` when a process begins to import TileLang, ``adopt`` then."""

from __future__ import annotations

from typing import Any

from ktuned.dropin import WinnersFile, adopt_framework, daemon_link
from ktuned_tilelang.environment import find_deciding_variables


def announce(winners: str) -> None:
    """Have the daemon's workers import TileLang while this process does; nothing is tuned with a file of winners."""
    if not winners:
        daemon_link().prepare_workers("tilelang", find_deciding_variables())


def adopt(module: Any, mode: str, numerics: str, winners: str, summary: str) -> None:
    """Adopt TileLang's tuners; ``module`` is the one that defines them.

    They wait for winners in every ``mode``, as TileLang's own tuners do, because programs read a kernel's latency at
    once.
    """
    with adopt_framework("TileLang", summary):
        from ktuned_tilelang import autotuner

        autotuner.adopt_process(module, "wait", numerics, WinnersFile.read_snapshot(winners))
