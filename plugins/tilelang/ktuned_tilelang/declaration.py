"""What an autotuned function's kernel is declared from, besides the call: how it is checked and measured."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

from ktuned.dropin import digest_of
from ktuned.model import TOLERANCE


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """All that decides a measurement of a function, besides the call, which has its programs.

    Attributes:
        module: the function's module.
        qualname: its name there.
        specialize: the problem keys that are its tuning key.
        restored: the tensors that each run finds as they were; all, where it is not known what the kernel writes.
        rtol: relative tolerance of the comparison with the first config's results.
        atol: absolute tolerance.
        max_mismatched_ratio: share of elements that may differ.
        skips_check: whether nothing is compared.
        timeout_s: deadline of each phase of a config.
        early_stop: how many times the best a config may take, or 0 for ktuned's own.
        timing: ``events`` or ``graph``.
        variables: the application's variables that change what is compiled.
        numerics: whether a winner must leave the first config's bits.
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
        """The digest of all of this and of the interpreter, the same in every process that has the function."""
        return digest_of(json.dumps([sys.executable, self.to_plain()], sort_keys=True))

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain data."""
        found = {**asdict(self), "variables": dict(self.variables)}
        if self.numerics == TOLERANCE:
            # Functions of applications that say nothing are who they were.
            del found["numerics"]
        return found
