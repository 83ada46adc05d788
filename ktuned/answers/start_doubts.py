"""Doubts after a start: until the watcher has looked at every file, a lookup compares its own kernel's files itself.

A comparison also looks at the variables that the kernel reads. It is made only if it takes little time, and not again
for a second, so that no answer waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ktuned.answers.kernel_state import KernelState
from ktuned.devices import Environments
from ktuned.ipc import stamp_whole, stamps_agree
from ktuned.model import ALL_VARIABLES, ENVIRONMENT, KernelInfo, digest_variable, read_variable

MAX_FILES = 100
MAX_BYTES = 2**20
"""A kernel with more files or bytes is in doubt until the watcher has looked at them: a lookup has 5 ms, and reading
this much takes 2 ms."""

LOOK_S = 1.0
"""After a comparison, a kernel's files are not read again for this long."""


class _Comparison(NamedTuple):
    """One comparison of a kernel's files.

    Attributes:
        until: Until when the result counts, by the clock.
        stamps: The stamps that the files should have.
        reason: The first difference; empty if there is none.
    """

    until: float
    stamps: Mapping[str, str]
    reason: str


class StartDoubts(msgspec.Struct, eq=False):
    """Finds the doubts about kernels' files that end once the watcher has looked at every file.

    Attributes:
        are_over: Whether it has.
    """

    environments: Environments
    clock: Callable[[], float] = monotonic
    are_over: bool = False
    _comparisons: dict[str, _Comparison] = {}

    def end_doubts(self) -> None:
        """Record that the watcher has looked at every file since the start."""
        self.are_over = True
        self._comparisons.clear()

    def find_doubt(self, state: KernelState, *, compares: bool = True) -> str:
        """Return why a kernel's files may differ from its state; empty if they do not.

        Until the watcher has caught up, the files are compared, or else (``compares``) in doubt.
        """
        if self.are_over:
            return ""
        reason = self._compare_files(state) if compares else "its files"
        return f"not checked since the daemon started: {reason}" if reason else ""

    def _compare_files(self, state: KernelState) -> str:
        kernel = state.kernel
        known = self._comparisons.get(kernel.name)
        if known is not None and known.stamps is kernel.stamps and self.clock() < known.until:
            return known.reason
        variables = self.environments.list_variables(state.environment)
        reason = _find_changed_variable(kernel, variables) or _find_changed_file(kernel.stamps)
        self._comparisons[kernel.name] = _Comparison(self.clock() + LOOK_S, kernel.stamps, reason)
        return reason


def _find_changed_variable(kernel: KernelInfo, variables: Mapping[str, str]) -> str:
    """Return which of the variables that the kernel reads has a different value in this daemon's workers."""
    read = {
        name.removeprefix(ENVIRONMENT): entry for name, entry in kernel.learned.items() if name.startswith(ENVIRONMENT)
    }
    changed = (
        name
        for name, entry in read.items()
        if replace(entry, digest=digest_variable(read_variable(name, variables))).decisive != entry.decisive
    )
    for name in changed:
        named = "an environment variable" if name == ALL_VARIABLES else f"the environment variable {name}"
        return f"{named} changed"
    return ""


def _find_changed_file(stamps: Mapping[str, str]) -> str:
    """Return the first file that has changed since its inspection, or why the files are not compared here."""
    if len(stamps) > MAX_FILES or sum(map(_read_file_size, stamps)) > MAX_BYTES:
        return "it has too many files to compare at once"
    changed = (path for path, held in stamps.items() if not stamps_agree(held, stamp_whole(Path(path))))
    return next((f"{path} changed" for path in changed), "")


def _read_file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
