"""``ktuned run`` calls this module by name when a process imports Triton, to adopt all its autotuned functions."""

from __future__ import annotations

from typing import Any

from ktuned.dropin import WinnersFile, adopt_framework


def adopt(module: Any, mode: str, numerics: str, winners: str, summary: str) -> None:
    """Adopt Triton's autotuned functions; ``module`` is the one that defines ``Autotuner``."""
    with adopt_framework("Triton", summary):
        from ktuned_triton import autotuner

        autotuner.adopt_process(module.Autotuner, mode, numerics, WinnersFile.read_snapshot(winners))
