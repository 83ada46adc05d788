"""Observer of the host: the load that others put on it, read from files, and for GPUs by a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns

import structlog

from ktuned.devices import Machine
from ktuned.fleet import CpuUse, Environment, Fleet, Usage
from ktuned.ipc import requests
from ktuned.model import Device, Role, WorkerError
from ktuned.scheduling.idle_policy import Reading

_log = structlog.get_logger()

STALE_US = 30_000_000
"""Two readings that are further apart say nothing of the last seconds."""


class HostObserver:
    """Makes readings of the machine; the first one after a pause knows nothing of the CPUs yet."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        machine: Machine,
        environments: Callable[[], Sequence[Environment]],
        deadlines: Mapping[str, float],
        usage: Usage | None = None,
    ) -> None:
        self._fleet = fleet
        self._machine = machine
        self._environments = environments
        self._deadlines = deadlines
        self._usage = usage or Usage()
        self._last: CpuUse | None = None

    async def read_host_use(self) -> Reading:
        """Return what the machine did since the last reading."""
        users = await self.count_gpu_users()
        now_us = monotonic_ns() // 1000
        last, self._last = self._last, self._usage.read_cpu_use(now_us)
        on_battery = self._usage.is_on_battery()
        if last is None or self._last is None or now_us - last.at_us > STALE_US:
            return Reading(pressure=0.0, on_battery=on_battery, gpu_users=users)
        return Reading(self._last.share_of_others_since(last), self._last.pressure_since(last), on_battery, users)

    async def is_used(self, device: Device) -> bool:
        """Return whether other programs worked on a GPU lately; they do where that is unknown."""
        return (await self.count_gpu_users()).get(device.name, 1) > 0

    async def count_gpu_users(self) -> Mapping[str, int]:
        """Ask a worker of the first environment that knows GPUs; without one there are no users."""
        for environment in self._environments():
            if any(name.startswith("cuda:") for name in self._machine.list_device_models(environment)):
                try:
                    async with self._fleet.lend_worker(Role.INSPECT, environment) as worker:
                        found, _ = await worker.send_request(
                            requests.GpuUsers(tuple(self._usage.list_own_pids())), self._deadlines
                        )
                except WorkerError as error:
                    _log.info("gpu_users_unknown", reason=error.message)
                    return {}
                return found.users
        return {}
