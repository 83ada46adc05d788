"""Probes of backends and devices: on request, when a device has failed, and when a host has connected."""

from __future__ import annotations

import sys
from collections.abc import Callable

import anyio
from msgspec.structs import replace

from ktuned.catalog import Catalog, make_root_environment
from ktuned.devices.environments import Environments
from ktuned.fleet import Environment
from ktuned.protocol import EnvironmentInfo, Event, LaneChanged


class Probes:
    """Probes the environments of all roots.

    Args:
        catalog: Knows the roots.
        environments: Probes one environment.
        directory: Where a worker runs if there is no root.
    """

    def __init__(
        self,
        catalog: Catalog,
        environments: Environments,
        directory: str,
    ) -> None:
        self._listeners: list[Callable[[], None]] = []
        self._catalog = catalog
        self._environments = environments
        self._directory = directory
        self._wake = anyio.Event()
        self._has_failed = False
        self._hosts_to_probe: set[str] = set()
        catalog.when_roots_change(self._probe_hosts_again)

    def list_environments(self) -> list[Environment]:
        """Return the environments of all roots, each once."""
        return list(dict.fromkeys(make_root_environment(root) for root in self._catalog.roots))

    def list_probed_environments(self) -> list[Environment]:
        """Return the environments of all roots; without a root, the daemon's interpreter."""
        return self.list_environments() or [Environment(sys.executable, self._directory)]

    async def collect_reports(self) -> list[EnvironmentInfo]:
        """Probe every root's environment, or else the daemon's interpreter; return the reports."""
        found = [await self._environments.probe_environment(one) for one in self.list_probed_environments()]
        # Roots that share an interpreter share its report, which is listed once.
        return [EnvironmentInfo.from_report(report) for report in {id(one): one for one in found}.values()]

    def handle_event(self, event: Event) -> None:
        """Probe all devices again soon when one is sick: it may be gone, and the next job must not rely on it."""
        if isinstance(event, LaneChanged) and event.state == "sick":
            self._has_failed = True
            self._wake.set()

    def add_host(self, host: str) -> None:
        """Probe a host soon, on which workers can run from now on."""
        self._environments.add_host(host)
        self._hosts_to_probe.add(host)
        self._wake.set()

    def when_hosts_come(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever hosts have connected and their devices are known."""
        self._listeners.append(listener)

    def _probe_hosts_again(self) -> None:
        self._hosts_to_probe.update(self._environments.hosts)
        self._wake.set()

    async def run_until_cancelled(self) -> None:
        """Probe all devices again whenever one fails, and hosts when they connect; until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            has_failed, self._has_failed = self._has_failed, False
            hosts, self._hosts_to_probe = self._hosts_to_probe & set(self._environments.hosts), set()
            for environment in self.list_environments():
                if has_failed:
                    await self._environments.probe_environment(environment, again=True)
                async with anyio.create_task_group() as tasks:
                    for host in sorted(hosts):
                        tasks.start_soon(self._probe_host, environment, host)
            for listener in self._listeners if hosts else ():
                listener()

    async def _probe_host(self, environment: Environment, host: str) -> None:
        # Probe this machine first, because the host's packages are compared with those here.
        await self._environments.probe_environment(environment)
        await self._environments.probe_environment(replace(environment, host=host))
