"""Workers on this machine: started, put aside from what is measured, and buried with all that they left behind."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Self

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from ktuned import observer
from ktuned.fleet import memory, orphans
from ktuned.fleet.executor import Environment, Executor
from ktuned.fleet.failures import WorkerDied
from ktuned.fleet.guard import Guard
from ktuned.fleet.process import DAEMON_MARK, StartProcess, WorkerProcess, spawn
from ktuned.ipc import Places, Trust, parent
from ktuned.model import Role, WorkerError

_log = structlog.get_logger()

COMPILE_NICENESS = 10
"""The niceness of compilers, so that they yield to what people do on the machine."""

_ASIDE = (Role.COMPILE, Role.EXPLORE)
"""Roles whose workers keep off the cores of what is measured: they work while it is."""

_REAP_S = 5.0
"""Time that an ending daemon gives its workers to end; one that sits in a driver must not hold it up."""

_GENERATIONS = 20
"""Searches for orphans after a worker's end: those that are killed may leave orphans of their own."""

WARDEN_S = 15.0
"""Interval between checks of the warden, which is started again if it was killed."""


class LocalExecutor(Executor):
    """Starts worker processes, and removes every trace of those that have ended.

    One that ``adopts`` also ends detached descendants: it kills every child of this process that it did not start, but
    for those that are ``kept`` now. Where all that is below a ``private`` directory is this process's own, the warden
    removes that. ``start_process`` starts a worker's process.
    """

    def __init__(
        self,
        *,
        scratch: Path,
        cache: Path,
        artifacts: Path,
        captures: Path,
        base_env: Mapping[str, str],
        compile_cores: Collection[int] = (),
        adopts: bool = False,
        trust: Trust | None = None,
        kept: Collection[int] = (),
        private: Path | None = None,
        last_end: Path | None = None,
        warden_s: float = WARDEN_S,
        start_process: StartProcess = subprocess.Popen,
    ) -> None:
        self._id = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.scratch = scratch / self._id
        self._artifacts = artifacts
        self._captures = captures
        self._base_env = {**base_env, DAEMON_MARK: self._id, "KTUNED_CACHE": str(cache)}
        self._compile_cores = self._all_compile_cores = frozenset(compile_cores)
        self._adopts = adopts
        self._trust = trust or Trust()
        self._warden_s = warden_s
        self._start_process = start_process
        self._kept = kept
        self.mark = f"{DAEMON_MARK}={self._id}"
        """The mark in the environment of each process that must not outlive this one."""
        self._guard = Guard(self.mark, private or self.scratch, last_end)
        self._workers: dict[int, WorkerProcess] = {}
        self._ending = anyio.Lock()
        self._tasks: anyio.abc.TaskGroup
        self._count = 0

    @property
    def workers(self) -> Collection[WorkerProcess]:
        """All workers that have not ended."""
        return self._workers.values()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Hold the warden and the tasks that bury workers; on leaving, every worker is killed and reaped."""
        shutil.rmtree(self.scratch.parent, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        if self._adopts:
            parent.adopt_descendants()
        async with self._guard.standing(), anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._keep_warden)
            try:
                yield self
            finally:
                self._tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._kill_all()

    async def start(
        self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float
    ) -> WorkerProcess:
        """Start a worker and wait until it takes requests.

        Raises:
            WorkerError: it cannot be started, or is not ready within ``deadline_s``.
        """
        self._count += 1
        scratch, places = self.scratch / str(self._count), self._places(environment)
        # In a thread: the first time, a compiler may make the observer's library.
        await anyio.to_thread.run_sync(observer.prepare_library)
        worker = spawn(
            environment,
            role=role,
            base_env=self._base_env,
            places=places,
            worker_id=f"{self._id}.{scratch.name}",
            scratch=scratch,
            start_process=self._start_process,
        )
        self._workers[worker.pid] = worker
        self._tasks.start_soon(self._watch, worker)
        if role in _ASIDE:
            self._put_aside(worker)
        if role is not Role.BENCH:
            memory.cap(worker.pid, limit_bytes)
        try:
            await worker.ready(deadline_s)
        except WorkerDied as error:
            raise WorkerError(
                f"{environment.python} cannot run a worker: {error.message}",
                hint="look in the kernel's log (`journalctl -k`) whether the machine ran out of memory"
                if error.is_outside_kill
                else "install ktuned into that interpreter, or set this root's `python`",
            ) from error
        _log.debug("worker_started", role=role, pid=worker.pid, took_s=round(monotonic() - worker.started, 3))
        return worker

    def leave_cores(self, lanes: int) -> None:
        """Keep compilers and explorers, those that run too, off so many cores, as far as there are cores.

        The first lane's core is not among the cores that the executor was made with.
        """
        # A core that the daemon may not use any more is none for its workers.
        cores = sorted(self._all_compile_cores & os.sched_getaffinity(0))
        before, self._compile_cores = self._compile_cores, frozenset(cores[max(0, min(lanes, len(cores)) - 1) :])
        if self._compile_cores != before:
            for worker in self._workers.values():
                if worker.role in _ASIDE:
                    self._pin(worker)

    def _places(self, environment: Environment) -> Places:
        return Places(
            projects={environment.project: environment.cwd},
            artifacts=str(self._artifacts),
            captures=str(self._captures),
            expected=str(self.scratch / "expected"),
            trusted=tuple(sorted(self._trust.exceptions)),
        )

    def _put_aside(self, worker: WorkerProcess) -> None:
        """Keep a worker, and all that it starts, out of the way of what is measured."""
        if worker.role is Role.COMPILE:
            try:
                os.setpriority(os.PRIO_PROCESS, worker.pid, COMPILE_NICENESS)
            except OSError as error:
                _log.debug("worker_not_put_aside", pid=worker.pid, reason=str(error))
        self._pin(worker)

    def _pin(self, worker: WorkerProcess) -> None:
        """Keep every thread of a worker, and of what it has started, on the compilers' cores."""
        for thread in memory.tree_threads(worker.pid) if self._compile_cores else ():
            try:
                os.sched_setaffinity(thread, self._compile_cores)
            except OSError as error:
                # It may have ended meanwhile.
                _log.debug("thread_not_pinned", pid=worker.pid, reason=str(error))

    async def _keep_warden(self) -> None:
        while True:
            await anyio.sleep(self._warden_s)
            self._guard.keep()

    async def _watch(self, worker: WorkerProcess) -> None:
        """Bury a worker once it is gone, whatever else happens to the daemon meanwhile."""
        await worker.gone.wait()
        await self._bury(worker)

    async def _bury(self, worker: WorkerProcess) -> None:
        if self._workers.pop(worker.pid, None) is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(worker.bury)
                await self._end_orphans()

    async def _end_orphans(self) -> None:
        # Looked for here, where workers are started, and in no thread: one just started is known.
        async with self._ending:
            for _ in range(_GENERATIONS if self._adopts else 0):
                left = orphans.children() - self._workers.keys() - {self._guard.pid, *self._kept}
                if not left:
                    break
                _log.debug("orphans_ended", count=len(left))
                await anyio.to_thread.run_sync(orphans.end, left)

    async def _kill_all(self) -> None:
        for worker in list(self._workers.values()):
            worker.kill()
        with anyio.move_on_after(_REAP_S):
            for worker in list(self._workers.values()):
                await worker.gone.wait()
                await self._bury(worker)
