"""Workers on this machine: starts them, keeps them off the measured cores, and removes everything they left behind.

User code starts processes, and these may detach. No process of a worker may outlive the worker, and no process of a
daemon may outlive the daemon, however either ends. Four nets each catch the processes that the one before misses:

1. The worker's process group is killed with it (:mod:`~ktuned.fleet.process`).
2. A process that left the group bears the worker's mark in its environment, and is found and killed by that mark
   (:mod:`~ktuned.fleet.warden`).
3. A process that has also cleared its environment is re-parented to the daemon, because a worker is the subreaper of
   its descendants, and the daemon is the subreaper of its workers. The daemon kills every child that it did not start.
4. If the daemon itself is killed, the warden, a separate process, kills every process that bears the daemon's mark.
"""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import Self

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from ktuned import observer
from ktuned.fleet import memory
from ktuned.fleet.executor import Environment, Executor
from ktuned.fleet.failures import DeadlineExpired, WorkerDied
from ktuned.fleet.process import StartProcess, WorkerProcess, spawn_worker
from ktuned.fleet.program import Programs
from ktuned.fleet.warden_process import WardenProcess
from ktuned.ipc import Places, Trust, parent
from ktuned.model import Role, WorkerError
from ktuned.observer import DAEMON_MARK

_log = structlog.get_logger()

COMPILE_NICENESS = 19
"""The niceness of compile workers, so that they take the cores that people's own programs leave: the highest there is.
Beside 15 processes with a niceness of 10 on 16 cores, a training step took as long as alone."""

_OFF_LANE_CORES = (Role.COMPILE, Role.EXPLORE)
"""Roles whose workers run while something is measured, and so must keep off the measured cores."""

_REAP_S = 5.0
"""Time that an ending daemon gives its killed workers to end. One that is stuck in a driver must not hold it up."""

_ORPHAN_SEARCHES = 20
"""How often orphans are searched for after a worker's end, because killed orphans may leave orphans of their own."""

_ORPHAN_REAP_S = 1.0
"""Deadline for a killed orphan to end."""

WARDEN_S = 15.0
"""Interval in seconds at which the warden is checked, and started again if it was killed."""


SET_IN_WORKERS = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
"""Variables of workers, unless the daemon's environment or a project sets them. Inductor's pool of processes would run
during the timing on the cores of other lanes, and a process that a config leaves behind costs the lane its worker."""


OF_SHELLS = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})
"""Variables that describe the shell which started the daemon; workers do not get them. With them, a result that depends
on all variables would be out of date whenever the daemon is started from another directory."""


def choose_worker_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of workers, given the daemon's."""
    return {**SET_IN_WORKERS, **{name: value for name, value in environ.items() if name not in OF_SHELLS}}


class LocalExecutor(Executor):
    """Starts worker processes, and removes every trace of those that have ended.

    Args:
        scratch: Each worker gets a temporary directory below it. Directories that an earlier daemon left are removed.
        cache: Where backends keep files that they can make again.
        artifacts: The directory of sealed artifacts.
        base_env: The environment of workers.
        compile_cores: The cores that compilers and explorers may use; all if empty.
        ends_orphans: Whether to kill every child of this process that it did not start.
        trust: Directories that workers may read although others may write to them.
        warden_s: Interval at which the warden is checked, in seconds.
        start_process: Starts a worker's process.
    """

    def __init__(
        self,
        *,
        scratch: Path,
        cache: Path,
        artifacts: Path,
        base_env: Mapping[str, str],
        compile_cores: Collection[int] = (),
        ends_orphans: bool = False,
        trust: Trust | None = None,
        warden_s: float = WARDEN_S,
        start_process: StartProcess = subprocess.Popen,
    ) -> None:
        self._id = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.scratch = scratch / self._id
        self._artifacts = artifacts
        self._base_env = {**base_env, DAEMON_MARK: self._id, "KTUNED_CACHE": str(cache)}
        self._compile_cores = self._all_compile_cores = frozenset(compile_cores)
        self._ends_orphans = ends_orphans
        self._trust = trust or Trust()
        self._warden_s = warden_s
        self._start_process = start_process
        self.programs = Programs({**base_env, DAEMON_MARK: self._id})
        """The children besides workers."""
        self._warden = WardenProcess(f"{DAEMON_MARK}={self._id}", self.scratch)
        self._workers: dict[int, WorkerProcess] = {}
        self._orphan_search = anyio.Lock()
        self._tasks: anyio.abc.TaskGroup
        self._start_count = 0

    @property
    def workers(self) -> Collection[WorkerProcess]:
        """All workers that have not ended."""
        return self._workers.values()

    @asynccontextmanager
    async def run_workers(self) -> AsyncIterator[Self]:
        """Run the warden and the tasks that clean up after workers; on leaving, every worker is killed and reaped."""
        shutil.rmtree(self.scratch.parent, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        if self._ends_orphans:
            parent.adopt_descendants()
        async with self._warden.keep_running(), anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._watch_warden)
            try:
                yield self
            finally:
                self._tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._kill_workers()

    async def start_worker(
        self, role: Role, environment: Environment, *, limit_bytes: int, deadline_s: float
    ) -> WorkerProcess:
        """Start a worker and wait until it takes requests.

        Raises:
            WorkerError: the worker cannot be started, or is not ready within ``deadline_s``.
        """
        self._start_count += 1
        scratch, places = self.scratch / str(self._start_count), self._build_places(environment)
        # In a thread, because a compiler may have to build the observer's library first.
        await anyio.to_thread.run_sync(observer.prepare_library)
        worker = spawn_worker(
            environment,
            role=role,
            base_env=self._base_env,
            places=places,
            worker_id=f"{self._id}.{scratch.name}",
            scratch=scratch,
            start_process=self._start_process,
        )
        self._workers[worker.pid] = worker
        self._tasks.start_soon(self._clean_up_when_gone, worker)
        if role in _OFF_LANE_CORES:
            self._keep_off_lane_cores(worker)
        if role is not Role.BENCH:
            memory.limit_data_size(worker.pid, limit_bytes)
        try:
            await worker.await_ready(deadline_s)
        except WorkerDied as error:
            raise WorkerError(
                f"{environment.python} cannot run a worker: {error.message}",
                hint="see Linux's log (`journalctl -k`): the machine may have run out of memory"
                if error.is_outside_kill
                else "install ktuned into that interpreter, or set this root's `python`",
            ) from error
        except DeadlineExpired as error:
            # No work had begun, so this must not look like the deadline of a config.
            raise WorkerError(
                f"{environment.python} did not start a worker within {deadline_s:.3g} s",
                hint="check whether the machine is overloaded or swaps, and whether that interpreter starts",
            ) from error
        _log.debug("worker_started", role=role, pid=worker.pid, took_s=round(monotonic() - worker.started, 3))
        return worker

    def leave_cores(self, lanes: int) -> None:
        """Leave cores to lanes: keep compilers and explorers off them, including those that already run.

        The first lane's core is never a compile core, so only further lanes take compile cores away.
        """
        # Only cores that the daemon itself may still use.
        cores = sorted(self._all_compile_cores & os.sched_getaffinity(0))
        before, self._compile_cores = self._compile_cores, frozenset(cores[max(0, min(lanes, len(cores)) - 1) :])
        if self._compile_cores != before:
            for worker in self._workers.values():
                if worker.role in _OFF_LANE_CORES:
                    self._pin_threads(worker)

    def _build_places(self, environment: Environment) -> Places:
        return Places(
            projects={environment.project: environment.cwd},
            artifacts=str(self._artifacts),
            expected=str(self.scratch / "expected"),
            trusted=tuple(sorted(self._trust.exceptions)),
        )

    def _keep_off_lane_cores(self, worker: WorkerProcess) -> None:
        """Keep a worker, and every process that it will start, from disturbing measurements."""
        if worker.role is Role.COMPILE:
            try:
                os.setpriority(os.PRIO_PROCESS, worker.pid, COMPILE_NICENESS)
            except OSError as error:
                _log.debug("renice_worker_failed", pid=worker.pid, reason=str(error))
        self._pin_threads(worker)

    def _pin_threads(self, worker: WorkerProcess) -> None:
        """Pin every thread of a worker and of its descendants to the compile cores."""
        for thread in memory.list_tree_threads(worker.pid) if self._compile_cores else ():
            try:
                os.sched_setaffinity(thread, self._compile_cores)
            except OSError as error:
                # The thread may have ended meanwhile.
                _log.debug("pin_thread_failed", pid=worker.pid, reason=str(error))

    async def _watch_warden(self) -> None:
        while True:
            await anyio.sleep(self._warden_s)
            self._warden.restart_if_killed()

    async def _clean_up_when_gone(self, worker: WorkerProcess) -> None:
        """Wait until a worker is gone, and remove its traces."""
        await worker.gone.wait()
        await self._clean_up_after_worker(worker)

    async def _clean_up_after_worker(self, worker: WorkerProcess) -> None:
        if self._workers.pop(worker.pid, None) is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(worker.remove_traces)
                await self._end_orphans()

    async def _end_orphans(self) -> None:
        # The search runs on the event loop, as the starts of workers do, and not in a thread. So a worker that was just
        # started is already in the table, and is not taken for an orphan.
        async with self._orphan_search:
            for _ in range(_ORPHAN_SEARCHES if self._ends_orphans else 0):
                orphans = (
                    memory.list_children(os.getpid()) - self._workers.keys() - {self._warden.pid, *self.programs.pids}
                )
                if not orphans:
                    break
                _log.debug("orphans_ended", count=len(orphans))
                await anyio.to_thread.run_sync(kill_and_reap, orphans)

    async def _kill_workers(self) -> None:
        for worker in list(self._workers.values()):
            worker.kill()
        with anyio.move_on_after(_REAP_S):
            for worker in list(self._workers.values()):
                await worker.gone.wait()
                await self._clean_up_after_worker(worker)


def kill_and_reap(pids: Collection[int]) -> None:
    """SIGKILL adopted processes and reap them. Blocks until they are gone."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                select.select([descriptor], [], [], _ORPHAN_REAP_S)
            finally:
                os.close(descriptor)
            os.waitpid(pid, os.WNOHANG)
