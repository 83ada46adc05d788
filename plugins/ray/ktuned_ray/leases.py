"""Leases: what lanes and slots on a cluster's nodes hold of the cluster's own account of its resources.

One lease for each GPU, or CPU, that is in use, so that ktuned and other jobs never share one by accident. It is given
back when it was not used for a while.
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
"""Time to get a resource that is free: an actor's start, on a node that is busy."""

IDLE_S: Final = 30.0
"""Time that a lease is kept after its use: the next job often follows at once."""


class _Lease(msgspec.Struct, eq=False):
    """A resource that is held, for so many requests at once; ``given_at`` is when the last one of them ended."""

    link: NodeLink
    id: str
    device: str
    uses: int = 0
    given_at: float = 0.0


class Leases:
    """The leases of one daemon.

    One is given back ``idle_s`` after its use, and waited for ``wait_s``. ``end_device`` is called before that of a
    device goes: its workers must end.
    """

    def __init__(
        self, bridge: Bridge, end_device: Callable[[str], None], *, idle_s: float = IDLE_S, wait_s: float = WAIT_S
    ) -> None:
        self._bridge = bridge
        self._end_device = end_device
        self._idle_s = idle_s
        self._wait_s = wait_s
        self._held: list[_Lease] = []
        self._lock = anyio.Lock()
        self._news = anyio.Event()

    @property
    def devices(self) -> list[str]:
        """What is held now: devices by name, a CPU for a compile as an empty one."""
        return [lease.device for lease in self._held]

    @asynccontextmanager
    async def held(self, link: NodeLink, device: str | None) -> AsyncIterator[None]:
        """Hold a device, or a CPU for a compile (an empty name), or nothing (``None``); at once where it is held.

        Raises:
            CallFailed: other jobs of the cluster have it.
            BridgeDown, BridgeSlow: the node is lost.
        """
        if device is None:
            yield
            return
        async with self._lock:
            lease = self._find(link, device)
            if lease is None:
                lease = await self._take(link, device)
                self._held.append(lease)
            lease.uses += 1
        try:
            yield
        finally:
            lease.uses -= 1
            lease.given_at = monotonic()
            self._news.set()

    def _find(self, link: NodeLink, device: str) -> _Lease | None:
        """Return the lease of a device, or one of a CPU that no compile uses."""
        alike = (lease for lease in self._held if lease.link is link and lease.device == device)
        return next((lease for lease in alike if device or not lease.uses), None)

    def drop(self, link: NodeLink) -> list[str]:
        """Forget a lost node's leases; return their ids."""
        lost = [lease for lease in self._held if lease.link is link]
        self._held = [lease for lease in self._held if lease.link is not link]
        return [lease.id for lease in lost]

    async def run(self) -> None:
        """Give back what was not used for a while, until cancelled."""
        while True:
            waits = [lease.given_at for lease in self._held if not lease.uses]
            if not waits:
                self._news = anyio.Event()
                await self._news.wait()
                continue
            await anyio.sleep(max(0.0, min(waits) + self._idle_s - monotonic()))
            async with self._lock:
                for lease in [one for one in self._held if not one.uses and one.given_at + self._idle_s <= monotonic()]:
                    self._held.remove(lease)
                    if lease.device:
                        self._end_device(lease.device)
                    await self.release(lease.id)

    async def release(self, lease: str) -> None:
        """Give a lease back; without the bridge it is gone anyway."""
        with suppress(BridgeDown, BridgeSlow, CallFailed):
            await self._bridge.exchange(cluster_calls.Release(lease), CALL_S)

    async def _take(self, link: NodeLink, device: str) -> _Lease:
        """Hold a CPU, or the device's GPU. Ray chooses among those that are free: others go back."""
        kind, _, index = device.rpartition("/")[2].partition(":")
        gpu = link.gpu(int(index)) if kind == "cuda" else ""
        others: list[str] = []
        call = cluster_calls.Lease(link.info.id, gpus=1 if gpu else 0, cpus=0 if gpu else 1, wait_s=self._wait_s)
        try:
            for _ in range(max(1, link.info.gpus)):
                leased = await self._bridge.exchange(call, self._wait_s + CALL_S)
                if leased.gpu == gpu:
                    _log.debug("leased", node=link.info.name, device=device)
                    return _Lease(link, leased.lease, device)
                others.append(leased.lease)
        finally:
            for other in others:
                await self.release(other)
        raise CallFailed("not_leased", f"another job of the cluster has {device}")
