"""Probes of backends and devices: on request, and after a device has failed."""

from __future__ import annotations

import sys
from typing import Any

import anyio

from ktuned.catalog import Catalog, environment_of
from ktuned.devices.machine import Machine
from ktuned.fleet import Environment


class Probes:
    """Has the machine probed for every environment that a root has; ``directory`` is where a worker of none runs."""

    def __init__(self, catalog: Catalog, machine: Machine, directory: str) -> None:
        self._catalog = catalog
        self._machine = machine
        self._directory = directory
        self._device_failed = anyio.Event()

    def environments(self) -> list[Environment]:
        """Return the environments of all roots, each once."""
        return list(dict.fromkeys(environment_of(root) for root in self._catalog.roots))

    def asked(self) -> list[Environment]:
        """Return the environments of all roots; without a root, the daemon's interpreter."""
        return self.environments() or [Environment(sys.executable, self._directory)]

    async def reports(self) -> list[dict[str, Any]]:
        """Return what every environment's backends are; without a root, those of the daemon's interpreter."""
        found = [await self._machine.probe(one) for one in self.asked()]
        # Roots that share an interpreter share its report.
        return [report.to_wire() for report in {id(one): one for one in found}.values()]

    def device_failed(self) -> None:
        """Note that a device may be gone: the next job must not count on it."""
        self._device_failed.set()

    async def run(self) -> None:
        """Probe all devices again whenever one fails; until cancelled."""
        while True:
            await self._device_failed.wait()
            self._device_failed = anyio.Event()
            for environment in self.environments():
                await self._machine.probe(environment, again=True)
