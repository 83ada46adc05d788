"""All machines that workers run on: this one, and the nodes of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Self

from ktuned.fleet.executor import Environment, Executor, Worker
from ktuned.ipc import replies
from ktuned.model import Device, Role


class Executors(Executor):
    """Starts each worker where its environment says: on a node by ``remote``, on this machine by ``local``.

    A class of its own, as short as it is, because the fleet is made with one executor.
    """

    def __init__(self, local: Executor, remote: Executor) -> None:
        self._local = local
        self._remote = remote

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Hold both."""
        async with self._local.running(), self._remote.running():
            yield self

    async def start(self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float) -> Worker:
        """Start a worker, as :meth:`Executor.start`."""
        executor = self._remote if environment.node else self._local
        return await executor.start(role, environment, limit_bytes=limit_bytes, deadline_s=deadline_s)

    @property
    def workers(self) -> Iterator[Worker]:
        """All workers that have not ended, anywhere."""
        yield from list(self._local.workers)
        yield from list(self._remote.workers)

    def watch_toolchain(self, node: str, observed: replies.Observed, ended: Callable[[str], None]) -> None:
        """Watch a node's toolchain, as :meth:`Executor.watch_toolchain`."""
        self._remote.watch_toolchain(node, observed, ended)

    async def take_device(self, device: Device) -> None:
        """Hold a device for a lane, as :meth:`Executor.take_device`."""
        if device.node:
            await self._remote.take_device(device)

    async def take_slot(self, node: str) -> str:
        """Hold a compile slot, as :meth:`Executor.take_slot`."""
        return await self._remote.take_slot(node) if node else ""

    def give(self, name: str) -> None:
        """Give back what was taken on a node."""
        self._remote.give(name)

    def leave_cores(self, lanes: int) -> None:
        """Keep this machine's compilers off so many cores."""
        self._local.leave_cores(lanes)
