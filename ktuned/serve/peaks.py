"""The method ``peaks``: measures the limits of devices, once for each model and in its lane, and stores them.

Limits that were measured while other programs used the device are in doubt. They are measured again when the machine
is quiet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from time import time
from typing import Any

from ktuned.devices import Machine
from ktuned.fleet import NO_JOB, Environment, Fleet, Lane
from ktuned.ipc import requests
from ktuned.model import Device, FrozenStruct, Peaks, Phase, Role, WorkerError, choose_peaks
from ktuned.protocol import PEAKS, PeaksAnswer, PeaksParams
from ktuned.serve.method import Handler, Peer
from ktuned.store import Store

_DEADLINES: Mapping[str, float] = {Phase.LOAD: 120.0, Phase.TIMING: 120.0}
"""Seconds for importing torch from a cold disk, and for 12 runs of eight kinds, which together take a large GPU 3 s and
two CPU cores 15 s."""


class DevicePeaks(FrozenStruct, kw_only=True):
    """Measures limits of devices.

    Attributes:
        machine: Probes environments for their devices.
        store: Has the limits measured so far.
        fleet: Lends workers.
        environments: Returns environments whose interpreters may have torch.
        lane: Returns the lane of a device.
    """

    machine: Machine
    store: Store
    fleet: Fleet
    environments: Callable[[], Sequence[Environment]]
    lane: Callable[[Device], Lane]

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [Handler(PEAKS, self.handle_peaks)]

    async def handle_peaks(self, params: PeaksParams, peer: Peer) -> PeaksAnswer:
        """Return the stored limits; ``measure`` measures them first."""
        if params.measure:
            await self._measure_devices()
        return PeaksAnswer(tuple(self.store.load_peaks().values()))

    async def _find_devices(self) -> list[tuple[Environment, Device]]:
        """Return the devices that each interpreter sees. A device may occur several times, as some lack torch."""
        found = []
        for environment in self.environments():
            report = await self.machine.environments.probe_environment(environment)
            found += [(environment, device) for device in report.devices]
        return found

    async def _measure_device(self, environment: Environment, device: Device) -> bool:
        """Measure a device in a worker of its own, while its lane is held; return whether it worked."""
        # The gate before the lane, in the same order as a final round, so that the two cannot wait for each other.
        async with self.fleet.gate.hold_quiet(), self.lane(device).hold(NO_JOB):
            worker = await self.fleet.acquire_worker(Role.BENCH, environment)
            try:
                peaks, _ = await worker.send_request(requests.MeasurePeaks(device), _DEADLINES)
            except WorkerError as error:
                peaks = Peaks(device.model, absent={"all": error.message.splitlines()[0]}, measured=time())
            finally:
                # The worker holds gigabytes of the device's memory.
                worker.kill()
        await self.store.save_peaks(choose_peaks(self.store.load_peaks().get(device.model), peaks))
        return peaks.gbps is not None

    async def remeasure_doubtful(self) -> bool:
        """Measure the limits in doubt again; return whether there were any."""
        doubtful = {device for device, peaks in self.store.load_peaks().items() if peaks.doubt}
        if doubtful:
            await self._measure_devices(doubtful)
        return bool(doubtful)

    async def _measure_devices(self, wanted: Collection[str] | None = None) -> None:
        """Measure each device model once, or only the wanted ones."""
        done: set[str] = set()
        for environment, device in await self._find_devices():
            if device.model in done or (wanted is not None and device.model not in wanted):
                continue
            if await self._measure_device(environment, device):
                done.add(device.model)
