"""All workers of a daemon: started when needed, reused while they behave, replaced by a warm spare when killed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any, Self

import anyio
import anyio.abc
import anyio.to_thread
import structlog

from ktuned.fleet import memory, orphans
from ktuned.fleet.failures import WorkerDied, is_outside_kill
from ktuned.fleet.guard import Guard
from ktuned.fleet.health import Health
from ktuned.fleet.priority_semaphore import RankOf, Turns
from ktuned.fleet.process import DAEMON_MARK, Environment, WorkerProcess, spawn
from ktuned.fleet.quiet import QuietGate
from ktuned.model import WorkerError

_log = structlog.get_logger()

IDLE_S = 60.0
"""An idle worker is let go after this long: a bench worker holds torch, some 300 MiB."""

IDLE_S_OF = {"inspect": 900.0, "explore": 900.0}
"""Who waits longer: what reads a save holds some 30 MiB, and an author thinks for minutes between two of them."""

MAX_IDLE = 8
"""Idle workers of one role, environment and device; a job's compile workers come back all at once."""

COMPILE_NICENESS = 10
"""How far compilers stand back from what people do on the machine."""

MAX_REQUESTS = 500
WORN_SHARE = 0.25
"""A worker is replaced after this many requests, or when it has grown by this part of what it may use since it had
settled: what loaded code leaks must not add up until an innocent config is stopped for it."""

TOLERATED_FAILURES = 3
"""Starts of a worker that may fail in a row before there is a pause between them."""

_REAP_S = 5.0
"""How long an ending fleet waits for its workers' ends; one that sits in a driver must not keep the daemon."""

_GENERATIONS = 20
"""How often orphans are looked for after a worker's end: those that are ended may leave orphans of their own."""

_MEMORY_S = 0.2
"""How often workers' memory is looked at."""

BENCH_MODULES = ("torch", "safetensors.torch")
"""What a bench worker needs besides its backend; a spare has imported it."""


class Fleet:
    """Spawns, lends, recycles and buries worker processes.

    ``spawn_s`` is how long one may take to start; it and ``keeps_spares`` may be changed at any time.

    One that ``adopts`` ends what outlives a worker, in whatever way it detached itself: it takes every child of this
    process that it did not start for such, so the process must start none besides.
    """

    def __init__(
        self,
        *,
        scratch: Path,
        cache: Path,
        base_env: Mapping[str, str],
        compile_slots: int,
        compile_cores: frozenset[int],
        spawn_s: float,
        memory_limits: tuple[int, int] | None = None,
        keeps_spares: bool = True,
        adopts: bool = False,
        rank_of: RankOf = lambda job: 0,
    ) -> None:
        self.gate = QuietGate()
        self.keeps_spares = keeps_spares
        self._adopts = adopts
        self.compile_slots = Turns(compile_slots, rank_of=rank_of)
        self._id = f"{os.getpid()}-{secrets.token_hex(4)}"
        self.scratch = scratch / self._id
        self._guard = Guard(f"{DAEMON_MARK}={self._id}", self.scratch)
        self._compile_cores = self._all_compile_cores = compile_cores
        self.spawn_s = spawn_s
        self._base_env = {**base_env, DAEMON_MARK: self._id, "KTUNED_CACHE": str(cache)}
        self._workers: dict[int, WorkerProcess] = {}
        self._idle: dict[tuple[str, Environment], list[tuple[float, WorkerProcess]]] = {}
        self._spares_under_way: dict[tuple[str, Environment], list[anyio.Event]] = {}
        self._spares_awaited: Counter[tuple[str, Environment]] = Counter()
        self._health: dict[tuple[str, Environment], Health] = {}
        bench_bytes, compile_bytes = memory_limits or memory.default_limits(compile_slots)
        self._limits = {"bench": bench_bytes, "compile": compile_bytes, "inspect": bench_bytes, "explore": bench_bytes}
        self._busy = anyio.Event()
        self._ending = anyio.Lock()
        self._tasks: anyio.abc.TaskGroup
        self._closing = False
        self._count = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Hold the fleet's tasks and its warden; on leaving, every worker is killed and reaped."""
        shutil.rmtree(self.scratch.parent, ignore_errors=True)
        self.scratch.mkdir(parents=True)
        if self._adopts:
            orphans.adopt()
        async with self._guard.standing(), anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._retire_idle)
            self._tasks.start_soon(self._watch_memory)
            try:
                yield self
            finally:
                self._closing = True
                self._tasks.cancel_scope.cancel()
                with anyio.CancelScope(shield=True):
                    await self._kill_all()

    def resize(self, compile_slots: int, memory_limits: tuple[int, int]) -> None:
        """Follow new settings; what runs goes on, and counts under the new limits."""
        self.compile_slots.total_tokens = compile_slots
        self._limits["bench"], self._limits["compile"] = memory_limits
        self._limits["inspect"] = self._limits["explore"] = memory_limits[0]

    def leave_cores(self, lanes: int) -> None:
        """Keep compilers off one core for each lane, as far as there are cores; those that are up stay where they are.

        The first lane's core is not among the cores that the fleet was made with.
        """
        cores = sorted(self._all_compile_cores)
        self._compile_cores = frozenset(cores[max(0, min(lanes, len(cores)) - 1) :])

    @asynccontextmanager
    async def lend(self, role: str, environment: Environment) -> AsyncIterator[WorkerProcess]:
        """Lend a worker for some requests; one that is still alive afterwards is kept for the next.

        Raises:
            WorkerError: it cannot be started.
        """
        worker = await self.acquire(role, environment)
        try:
            yield worker
        except BaseException:
            # Whatever went wrong, its state cannot be known; a worker costs less than a doubt.
            worker.kill()
            raise
        self.release(environment, worker)

    async def acquire(self, role: str, environment: Environment, seat: str = "") -> WorkerProcess:
        """Return an idle worker of that role and environment, or a new one; give it back by :meth:`release`.

        ``seat`` is the device that it works on: one that has worked there before is preferred, for it has its context
        there; one that has worked on another device is left alone.

        Raises:
            WorkerError: it cannot be started, or could not so often that it is not tried again yet.
        """
        idle = self._idle.setdefault((role, environment), [])
        while True:
            worker = _take(idle, seat)
            if worker is not None:
                worker.seat = seat
                self._busy.set()
                return worker
            under_way = self._spares_under_way.setdefault((role, environment), [])
            if self._spares_awaited[role, environment] < len(under_way):
                # A spare that is half started is there sooner than a worker that is not begun; but only for one.
                self._spares_awaited[role, environment] += 1
                try:
                    with anyio.move_on_after(self.spawn_s):
                        await under_way[0].wait()
                        continue
                finally:
                    self._spares_awaited[role, environment] -= 1
            worker = await self._spawn(role, environment)
            worker.seat = seat
            return worker

    def release(self, environment: Environment, worker: WorkerProcess) -> None:
        """Take a worker back; it idles until it is lent again or :data:`IDLE_S` have passed."""
        idle = self._idle.setdefault((worker.role, environment), [])
        if not worker.settled_bytes:
            worker.settle()
        alike = sum(other.seat == worker.seat for _, other in idle)
        if not worker.is_alive or self._closing or alike >= MAX_IDLE or self.is_worn(worker):
            worker.kill()
            return
        idle.append((monotonic(), worker))

    def is_worn(self, worker: WorkerProcess) -> bool:
        """Tell whether a worker is due to be replaced, between two requests."""
        grown = worker.memory_bytes - worker.settled_bytes
        return worker.requests >= MAX_REQUESTS or grown > WORN_SHARE * self._limits[worker.role]

    def prepare_spares(self, role: str, environment: Environment, backend: str, count: int = 1) -> None:
        """Have so many idle workers of that role ready in the background, if any are kept; they import the backend."""
        key = (role, environment)
        under_way = self._spares_under_way.setdefault(key, [])
        there = sum(worker.is_alive and not worker.seat for _, worker in self._idle.get(key, ()))
        for _ in range(0 if self._closing or not self.keeps_spares else count - there - len(under_way)):
            made = anyio.Event()
            under_way.append(made)
            self._tasks.start_soon(self._make_spare, role, environment, backend, made)

    async def _make_spare(self, role: str, environment: Environment, backend: str, made: anyio.Event) -> None:
        try:
            # Not lent: whoever acquires one waits for the spare, which is this one.
            worker = await self._spawn(role, environment)
            try:
                request = {"op": "prepare", "backends": [backend], "modules": list(BENCH_MODULES)}
                await worker.call(request, {"load": self.spawn_s}, first_phase="load")
            except BaseException:
                worker.kill()
                raise
            self.release(environment, worker)
        except WorkerError as error:
            # The lane will meet the same error when it needs the worker, and tell it then.
            _log.info("spare_failed", role=role, reason=error.message)
        finally:
            self._spares_under_way[role, environment].remove(made)
            made.set()

    async def _spawn(self, role: str, environment: Environment) -> WorkerProcess:
        health = self._health.setdefault((role, environment), Health(tolerated=TOLERATED_FAILURES))
        if health.pause_s:
            raise WorkerError(
                f"{environment.python} failed to run a worker {health.failures} times in a row and is left alone for "
                f"{health.pause_s:.0f} s: {health.reason}",
                hint="mend that interpreter; `ktuned doctor` says more",
            )
        try:
            worker = await self._start(role, environment)
        except WorkerError as error:
            if not is_outside_kill(error):
                health.failed(error.message)
            raise
        health.succeeded()
        return worker

    async def _start(self, role: str, environment: Environment) -> WorkerProcess:
        self._count += 1
        worker_id = f"{self._id}.{self._count}"
        worker = spawn(
            environment,
            role=role,
            base_env=self._base_env,
            worker_id=worker_id,
            scratch=self.scratch / str(self._count),
        )
        self._workers[worker.pid] = worker
        self._busy.set()
        self._tasks.start_soon(self._watch, worker)
        if role == "compile":
            self._put_aside(worker)
        if role != "bench":
            memory.cap(worker.pid, self._limits[role])
        try:
            await worker.ready(self.spawn_s)
        except WorkerDied as error:
            raise WorkerError(
                f"{environment.python} cannot run a worker: {error.message}",
                hint="install ktuned into that interpreter, or set this root's `python`",
            ) from error
        _log.debug("worker_started", role=role, pid=worker.pid)
        return worker

    def _put_aside(self, worker: WorkerProcess) -> None:
        """Keep a compile worker, and all that it starts, out of the way of what is measured."""
        try:
            os.setpriority(os.PRIO_PROCESS, worker.pid, COMPILE_NICENESS)
            if self._compile_cores:
                os.sched_setaffinity(worker.pid, self._compile_cores)
        except OSError as error:
            _log.debug("worker_not_put_aside", pid=worker.pid, reason=str(error))

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
                left = orphans.children() - self._workers.keys() - {self._guard.pid}
                if not left:
                    break
                _log.debug("orphans_ended", count=len(left))
                await anyio.to_thread.run_sync(orphans.end, left)

    async def _retire_idle(self) -> None:
        while True:
            await anyio.sleep(IDLE_S / 4)
            self._guard.keep()
            for idle in self._idle.values():
                while idle and monotonic() - idle[0][0] > IDLE_S_OF.get(idle[0][1].role, IDLE_S):
                    idle.pop(0)[1].kill()

    async def _watch_memory(self) -> None:
        """Stop the worker that outgrows its limit, before the machine suffers."""
        while True:
            idle = self._idle_pids()
            busy = [worker for worker in self._workers.values() if worker.pid not in idle]
            if not busy:
                self._busy = anyio.Event()
                await self._busy.wait()
            for worker in busy:
                worker.memory_bytes = memory.tree_bytes(worker.pid)
                limit = self._limits[worker.role]
                if worker.memory_bytes > limit:
                    used, allowed = worker.memory_bytes / 2**30, limit / 2**30
                    worker.stop(f"out of memory: the worker used {used:.1f} GiB of the {allowed:.1f} GiB it may")
            await anyio.sleep(_MEMORY_S)

    def _idle_pids(self) -> set[int]:
        return {worker.pid for waiting in self._idle.values() for _, worker in waiting}

    @property
    def notices(self) -> list[str]:
        """What keeps workers from starting now, one line each."""
        return [
            f"{environment.python} runs no {role} worker, tried again in {health.pause_s:.0f} s: {health.reason}"
            for (role, environment), health in self._health.items()
            if health.is_sick
        ]

    async def _kill_all(self) -> None:
        for worker in list(self._workers.values()):
            worker.kill()
        with anyio.move_on_after(_REAP_S):
            for worker in list(self._workers.values()):
                await worker.gone.wait()
                await self._bury(worker)

    def describe(self) -> list[dict[str, Any]]:
        """Return every worker for a status: ``pid role state age_s requests memory_bytes``."""
        idle = self._idle_pids()
        return [
            {
                "pid": worker.pid,
                "role": worker.role,
                "state": "idle" if worker.pid in idle else "busy",
                "age_s": round(monotonic() - worker.started, 3),
                "requests": worker.requests,
                "memory_bytes": worker.memory_bytes,
            }
            for worker in self._workers.values()
        ]


def _take(idle: list[tuple[float, WorkerProcess]], seat: str) -> WorkerProcess | None:
    """Take out the worker that idles for the shortest time of those that know a seat, else of those that know none."""
    for wanted in (seat, ""):
        for place in range(len(idle) - 1, -1, -1):
            worker = idle[place][1]
            if not worker.is_alive:
                del idle[place]
            elif worker.seat == wanted:
                del idle[place]
                return worker
    return None
