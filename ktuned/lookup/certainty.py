"""The present state of kernels, and doubts about it: reasons why it is not certain that nothing has changed.

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

import msgspec

from ktuned.catalog import Catalog
from ktuned.devices import Machine
from ktuned.fleet import Environment
from ktuned.ipc import stamp_whole, stamps_agree
from ktuned.model import ENVIRONMENT, Device, KernelInfo, KtunedError, Problem, digest_variable, read_variable
from ktuned.store import Context

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


class PresentState(msgspec.Struct, frozen=True):
    """What a measurement of a problem would be made with now.

    Attributes:
        environment: The environment of the kernel's project.
        device: The device that would be measured on; None if it is not here.
        model: The device's model. If the device is not here, this is the name by which it was requested.
        context: The context of the measurement; None without a device, or if the kernel file cannot be read.
        fault: Why the kernel file cannot be read; empty if it can.
        doubt: Why the context is not certain; empty if it is.
    """

    environment: Environment
    device: Device | None
    model: str | None
    context: Context | None
    fault: str
    doubt: str


class Certainty:
    """Tells the present state of kernels, and whether answers for them can be relied on.

    Attributes:
        is_caught_up: Whether the watcher has looked at every file since the start.
    """

    def __init__(self, catalog: Catalog, machine: Machine, clock: Callable[[], float] = monotonic) -> None:
        self._catalog = catalog
        self._machine = machine
        self.is_caught_up = False
        self._clock = clock
        self._comparisons: dict[str, _FileComparison] = {}

    def record_catch_up(self) -> None:
        """Record that the watcher has looked at every file since the start."""
        self.is_caught_up = True
        self._comparisons.clear()

    def find_present_state(
        self, kernel: KernelInfo, problem: Problem, device: str | None, *, compares: bool = True
    ) -> PresentState:
        """Return the state in which a problem would be measured now, on a device by its name or model (None: any).

        ``compares`` has the same meaning as for :meth:`find_doubt`.
        """
        environment = self._catalog.find_kernel_environment(kernel)
        fault = self._catalog.find_file_fault(kernel)
        try:
            found = self._machine.find_device(environment, kernel.backend, device)
        except KtunedError:
            # The winners of its model still count.
            return PresentState(environment, None, device, None, fault, "")
        if fault:
            return PresentState(environment, found, found.model, None, fault, "")
        context = self._machine.build_context(kernel, environment, problem, found)
        doubt = self.find_doubt(kernel, environment, found, compares=compares)
        return PresentState(environment, found, found.model, context, "", doubt)

    def find_doubt(
        self,
        kernel: KernelInfo,
        environment: Environment | None = None,
        device: Device | None = None,
        *,
        compares: bool = True,
    ) -> str:
        """Return why the present context of a kernel is not certain; empty if it is.

        The ``environment`` is the kernel's own by default. If ``device`` is on another host, the toolchain there is
        checked, too. Until the watcher has caught up, the kernel's files are compared, or else (``compares``) in doubt.
        """
        environment = environment or self._catalog.find_kernel_environment(kernel)
        if suspect := self._catalog.find_suspicion(kernel):
            return f"{suspect} changed, or what it depends on, and is being inspected"
        reason = ""
        if not self.is_caught_up:
            reason = self._find_source_doubt(kernel, environment) if compares else "its files"
        if reason:
            return f"not checked since the daemon started: {reason}"
        environments = self._machine.environments
        reason = environments.find_doubt(environment)
        if device is not None and device.host and not reason:
            reason = environments.find_doubt(environment.with_host_of(device))
        return (
            f"the toolchain must be probed again: {reason}"
            if reason
            else environments.describe_disagreement(environment)
        )

    def _find_source_doubt(self, kernel: KernelInfo, environment: Environment) -> str:
        known = self._comparisons.get(kernel.name)
        if known is not None and known.stamps is kernel.stamps and self._clock() < known.until:
            return known.reason
        variables = self._machine.environments.list_variables(environment)
        reason = _find_changed_variable(kernel, variables) or _find_changed_file(kernel.stamps)
        self._comparisons[kernel.name] = _FileComparison(self._clock() + LOOK_S, kernel.stamps, reason)
        return reason


def _find_changed_variable(kernel: KernelInfo, variables: Mapping[str, str]) -> str:
    """Return which of the variables that the kernel reads has a different value in this daemon's workers."""
    read = {
        name.removeprefix(ENVIRONMENT): entry for name, entry in kernel.learned.items() if name.startswith(ENVIRONMENT)
    }
    changed = (name for name, entry in read.items() if digest_variable(read_variable(name, variables)) != entry.digest)
    return next((f"the environment variable {name} changed" for name in changed), "")


def _find_changed_file(stamps: Mapping[str, str]) -> str:
    """Return the first file that has changed since its inspection, or why the files are not compared here."""
    if len(stamps) > MAX_FILES or sum(map(_read_file_size, stamps)) > MAX_BYTES:
        return "it has too many files to compare at once"
    return next(
        (f"{path} changed" for path, held in stamps.items() if not stamps_agree(held, stamp_whole(Path(path)))), ""
    )


def _read_file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
