"""Doubts about winners: reasons why it is not certain now that an answer's files and toolchain are unchanged.

After a start, the watcher needs time to look at every file. A lookup that comes before compares its own kernel's files
and variables itself, if that takes little time. A file that changes later is inspected, which takes as long as its
imports, or as the probe of a project's new environment; meanwhile the catalog knows that the file is suspect.
Toolchains are checked by the :class:`~ktuned.devices.Machine`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple

from ktuned.catalog import Catalog
from ktuned.devices import Machine
from ktuned.fleet import Environment
from ktuned.ipc import stamp, stamps_agree
from ktuned.model import ENVIRONMENT, Device, KernelInfo, digest_variable

MAX_FILES: Final = 100
MAX_BYTES: Final = 2**20
"""A kernel with more files or bytes is in doubt until the watcher has looked at them: a lookup has 5 ms, and reading
this much takes 2 ms."""

LOOK_S: Final = 1.0
"""After a comparison, a kernel's files are not read again for this long."""


class _FileComparison(NamedTuple):
    """One comparison of a kernel's files.

    Attributes:
        until: Until when the result counts, by the clock.
        stamps: The stamps that the files should have.
        reason: The first difference; empty if there is none.
    """

    until: float
    stamps: Mapping[str, str]
    reason: str


class Certainty:
    """Tells whether answers for a kernel can be relied on.

    Attributes:
        is_caught_up: Whether the watcher has looked at every file since the start.
    """

    def __init__(self, catalog: Catalog, machine: Machine, clock: Callable[[], float] = monotonic) -> None:
        self._catalog = catalog
        self._machine = machine
        self.is_caught_up = False
        self._clock = clock
        self._looks: dict[str, _FileComparison] = {}

    def caught_up(self) -> None:
        """Record that the watcher has looked at every file since the start."""
        self.is_caught_up = True
        self._looks.clear()

    def find_doubt(self, kernel: KernelInfo, environment: Environment, device: Device | None = None) -> str:
        """Return why the present context of a kernel is not certain; empty if it is.

        If ``device`` is on another host, the toolchain there is checked, too.
        """
        if suspect := self._catalog.find_suspicion(kernel):
            return f"{suspect} changed, or what it depends on, and is being inspected"
        reason = "" if self.is_caught_up else self._source_doubt(kernel, environment)
        if reason:
            return f"not looked at since the start: {reason}"
        environments = self._machine.environments
        reason = environments.find_doubt(environment)
        if device is not None and device.host and not reason:
            reason = environments.find_doubt(environment.with_host_of(device))
        return (
            f"the toolchain is to be probed again: {reason}"
            if reason
            else environments.describe_disagreement(environment)
        )

    def _source_doubt(self, kernel: KernelInfo, environment: Environment) -> str:
        known = self._looks.get(kernel.name)
        if known is not None and known.stamps is kernel.stamps and self._clock() < known.until:
            return known.reason
        variables = self._machine.environments.list_variables(environment)
        reason = _changed_variable(kernel, variables) or _first_difference(kernel.stamps)
        self._looks[kernel.name] = _FileComparison(self._clock() + LOOK_S, kernel.stamps, reason)
        return reason


def _changed_variable(kernel: KernelInfo, variables: Mapping[str, str]) -> str:
    """Return which of the variables that the kernel reads has a different value in this daemon's workers."""
    read = {
        name.removeprefix(ENVIRONMENT): entry for name, entry in kernel.learned.items() if name.startswith(ENVIRONMENT)
    }
    changed = (name for name, entry in read.items() if digest_variable(variables.get(name)) != entry.digest)
    return next((f"the environment variable {name} changed" for name in changed), "")


def _first_difference(stamps: Mapping[str, str]) -> str:
    """Return the first file that has changed since its inspection, or why the files are not compared here."""
    if len(stamps) > MAX_FILES or sum(map(_file_size, stamps)) > MAX_BYTES:
        return "its files are many"
    return next((f"{path} changed" for path, held in stamps.items() if not stamps_agree(held, stamp(Path(path)))), "")


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
