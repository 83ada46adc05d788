"""All machines that workers run on: this one, and the hosts of plugins' executors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Self

import anyio
import anyio.abc
import msgspec

from ktuned.fleet.executor import Environment, Executor, Worker
from ktuned.fleet.failures import HostLost
from ktuned.fleet.remote import HostEvents, RemoteExecutor, Surroundings, load_executor
from ktuned.model import Phase, Role
from ktuned.protocol import ExecutorInfo


class Executors(Executor):
    """Starts each worker on its environment's machine: ``local`` starts those on this machine, and the executor that
    reported a host starts those on that host. ``events`` are called when hosts come and go.
    """

    def __init__(self, local: Executor, surroundings: Surroundings, events: HostEvents) -> None:
        self._local = local
        self._surroundings = surroundings
        self._events = events
        self.remotes: dict[str, RemoteExecutor] = {}
        """The executors of other machines, by the names of their tables."""
        self._hosts: dict[str, RemoteExecutor] = {}
        self._tasks: anyio.abc.TaskGroup | None = None

    def apply_settings(self, tables: Mapping[str, msgspec.Struct], *, has_memory_limits: bool) -> None:
        """Give each plugin's executor its table of ``config.toml``; it is imported when the table first appears."""
        for name in tables.keys() - self.remotes.keys():
            self._add_executor(name, load_executor(name))
        for name, remote in self.remotes.items():
            remote.apply_settings(tables.get(name), has_memory_limits=has_memory_limits)

    def _add_executor(self, name: str, kind: type[RemoteExecutor]) -> None:
        def register_host(host: str, cores: int) -> None:
            self._hosts[host] = remote
            self._events.on_up(host, cores)

        remote = self.remotes[name] = kind(
            self._surroundings, msgspec.structs.replace(self._events, on_up=register_host)
        )
        if self._tasks is not None:
            self._tasks.start_soon(self._run_executor, remote)

    @asynccontextmanager
    async def run_workers(self) -> AsyncIterator[Self]:
        """Allow all executors to run workers during the block."""
        async with self._local.run_workers(), anyio.create_task_group() as tasks:
            self._tasks = tasks
            for remote in self.remotes.values():
                tasks.start_soon(self._run_executor, remote)
            try:
                yield self
            finally:
                self._tasks = None
                tasks.cancel_scope.cancel()

    async def _run_executor(self, remote: RemoteExecutor) -> None:
        async with remote.run_workers():
            await anyio.sleep_forever()

    async def start_worker(
        self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float
    ) -> Worker:
        """Start a worker, as :meth:`Executor.start_worker`."""
        executor: Executor | None = self._hosts.get(environment.host) if environment.host else self._local
        if executor is None:
            raise HostLost(environment.host, "it is not there now", Phase.SPAWN)
        return await executor.start_worker(role, environment, limit_bytes=limit_bytes, deadline_s=deadline_s)

    @property
    def workers(self) -> Iterator[Worker]:
        """All workers on all machines that have not ended."""
        for executor in (self._local, *self.remotes.values()):
            yield from list(executor.workers)

    def leave_cores(self, lanes: int) -> None:
        """Leave cores of this machine to lanes; hosts are not concerned."""
        self._local.leave_cores(lanes)

    async def await_hosts(self) -> None:
        """Wait until the executors know their hosts; give up after a while."""
        for remote in list(self.remotes.values()):
            await remote.await_hosts()

    def describe_hosts(self) -> dict[str, ExecutorInfo]:
        """Return the executors of other machines for ``status``, by name; those without settings are left out."""
        return {name: found for name, remote in self.remotes.items() if (found := remote.describe_hosts())}

    @property
    def notices(self) -> list[str]:
        """Reasons why hosts cannot be used, one line each."""
        return [line for remote in self.remotes.values() for line in remote.notices]
