"""All workers of a daemon: started when needed, reused while they behave, replaced by a warm spare when killed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from typing import Any, Self

import anyio
import anyio.abc
import msgspec
import structlog

from ktuned.fleet import memory
from ktuned.fleet.executor import Environment, Executor, KernelCode, Worker
from ktuned.fleet.failures import is_outside_kill
from ktuned.fleet.front_ends import FrontEnds
from ktuned.fleet.health import FIRST_PAUSE_S, Health
from ktuned.fleet.idle import KEPT_LOADED, IdleWorkers
from ktuned.fleet.pace import Pace
from ktuned.fleet.priority_semaphore import RankOf, Turns
from ktuned.fleet.quiet import QuietGate
from ktuned.fleet.spares import BENCH_MODULES, Spares
from ktuned.ipc import requests
from ktuned.model import Device, Phase, Role, WorkerError

_log = structlog.get_logger()

IDLE_S_OF = {Role.INSPECT: 900.0, Role.EXPLORE: 900.0}
"""Roles that idle longer: such a worker holds some 30 MiB, and an author thinks for minutes between two saves."""

WORN_SHARE = 0.25
"""A worker is replaced when it has grown by this part of its memory limit since it had settled, or after a number of
requests: what loaded code leaks must not add up until a harmless config is stopped for it."""

TOLERATED_FAILURES = 3
"""Starts of a worker that may fail in a row before there is a pause between them."""

CLOSE_S = 5.0
"""Time for a worker to give up a problem's data, which takes milliseconds."""

_MEMORY_S = 0.2
"""Interval between two looks at workers' memory."""


def compilers_for(slots: int) -> int:
    """Return how many compile workers have work at once for so many slots.

    A slot is the next one's as soon as its compiler is done: it takes 4 to 10 ms more until an artifact is on the disk,
    which is some hundredths of a compile. Of two workers besides one is free at nearly all times, of one too seldom.
    """
    return slots + slots // 4


class FleetLimits(msgspec.Struct, frozen=True):
    """Limits of the workers that a fleet keeps."""

    idle_s: float = 60.0
    """An idle worker is let go after this long: a bench worker holds torch, some 300 MiB."""

    max_idle: int = 8
    """Idle workers of one role, environment and device; a job's compile workers come back all at once."""

    max_idle_together: int = 32
    """Idle workers of all projects together, besides those that the compile slots need: each project has an environment
    of its own, and a person may have a hundred of them."""

    idle_share: float = 0.125
    """Share of the machine's memory that idle workers may hold together."""

    max_requests: int = 500
    """Requests after which a worker is replaced."""

    first_pause_s: float = FIRST_PAUSE_S
    """Pause after the first start that is not tolerated to fail."""


class _Host(msgspec.Struct, frozen=True, eq=False):
    """The compile slots of another machine, and its gate."""

    gate: QuietGate
    slots: Turns


class Fleet:
    """Lends workers, keeps the idle ones, and stops those that outgrow their memory.

    ``spawn_s`` is how long one may take to start, and may be changed at any time. ``spares`` are those that are started
    ahead: they import ``spare_modules`` and their backend. ``front_ends`` are those that import what users wrote.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        compile_slots: int,
        spawn_s: float,
        memory_limits: tuple[int, int] | None = None,
        keeps_spares: bool = True,
        rank_of: RankOf = lambda job: 0,
        spare_modules: Sequence[str] = BENCH_MODULES,
        cores: int | None = None,
        limits: FleetLimits | None = None,
    ) -> None:
        self.gate = QuietGate(cores, on_wide=self._widen)
        self.pace = Pace()
        self._lanes = 1
        self._wide = 0
        self.compile_slots = Turns(compile_slots, rank_of=rank_of, most_inside_of=compilers_for)
        self._rank_of = rank_of
        self._hosts: dict[str, _Host] = {}
        self.spawn_s = spawn_s
        self._executor = executor
        self._limits = limits or FleetLimits()
        self._idle = IdleWorkers()
        self.spares = Spares(self, self._idle, spare_modules, are_kept=keeps_spares)
        self.front_ends = FrontEnds(self, rank_of)
        self._health: dict[tuple[Role, Environment], Health] = {}
        self._memory_limits: dict[Role, int] = {}
        self._limit_memory(*(memory_limits or memory.default_limits(compilers_for(compile_slots))))
        self._renewed: dict[Environment, float] = {}
        # No less than what they hold: it is counted again where it seems to be too much.
        self._idle_bytes = 0
        self._busy = anyio.Event()
        self._tasks: anyio.abc.TaskGroup
        self._closing = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Hold the fleet's tasks and its executor; on leaving, every worker is killed and reaped."""
        async with self._executor.running(), anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._retire_idle)
            self._tasks.start_soon(self._watch_memory)
            try:
                yield self
            finally:
                self._closing = self.spares.is_closed = True
                self._tasks.cancel_scope.cancel()

    def add_host(self, host: str, cores: int) -> None:
        """Count on a host: it keeps one of its cores for a lane, and compiles on the others."""
        slots = max(1, cores - 1)
        if host in self._hosts:
            # It was there before, and jobs hold its turns.
            self._hosts[host].slots.total_tokens = slots
        else:
            self._hosts[host] = _Host(QuietGate(cores), Turns(slots, rank_of=self._rank_of))

    def gate_of(self, environment: Environment) -> QuietGate:
        """Return the gate between compiles and timing on an environment's machine."""
        return self._host(environment.host).gate if environment.host else self.gate

    def gate_on(self, device: Device) -> QuietGate:
        """Return the gate between compiles and timing on a device's machine."""
        return self._host(device.host).gate if device.host else self.gate

    @asynccontextmanager
    async def quiet(self, devices: Iterable[Device]) -> AsyncIterator[None]:
        """Let nothing compile on the machines of some devices."""
        async with AsyncExitStack() as machines:
            # In one order for all, so that two that wait do not each hold what the other one wants.
            for device in {device.host: device for device in sorted(devices, key=lambda device: device.host)}.values():
                await machines.enter_async_context(self.gate_on(device).quiet())
            yield

    def slots_of(self, environment: Environment) -> Turns:
        """Return the compile slots of an environment's machine."""
        return self._host(environment.host).slots if environment.host else self.compile_slots

    def _host(self, host: str) -> _Host:
        if host not in self._hosts:
            # Known from an earlier daemon, and not there yet.
            self.add_host(host, 1)
        return self._hosts[host]

    def resize(self, compile_slots: int, memory_limits: tuple[int, int]) -> None:
        """Follow new settings; what runs goes on, and counts under the new limits."""
        self.compile_slots.total_tokens = compile_slots
        self._limit_memory(*memory_limits)

    def _limit_memory(self, bench_bytes: int, compile_bytes: int) -> None:
        self._memory_limits |= dict.fromkeys(Role, bench_bytes) | {Role.COMPILE: compile_bytes}

    def leave_cores(self, lanes: int) -> None:
        """Keep compilers off one core for each lane, and off those that a lane holds besides, as far as there are."""
        self._lanes = lanes
        self._executor.leave_cores(lanes + self._wide)

    def _widen(self, cores: int) -> None:
        self._wide = cores
        self.leave_cores(self._lanes)

    @asynccontextmanager
    async def lend(self, role: Role, environment: Environment) -> AsyncIterator[Worker]:
        """Lend a worker for some requests; one that is still alive afterwards is kept for the next.

        Raises:
            WorkerError: it cannot be started.
        """
        worker = await self.acquire(role, environment)
        try:
            yield worker
        except BaseException:
            # Its state cannot be known; a new worker costs less than a wrong result.
            worker.kill()
            raise
        self.release(worker)

    async def acquire(
        self, role: Role, environment: Environment, device: str = "", code: KernelCode | None = None
    ) -> Worker:
        """Return an idle worker of that role and environment, or a new one; give it back by :meth:`release`.

        It is the one that has opened ``code`` on ``device``, or else one that has opened nothing, preferably with a
        context there. Those that hold an earlier state of that kernel file end.

        Raises:
            WorkerError: it cannot be started, or could not so often that it is not tried again yet.
        """
        if code is not None:
            self._end(self._idle.take_outdated(role, environment, code))
        while True:
            worker = self._idle.take(role, environment, device, code)
            if worker is not None:
                worker.device = device
                self._busy.set()
                return worker
            if await self.spares.await_one(role, environment):
                continue
            worker = await self.start(role, environment)
            worker.device = device
            return worker

    def release(self, worker: Worker) -> None:
        """Take a worker back; it idles until it is lent again, or has idled for too long."""
        if not worker.settled_bytes:
            worker.settle()
        # One besides translates functions for them.
        in_use = self.slots_of(worker.environment).most_inside + 1 if worker.role is Role.COMPILE else 0
        is_one_too_many = self._idle.alike(worker) >= max(self._limits.max_idle, in_use)
        if not worker.is_alive or self._closing or is_one_too_many or self.is_worn(worker):
            worker.kill()
            return
        self._idle_bytes += worker.memory_bytes
        self._idle.put(worker)
        most = self._limits.max_idle_together + self.compile_slots.most_inside + 1
        most_bytes = int(self._limits.idle_share * memory.total_bytes())
        if len(self._idle) > most or self._idle_bytes > most_bytes:
            self._end(self._idle.take_excess(most, most_bytes))
            self._idle_bytes = sum(one.memory_bytes for one in self._idle if not one.environment.host)
        if worker.code is not None:
            self._end(self._idle.take_surplus(worker.device, KEPT_LOADED))

    async def make_room(self, device: str) -> None:
        """Have the idle workers on a device give up their problems' data, for one that is about to open another.

        Beside that one, only so many stay that have opened a kernel file.
        """
        self._end(self._idle.take_surplus(device, KEPT_LOADED - 1))
        for worker in [worker for worker in self._idle.loaded(device) if worker.holds_data]:
            worker.holds_data = False
            try:
                await worker.exchange(requests.Close(), {Phase.LOAD: CLOSE_S})
            except WorkerError as error:
                _log.info("worker_not_closed", pid=worker.pid, reason=error.message)
                worker.kill()
            except BaseException:
                worker.kill()
                raise

    async def clear(self, device: str, *, and_spares: bool = False) -> bool:
        """End the idle workers that have opened a kernel file on a device, or all; return whether there were any."""
        ended = self._idle.take_device(device) if and_spares else self._idle.take_surplus(device, 0)
        self._end(ended)
        with anyio.move_on_after(CLOSE_S):
            for worker in ended:
                await worker.gone.wait()
        return bool(ended)

    def _end(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            worker.kill()

    def renew(self, environment: Environment) -> None:
        """Let no worker of an environment be lent again that has started before now: what it imported has changed."""
        self._renewed[environment] = monotonic()
        self._end(self._idle.take_environment(environment))

    def is_worn(self, worker: Worker, most_requests: int | None = None) -> bool:
        """Return whether a worker is due to be replaced, between two requests."""
        if worker.started <= self._renewed.get(worker.environment, 0.0):
            return True
        grown = worker.memory_bytes - worker.settled_bytes
        is_old = worker.requests >= (most_requests or self._limits.max_requests)
        return is_old or grown > WORN_SHARE * self._memory_limits[worker.role]

    @property
    def has_contexts(self) -> bool:
        """True if a worker, in use or idle, has a context on a GPU or makes one."""
        return any(worker.has_context for worker in self._executor.workers)

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """Run something until the fleet ends."""
        self._tasks.start_soon(work, *arguments)

    async def start(self, role: Role, environment: Environment) -> Worker:
        """Start a worker, to be given back by :meth:`release`.

        Raises:
            WorkerError: it cannot be started, or could not so often that it is not tried again yet.
        """
        health = self._health.setdefault(
            (role, environment),
            Health(tolerated=TOLERATED_FAILURES, first_pause_s=self._limits.first_pause_s),
        )
        if health.pause_s:
            raise WorkerError(
                f"{environment.python} failed to run a worker {health.failures} times in a row and is left alone for "
                f"{health.pause_s:.0f} s: {health.reason}",
                hint="mend that interpreter; `ktuned doctor` says more",
            )
        self._busy.set()
        try:
            with self.gate_of(environment).starting():
                worker = await self._executor.start(
                    role, environment, limit_bytes=self._memory_limits[role], deadline_s=self.spawn_s
                )
        except WorkerError as error:
            if not is_outside_kill(error):
                health.failed(error.message)
            raise
        health.succeeded()
        return worker

    def retire_idle(self) -> None:
        """End all idle workers: what they were started with is no longer so."""
        self._end(self._idle.take_expired(lambda role: 0.0))
        self.front_ends.retire(0.0)

    async def _retire_idle(self) -> None:
        while True:
            await anyio.sleep(self._limits.idle_s / 4)
            self._end(self._idle.take_expired(lambda role: IDLE_S_OF.get(role, self._limits.idle_s)))
            self.front_ends.retire(self._limits.idle_s)

    async def _watch_memory(self) -> None:
        """Stop the worker that outgrows its limit, before the machine suffers."""
        while True:
            idle = set(self._idle)
            busy = [worker for worker in self._executor.workers if worker not in idle]
            if not busy:
                self._busy = anyio.Event()
                await self._busy.wait()
            for worker in busy:
                worker.measure_memory()
                limit = self._memory_limits[worker.role]
                if worker.memory_bytes > limit:
                    worker.stop(memory.exceeded(worker.memory_bytes, limit))
            await anyio.sleep(_MEMORY_S)

    @property
    def notices(self) -> list[str]:
        """Reasons why workers cannot be started now, or spares not be kept warm, one line each."""
        return self.spares.notices + [
            f"{environment.python} runs no {role} worker, tried again in {health.pause_s:.0f} s: {health.reason}"
            for (role, environment), health in self._health.items()
            if health.is_sick
        ]

    def describe(self) -> list[dict[str, Any]]:
        """Return every worker for a status: ``pid role state age_s requests memory_bytes``."""
        idle = set(self._idle)
        return [
            {
                "pid": worker.pid,
                "host": worker.environment.host,
                "role": worker.role,
                "state": "idle" if worker in idle else "busy",
                "age_s": round(monotonic() - worker.started, 3),
                "requests": worker.requests,
                "memory_bytes": worker.memory_bytes,
            }
            for worker in self._executor.workers
        ]
