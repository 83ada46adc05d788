"""Doubts about winners: reasons why it is not known now whether what decided an answer is unchanged.

After a start the watcher has yet to look at every file. A lookup that is earlier compares its own kernel's files and
variables then and there, if that takes little time. A file that changes later is inspected, which takes as long as its
imports do, or as the probe of a project's new environment; the catalog knows which files these are. Toolchains are
looked at by the :class:`~ktuned.devices.Machine`.
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
"""A kernel with more is in doubt until the watcher has looked at it: a lookup has 5 ms, and reading these takes 2."""

LOOK_S: Final = 1.0
"""Files that were compared are not read again for this long."""


class _FileComparison(NamedTuple):
    """One comparison of a kernel's files: how long it counts, what they should hold, and why they do not."""

    until: float
    stamps: Mapping[str, str]
    reason: str


class Certainty:
    """Says whether answers for a kernel can be relied on; :meth:`caught_up` ends the doubts of a start.

    ``is_caught_up`` is true from then on.
    """

    def __init__(self, catalog: Catalog, machine: Machine, clock: Callable[[], float] = monotonic) -> None:
        self._catalog = catalog
        self._machine = machine
        self.is_caught_up = False
        self._clock = clock
        self._looks: dict[str, _FileComparison] = {}

    def caught_up(self) -> None:
        """Note that the watcher has looked at every file since the start."""
        self.is_caught_up = True
        self._looks.clear()

    def find_doubt(self, kernel: KernelInfo, environment: Environment, device: Device | None = None) -> str:
        """Return why the present context of a kernel is not known for certain; nothing if it is.

        Of a ``device`` on another host the toolchain there counts, too.
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
            f"the toolchain is to be probed again: {reason}" if reason else environments.describe_outdated(environment)
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
    """Return which variable that the kernel was seen to read has another value in the workers of this daemon."""
    read = {
        name.removeprefix(ENVIRONMENT): entry for name, entry in kernel.learned.items() if name.startswith(ENVIRONMENT)
    }
    changed = (name for name, entry in read.items() if digest_variable(variables.get(name)) != entry.digest)
    return next((f"the environment variable {name} changed" for name in changed), "")


def _first_difference(stamps: Mapping[str, str]) -> str:
    """Return the first file that no longer holds what was inspected, or why that is not looked at here."""
    if len(stamps) > MAX_FILES or sum(map(_file_size, stamps)) > MAX_BYTES:
        return "its files are many"
    return next((f"{path} changed" for path, held in stamps.items() if not stamps_agree(held, stamp(Path(path)))), "")


def _file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
