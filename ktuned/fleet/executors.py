"""All machines that workers run on: this one, and the nodes of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Self

from ktuned.fleet.executor import Environment, Executor, Worker
from ktuned.model import Role


class Executors(Executor):
    """Starts each worker on its environment's machine: ``local`` on this one, ``cluster`` on any other."""

    def __init__(self, local: Executor, cluster: Executor) -> None:
        self._local = local
        self._cluster = cluster

    @asynccontextmanager
    async def run_workers(self) -> AsyncIterator[Self]:
        """Allow both to run workers during the block."""
        async with self._local.run_workers(), self._cluster.run_workers():
            yield self

    async def start_worker(
        self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float
    ) -> Worker:
        """Start a worker, as :meth:`Executor.start_worker`."""
        executor = self._cluster if environment.host else self._local
        return await executor.start_worker(role, environment, limit_bytes=limit_bytes, deadline_s=deadline_s)

    @property
    def workers(self) -> Iterator[Worker]:
        """All workers on all machines that have not ended."""
        for executor in (self._local, self._cluster):
            yield from list(executor.workers)

    def leave_cores(self, lanes: int) -> None:
        """Leave cores of this machine to lanes."""
        self._local.leave_cores(lanes)
