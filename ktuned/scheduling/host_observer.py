"""Observer of the host: the load by other programs, read from files for CPUs and asked of a worker for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns

import structlog

from ktuned.devices import Machine
from ktuned.fleet import CpuUse, Environment, Fleet, Usage
from ktuned.ipc import requests
from ktuned.model import Role, WorkerError
from ktuned.scheduling.idle_policy import Reading

_log = structlog.get_logger()

STALE_US = 30_000_000
"""Two readings that are further apart than this say nothing about the last seconds."""


class HostObserver:
    """Takes readings of the machine's use. The first reading after a pause does not know the use of the CPUs."""

    def __init__(
        self,
        *,
        fleet: Fleet,
        machine: Machine,
        environments: Callable[[], Sequence[Environment]],
        usage: Usage | None = None,
    ) -> None:
        self._fleet = fleet
        self._machine = machine
        self._environments = environments
        self._usage = usage or Usage()
        self._last: CpuUse | None = None

    async def read_host_use(self) -> Reading:
        """Return the machine's use since the last reading."""
        users = await self.count_gpu_users()
        now_us = monotonic_ns() // 1000
        last, self._last = self._last, self._usage.read_cpu_use(now_us)
        on_battery = self._usage.is_on_battery()
        if last is None or self._last is None or now_us - last.at_us > STALE_US:
            return Reading(pressure=0.0, on_battery=on_battery, gpu_users=users)
        return Reading(self._last.share_of_others_since(last), self._last.pressure_since(last), on_battery, users)

    async def count_gpu_users(self) -> Mapping[str, int]:
        """Return the number of other processes on each GPU, as a worker of the first environment with GPUs sees them.

        The result is empty if there is no such environment, or if its worker fails.
        """
        for environment in self._environments():
            if any(name.startswith("cuda:") for name in self._machine.list_device_models(environment)):
                try:
                    async with self._fleet.lend_worker(Role.INSPECT, environment) as worker:
                        found, _ = await worker.send_request(
                            requests.GpuUsers(tuple(self._usage.list_own_pids())), self._fleet.deadlines
                        )
                except WorkerError as error:
                    _log.info("gpu_users_unknown", reason=error.message)
                    return {}
                return found.users
        return {}
