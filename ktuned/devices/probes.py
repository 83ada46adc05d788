"""Probes of backends and devices: on request, and after a device has failed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import anyio
from msgspec.structs import replace

from ktuned.catalog import Catalog, environment_of
from ktuned.devices.environments import Environments
from ktuned.fleet import Environment


class Probes:
    """Has every environment probed that a root has; ``directory`` is where a worker of none runs.

    ``changed`` is called when hosts were probed, and what :meth:`when_hosts_come` was given: answers may be others now.
    """

    def __init__(
        self,
        catalog: Catalog,
        environments: Environments,
        directory: str,
        *,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._listeners = [changed]
        self._catalog = catalog
        self._environments = environments
        self._directory = directory
        self._news = anyio.Event()
        self._has_failed = False
        self._due: set[str] = set()
        catalog.when_roots_change(self._news_of_roots)

    def environments(self) -> list[Environment]:
        """Return the environments of all roots, each once."""
        return list(dict.fromkeys(environment_of(root) for root in self._catalog.roots))

    def asked(self) -> list[Environment]:
        """Return the environments of all roots; without a root, the daemon's interpreter."""
        return self.environments() or [Environment(sys.executable, self._directory)]

    async def reports(self) -> list[dict[str, Any]]:
        """Return what every environment's backends are; without a root, those of the daemon's interpreter."""
        found = [await self._environments.probe(one) for one in self.asked()]
        # Roots that share an interpreter share its report.
        return [report.to_wire() for report in {id(one): one for one in found}.values()]

    def device_failed(self) -> None:
        """Note that a device may be gone: the next job must not count on it."""
        self._has_failed = True
        self._news.set()

    def host_up(self, host: str) -> None:
        """Note that workers can be started on a host."""
        self._environments.host_up(host)
        self._due.add(host)
        self._news.set()

    def when_hosts_come(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` when hosts have come, and their devices are known."""
        self._listeners.append(listener)

    def _news_of_roots(self) -> None:
        self._due.update(self._environments.hosts)
        self._news.set()

    async def run(self) -> None:
        """Probe all devices again whenever one fails, and hosts when they come; until cancelled."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            has_failed, self._has_failed = self._has_failed, False
            due, self._due = self._due & set(self._environments.hosts), set()
            for environment in self.environments():
                if has_failed:
                    await self._environments.probe(environment, again=True)
                async with anyio.create_task_group() as tasks:
                    for host in sorted(due):
                        tasks.start_soon(self._probe_host, environment, host)
            for listener in self._listeners if due else ():
                listener()

    async def _probe_host(self, environment: Environment, host: str) -> None:
        # Its packages are compared with those here.
        await self._environments.probe(environment)
        await self._environments.probe(replace(environment, host=host))
