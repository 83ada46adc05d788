"""``ktuned run`` calls this module by name in every Python process, to adopt all of Triton's autotuned functions."""

from __future__ import annotations

from typing import Any

from ktuned.dropin import WinnersFile, take_over

MODULE = "triton.runtime.autotuner"
"""The module that defines Triton's ``Autotuner``."""


def install(mode: str, numerics: str, winners: str = "") -> None:
    """Adopt Triton's autotuned functions, now or when Triton is imported."""

    def adopt(module: Any) -> None:
        from ktuned_triton import autotuner

        autotuner.adopt_process(module.Autotuner, mode, numerics, WinnersFile.read_snapshot(winners))

    take_over("Triton", MODULE, adopt)
