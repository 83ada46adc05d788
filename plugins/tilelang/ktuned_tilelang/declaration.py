"""The declaration of an autotuned function: how its kernel is checked and measured."""

from __future__ import annotations

from dataclasses import dataclass

from ktuned import dropin


@dataclass(frozen=True, kw_only=True)
class Declaration(dropin.Declaration):
    """Everything besides the call that decides a measurement of a function; the call has the programs.

    Attributes:
        restored: the tensors that are restored before each run: all if it is not known which tensors the kernel writes.
        rtol: relative tolerance of the comparison with the first config's results.
        atol: absolute tolerance.
        max_mismatched_ratio: share of elements that may differ.
        skips_check: whether results are not compared.
        timeout_s: deadline of each phase of a config.
        early_stop: a config that takes this many times the best is stopped early; 0 for ktuned's default.
        timing: ``events`` or ``graph``.
    """

    restored: tuple[str, ...]
    rtol: float
    atol: float
    max_mismatched_ratio: float
    skips_check: bool
    timeout_s: float
    early_stop: float
    timing: str
