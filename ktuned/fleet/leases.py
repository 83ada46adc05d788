"""Leases: what lanes and slots on a cluster's nodes hold of the cluster's own account of its resources.

One lease for each GPU, or CPU, that is in use, so that ktuned and other jobs never share one by accident. It is given
back when it was not used for a while.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Final

import anyio
import msgspec
import structlog

from ktuned.bridge import CallFailed, cluster
from ktuned.fleet.bridge import Bridge
from ktuned.fleet.calls import BridgeDown, BridgeSlow
from ktuned.fleet.failures import NodeAbsent
from ktuned.fleet.node_link import CALL_S, NodeLink

_log = structlog.get_logger()

WAIT_S: Final = 20.0
"""Time to get a resource that is free: an actor's start, on a node that is busy."""

IDLE_S: Final = 30.0
"""Time that a lease is kept after its use: the next job often follows at once."""


class _Lease(msgspec.Struct, eq=False):
    """A resource that is held; ``given_at`` is when its use ended, nothing while it is used."""

    link: NodeLink
    id: str
    given_at: float | None = None


class Leases:
    """The leases of one daemon, by the names of their devices or slots.

    One is given back ``idle_s`` after its use, and waited for ``wait_s``.
    """

    def __init__(self, bridge: Bridge, *, idle_s: float = IDLE_S, wait_s: float = WAIT_S) -> None:
        self._bridge = bridge
        self._idle_s = idle_s
        self._wait_s = wait_s
        self._listeners: list[Callable[[str], None]] = []
        self._held: dict[str, _Lease] = {}
        self._lock = anyio.Lock()
        self._news = anyio.Event()

    def when_idle(self, listener: Callable[[str], None]) -> None:
        """Call ``listener`` with a device's name before its lease is given back: its workers must end."""
        self._listeners.append(listener)

    @property
    def names(self) -> list[str]:
        """The leases that are held now."""
        return list(self._held)

    async def take_device(self, link: NodeLink, name: str) -> None:
        """Hold the device of a lane; at once where it is held.

        Raises:
            NodeAbsent: another job of the cluster has it, or the node is lost.
        """
        kind, _, index = name.rpartition("/")[2].partition(":")
        async with self._lock:
            if not self._is_held(name):
                await self._take(link, name, link.gpu(int(index)) if kind == "cuda" else "")

    async def take_slot(self, link: NodeLink) -> str:
        """Hold a CPU for a compile slot; return the lease's name, for :meth:`give`.

        Raises:
            NodeAbsent: other jobs of the cluster have all, or the node is lost.
        """
        async with self._lock:
            for number in itertools.count():
                name = f"{link.info.name} slot {number}"
                lease = self._held.get(name)
                if lease is None:
                    await self._take(link, name, "")
                    return name
                if lease.given_at is not None and self._is_held(name):
                    return name
        raise AssertionError

    def give(self, name: str) -> None:
        """Note that a device or slot is not used any more."""
        if name in self._held:
            self._held[name].given_at = monotonic()
            self._news.set()

    def drop(self, link: NodeLink) -> list[str]:
        """Forget a lost node's leases; return their ids."""
        lost = {name: lease for name, lease in self._held.items() if lease.link is link}
        for name in lost:
            del self._held[name]
        return [lease.id for lease in lost.values()]

    async def run(self) -> None:
        """Give back what was not used for a while, until cancelled."""
        while True:
            waits = [lease.given_at for lease in self._held.values() if lease.given_at is not None]
            if not waits:
                self._news = anyio.Event()
                await self._news.wait()
                continue
            await anyio.sleep(max(0.0, min(waits) + self._idle_s - monotonic()))
            async with self._lock:
                for name, lease in list(self._held.items()):
                    if lease.given_at is not None and lease.given_at + self._idle_s <= monotonic():
                        del self._held[name]
                        for listener in self._listeners:
                            listener(name)
                        await self.release(lease.id)

    async def release(self, lease: str) -> None:
        """Give a lease back; without the bridge it is gone anyway."""
        with suppress(BridgeDown, BridgeSlow, CallFailed):
            await self._bridge.exchange(cluster.Release(lease), CALL_S)

    def _is_held(self, name: str) -> bool:
        lease = self._held.get(name)
        if lease is None:
            return False
        lease.given_at = None
        return True

    async def _take(self, link: NodeLink, name: str, gpu: str) -> None:
        """Hold a CPU, or the GPU of an id. Ray chooses among those that are free: others go back."""
        others: list[str] = []
        call = cluster.Lease(link.info.id, gpus=1 if gpu else 0, cpus=0 if gpu else 1, wait_s=self._wait_s)
        try:
            for _ in range(max(1, link.info.gpus)):
                leased = await self._bridge.exchange(call, self._wait_s + CALL_S)
                if leased.gpu == gpu:
                    self._held[name] = _Lease(link, leased.lease)
                    _log.debug("leased", name=name)
                    return
                others.append(leased.lease)
        except CallFailed as error:
            raise NodeAbsent(f"{name}: {error.message}", hint=error.hint) from error
        except (BridgeDown, BridgeSlow) as error:
            raise NodeAbsent(f"the node {link.info.name} was lost: {error.message}") from error
        finally:
            for lease in others:
                await self.release(lease)
        raise NodeAbsent(f"{name}: another job of the cluster has it")
