"""Leases: GPUs and CPUs that ktuned holds in the cluster's own account, so that other jobs do not use them meanwhile.

There is one lease for each GPU or CPU in use. A GPU's lease serves all requests on the device; a CPU's lease serves one
compile at a time. A lease is given back after :data:`IDLE_S` without use. Before that, the workers on its device are
ended, because their contexts hold the device's memory. If another job has the resource, the request fails with
``not_leased``, and the lane counts as having lost its host.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from time import monotonic
from typing import Final

import anyio
import msgspec
import structlog

from ktuned.bridge import CallFailed
from ktuned.fleet import Bridge, BridgeDown, BridgeSlow
from ktuned_ray import cluster_calls
from ktuned_ray.node_link import CALL_S, NodeLink

_log = structlog.get_logger()

WAIT_S: Final = 20.0
"""Deadline in seconds for getting a free resource: an actor must start, on a node that may be busy."""

IDLE_S: Final = 30.0
"""How long a lease is kept after its use, in seconds: the next job often follows at once."""


class _Lease(msgspec.Struct, eq=False):
    """A resource that is held. ``uses`` counts the requests that use it now, ``idle_since`` is the end of the last."""

    link: NodeLink
    id: str
    device: str
    uses: int = 0
    idle_since: float = 0.0


class Leases:
    """The leases of one daemon.

    Args:
        bridge: The bridge to the cluster.
        end_device: Ends the workers on a device; called before its lease is given back.
        idle_s: How long an unused lease is kept, in seconds.
        wait_s: How long to wait for a resource, in seconds.
    """

    def __init__(
        self, bridge: Bridge, end_device: Callable[[str], None], *, idle_s: float = IDLE_S, wait_s: float = WAIT_S
    ) -> None:
        self._bridge = bridge
        self._end_device = end_device
        self._idle_s = idle_s
        self._wait_s = wait_s
        self._leases: list[_Lease] = []
        self._lock = anyio.Lock()
        self._lease_idle = anyio.Event()

    @property
    def devices(self) -> list[str]:
        """The resources held now: devices by name, and an empty name for a compile's CPU."""
        return [lease.device for lease in self._leases]

    @asynccontextmanager
    async def hold_resource(self, link: NodeLink, device: str | None) -> AsyncIterator[None]:
        """Hold a resource for the block; without a wait if it is held already.

        Args:
            link: The node.
            device: The device's name; empty for a compile's CPU, ``None`` for nothing.

        Raises:
            CallFailed: other jobs of the cluster have it.
            BridgeDown, BridgeSlow: the node is lost.
        """
        if device is None:
            yield
            return
        async with self._lock:
            lease = self._find_lease(link, device)
            if lease is None:
                lease = await self._take_lease(link, device)
                self._leases.append(lease)
            lease.uses += 1
        try:
            yield
        finally:
            lease.uses -= 1
            lease.idle_since = monotonic()
            self._lease_idle.set()

    def _find_lease(self, link: NodeLink, device: str) -> _Lease | None:
        """Return the lease of a device, or an unused one of a CPU, if there is one."""
        alike = (lease for lease in self._leases if lease.link is link and lease.device == device)
        return next((lease for lease in alike if device or not lease.uses), None)

    def forget_node(self, link: NodeLink) -> list[str]:
        """Forget a lost node's leases; return their ids."""
        lost = [lease for lease in self._leases if lease.link is link]
        self._leases = [lease for lease in self._leases if lease.link is not link]
        return [lease.id for lease in lost]

    async def return_idle_leases(self) -> None:
        """Give leases back that were not used for a while, until cancelled."""
        while True:
            idle_since = [lease.idle_since for lease in self._leases if not lease.uses]
            if not idle_since:
                self._lease_idle = anyio.Event()
                await self._lease_idle.wait()
                continue
            await anyio.sleep(max(0.0, min(idle_since) + self._idle_s - monotonic()))
            async with self._lock:
                for lease in [
                    known for known in self._leases if not known.uses and known.idle_since + self._idle_s <= monotonic()
                ]:
                    self._leases.remove(lease)
                    if lease.device:
                        self._end_device(lease.device)
                    await self.release_lease(lease.id)

    async def release_lease(self, lease: str) -> None:
        """Give a lease back. If the bridge is down, the lease is gone with it."""
        with suppress(BridgeDown, BridgeSlow, CallFailed):
            await self._bridge.call_service(cluster_calls.Release(lease), CALL_S)

    async def _take_lease(self, link: NodeLink, device: str) -> _Lease:
        """Get a CPU, or the device's GPU. Ray chooses among free GPUs: take more until it fits, return the others."""
        kind, _, index = device.rpartition("/")[2].partition(":")
        gpu = link.find_gpu_id(int(index)) if kind == "cuda" else ""
        surplus_leases: list[str] = []
        call = cluster_calls.Lease(link.info.id, gpus=1 if gpu else 0, cpus=0 if gpu else 1, wait_s=self._wait_s)
        try:
            for _ in range(max(1, link.info.gpus)):
                leased = await self._bridge.call_service(call, self._wait_s + CALL_S)
                if leased.gpu == gpu:
                    _log.debug("leased", node=link.info.name, device=device)
                    return _Lease(link, leased.lease, device)
                surplus_leases.append(leased.lease)
        finally:
            for other in surplus_leases:
                await self.release_lease(other)
        raise CallFailed("not_leased", f"another job of the cluster has {device}")
