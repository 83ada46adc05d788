"""The declaration of an autotuned function: how its kernel is checked and measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from ktuned.dropin import digest_of
from ktuned.model import TOLERANCE


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """Everything besides the call that decides a measurement of a function; the call has the programs.

    Attributes:
        module: the function's module.
        qualname: its name there.
        specialize: the problem's keys, which are its tuning key.
        restored: the tensors that are restored before each run: all, if it is not known which the kernel writes.
        rtol: relative tolerance of the comparison with the first config's results.
        atol: absolute tolerance.
        max_mismatched_ratio: share of elements that may differ.
        skips_check: whether results are not compared.
        timeout_s: deadline of each phase of a config.
        early_stop: a config that takes this many times the best is stopped early; 0 for ktuned's default.
        timing: ``events`` or ``graph``.
        variables: the application's environment variables that change what is compiled.
        numerics: ``exact`` if a winner must reproduce the first config's bits, else ``tolerance``.
    """

    module: str
    qualname: str
    specialize: tuple[str, ...]
    restored: tuple[str, ...]
    rtol: float
    atol: float
    max_mismatched_ratio: float
    skips_check: bool
    timeout_s: float
    early_stop: float
    timing: str
    variables: tuple[tuple[str, str], ...]
    numerics: str = TOLERANCE

    @property
    def identity(self) -> str:
        """Digest of the declaration and the interpreter; the same in every process that has the function."""
        return digest_of(json.dumps([sys.executable, self.to_plain()], sort_keys=True))

    def to_plain(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        plain = {**asdict(self), "variables": dict(self.variables)}
        if self.numerics == TOLERANCE:
            # So that the identity of all other functions stays what it was before there was a choice.
            del plain["numerics"]
        return plain

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Self:
        """Read :meth:`to_plain`'s data."""
        sequences = {name: tuple(data[name]) for name in ("specialize", "restored")}
        return cls(**{**data, **sequences, "variables": tuple(data["variables"].items())})
