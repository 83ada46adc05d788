"""``ktuned run`` calls this module by name in every Python process, to adopt all of TileLang's tuners."""

from __future__ import annotations

from typing import Any

from ktuned.dropin import WinnersFile, take_over
from ktuned_tilelang.environment import TUNER_MODULE


def install(mode: str, numerics: str, winners: str = "") -> None:
    """Adopt TileLang's tuners, now or when TileLang is imported.

    They wait for winners in every ``mode``, as TileLang's own tuners do, because programs read a kernel's latency at
    once.
    """

    def adopt(module: Any) -> None:
        from ktuned_tilelang import autotuner

        autotuner.adopt_process(module, "wait", numerics, WinnersFile.read_snapshot(winners))

    take_over("TileLang", TUNER_MODULE, adopt)
