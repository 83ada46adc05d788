"""All workers of a daemon, as the :mod:`~ktuned.fleet.lane_machine` says: started, lent, closed and ended.

A :class:`Fleet` carries out and decides nothing, but for what is no worker's: compile slots, and the gate of each host.
"""

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
from ktuned.fleet.front_ends import FrontEnds
from ktuned.fleet.lane_machine import (
    LINGER_S,
    AwaitSpare,
    CloseData,
    EndWorker,
    Fail,
    FleetLimits,
    Instruction,
    LaneMachine,
    LendWorker,
    MakeSpare,
    WarmSpare,
    WorkerKind,
)
from ktuned.fleet.pace import Pace
from ktuned.fleet.priority_semaphore import NO_JOB, RankOf, Turns
from ktuned.fleet.quiet import QuietGate
from ktuned.ipc import requests
from ktuned.model import Device, Phase, Role, WorkerError

_log = structlog.get_logger()

WARM_S = 5.0
"""Time for a spare's context and first kernels on a device, which take half a second: its lanes wait meanwhile."""

BENCH_MODULES = ("torch", "safetensors.torch", "safetensors.numpy")
"""The modules that a bench worker needs besides its backend; a spare has imported those that are there."""

CLOSE_S = 5.0
"""Time for a worker to give up a problem's data, which takes milliseconds."""

IDLE_SHARE = 0.125
"""Share of the machine's memory that idle workers may hold together."""

_MEMORY_S = 0.2
"""Interval between two looks at workers' memory."""


def compilers_for(slots: int) -> int:
    """Return how many compile workers have work at once for so many slots.

    A slot is the next one's as soon as its compiler is done: it takes 4 to 10 ms more until an artifact is on the disk,
    which is some hundredths of a compile. Of two workers besides one is free at nearly all times, of one too seldom.
    """
    return slots + slots // 4


class _Host(msgspec.Struct, frozen=True, eq=False):
    """The compile slots of a machine, and its gate between compiles and timing."""

    gate: QuietGate
    slots: Turns


class Fleet:
    """Lends workers, keeps the idle ones, and stops those that outgrow their memory.

    ``spawn_s`` is how long one may take to start, and may be changed at any time. Spares import ``spare_modules`` and
    their backend. ``front_ends`` are those that import what users wrote.
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
        self.pace = Pace()
        self._lanes = 1
        self._wide = 0
        self.gate = QuietGate(cores, on_wide=self._widen)
        self.compile_slots = Turns(compile_slots, rank_of=rank_of, most_inside_of=compilers_for)
        # This machine's name is empty.
        self._hosts = {"": _Host(self.gate, self.compile_slots)}
        self._rank_of = rank_of
        self._turns: dict[str, Turns] = {}
        self.spawn_s = spawn_s
        self._executor = executor
        self._spare_modules = tuple(spare_modules)
        self.machine = LaneMachine(
            limits or FleetLimits(max_idle_bytes=IDLE_SHARE * memory.total_bytes()),
            compilers_of=lambda host: self._host(host).slots.most_inside,
            keeps_spares=keeps_spares,
        )
        self._limit_memory(*(memory_limits or memory.default_limits(compilers_for(compile_slots))))
        self.front_ends = FrontEnds(self, rank_of)
        self._spare_news: dict[WorkerKind, anyio.Event] = {}
        self._busy = anyio.Event()
        self._starts_in_flight = 0
        self._tasks: anyio.abc.TaskGroup

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Hold the fleet's tasks and its executor; on leaving, every worker is killed and reaped."""
        async with self._executor.running(), anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._review_idle)
            self._tasks.start_soon(self._watch_memory)
            try:
                yield self
            finally:
                self.machine.keeps_spares = False
                self._tasks.cancel_scope.cancel()

    def add_host(self, host: str, cores: int) -> None:
        """Count on a host: it keeps one of its cores for a lane, and compiles on the others."""
        slots = max(1, cores - 1)
        if host in self._hosts:
            # It was there before, and jobs hold its turns.
            self._hosts[host].slots.total_tokens = slots
        else:
            self._hosts[host] = _Host(QuietGate(cores), Turns(slots, rank_of=self._rank_of))

    def gate_of(self, place: Environment | Device) -> QuietGate:
        """Return the gate between compiles and timing on the machine of an environment or a device."""
        return self._host(place.host).gate

    @asynccontextmanager
    async def quiet(self, devices: Iterable[Device]) -> AsyncIterator[None]:
        """Let nothing compile on the machines of some devices."""
        async with AsyncExitStack() as machines:
            # In one order for all, so that two that wait do not each hold what the other one wants.
            for device in {device.host: device for device in sorted(devices, key=lambda device: device.host)}.values():
                await machines.enter_async_context(self.gate_of(device).quiet())
            yield

    def slots_of(self, environment: Environment) -> Turns:
        """Return the compile slots of an environment's machine."""
        return self._host(environment.host).slots

    def turns_on(self, device: Device) -> Turns:
        """Return the turns of all that work on a device: backends may see it as several models."""
        return self._turns.setdefault(device.name, Turns(rank_of=self._rank_of))

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
        self.machine.memory_limits |= dict.fromkeys(Role, bench_bytes) | {Role.COMPILE: compile_bytes}

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
        waits = True
        while True:
            match self.carry_out(self.machine.lend(role, environment, device, code, waits=waits)):
                case LendWorker(worker):
                    self._busy.set()
                    return worker
                case AwaitSpare(kind):
                    waits = await self._await_spare(kind)
                case Fail(error):
                    raise error
                case _:
                    worker = await self._start(role, environment)
                    worker.device = device
                    return worker

    async def _await_spare(self, kind: WorkerKind) -> bool:
        """Wait until one is there, or has failed; return whether it did not take too long."""
        with anyio.move_on_after(self.spawn_s) as waiting:
            try:
                await self._spare_news.setdefault(kind, anyio.Event()).wait()
            finally:
                self.machine.note_awaited(kind)
        return not waiting.cancelled_caught

    def release(self, worker: Worker) -> None:
        """Take a worker back; it idles until it is lent again, or has idled for too long."""
        if not worker.settled_bytes:
            worker.settle()
        self.carry_out(self.machine.release(worker))

    def carry_out(self, instructions: Iterable[Instruction]) -> Instruction | None:
        """Do what the machine says; return the instruction that is for the caller, if there is one."""
        mine: Instruction | None = None
        for instruction in instructions:
            match instruction:
                case EndWorker(worker):
                    worker.kill()
                case CloseData(workers):
                    self.start_soon(self.close_data, workers)
                case MakeSpare():
                    self.start_soon(self._make_spare, instruction)
                case WarmSpare(environment, device):
                    self.start_soon(self._warm_spare, environment, device)
                case _:
                    mine = instruction
        return mine

    async def close_data(self, workers: Sequence[Worker]) -> None:
        """Have idle workers give up their problems' data."""
        waiting = list(workers)
        try:
            while waiting:
                error = await self._ask(waiting[0], requests.CloseData(), CLOSE_S)
                self.carry_out(self.machine.note_closed(waiting.pop(0), error))
        finally:
            # Cancelled: what could not be asked any more ends.
            for worker in waiting:
                worker.kill()

    async def _ask(self, worker: Worker, request: requests.Request[Any, Any], deadline_s: float) -> WorkerError | None:
        """Have a worker do something that no job waits for; return why it did not. Cancelled, the worker is killed."""
        try:
            await worker.exchange(request, {Phase.LOAD: deadline_s})
        except WorkerError as error:
            _log.info("worker_failed", pid=worker.pid, asked=type(request).__name__, reason=error.message)
            return error
        return None

    def prepare(
        self,
        role: Role,
        environment: Environment,
        backend: str = "",
        count: int = 1,
        *,
        device: Device | None = None,
        with_context: bool = False,
    ) -> None:
        """Have ``count`` spares of a role stand by, if spares are kept: for a ``device`` each with its context there.

        They have imported ``backend``, if it is known yet, and what it compiles and loads with, as kernel files do; one
        that measures also the spare modules. One ``with_context`` makes it while it imports, if no worker has one yet.
        """
        self.carry_out(self.machine.order_spares(role, environment, backend, count, device, with_context=with_context))

    def prepare_compilers(self, environment: Environment, backend: str, *, besides: int = 0) -> None:
        """Have compile workers stand by, all that have work at once and ``besides``."""
        self.carry_out(self.machine.order_compilers(environment, backend, besides))

    async def _make_spare(self, order: MakeSpare) -> None:
        spare: Worker | None = None
        try:
            worker = await self._start(order.role, order.environment)
            worker.makes_context = order.may_make_context and not self.has_contexts
            modules = self._spare_modules if order.role is Role.BENCH else ()
            wanted = requests.Prepare((order.backend,) if order.backend else (), modules, worker.makes_context)
            with self.gate_of(order.environment).starting():
                if await self._ask(worker, wanted, self.spawn_s) is None:
                    worker.settle()
                    spare = worker
                else:
                    worker.kill()
        except WorkerError as error:
            # The lane meets the same error when it needs the worker, and reports it.
            _log.info("spare_failed", role=order.role, reason=error.message)
        finally:
            self.carry_out(self.machine.note_spare(order.kind, spare))
            # Those that wait for one ask again.
            self._spare_news.pop(order.kind, anyio.Event()).set()

    async def _warm_spare(self, environment: Environment, device: Device) -> None:
        """Have a spare make its context on a device, in turns with its lanes: a timing beside it would be stretched."""
        async with self.turns_on(device).hold(NO_JOB):
            lent = self.carry_out(self.machine.take_spare_to_warm(environment, device))
            if isinstance(lent, LendWorker):
                wanted = requests.Canary(device, warms_up=True)
                error = await self._ask(lent.worker, wanted, min(WARM_S, self.spawn_s))
                self.carry_out(self.machine.note_warmed(lent.worker, device, error))

    def outdate_workers(self, environment: Environment | None = None) -> None:
        """Lend no worker of an environment, or (None) of any, again that has started before now: what it was started
        with, or has imported, has changed.
        """
        self.carry_out(self.machine.outdate_workers(environment))

    def is_worn(self, worker: Worker, most_requests: int | None = None) -> bool:
        """Return whether a worker is due to be replaced, between two requests."""
        return self.machine.is_worn(worker, most_requests)

    @property
    def has_contexts(self) -> bool:
        """True if a worker, in use or idle, has a context on a GPU or makes one."""
        return any(worker.has_context for worker in self._executor.workers)

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """Run something until the fleet ends."""
        self._tasks.start_soon(work, *arguments)

    async def _start(self, role: Role, environment: Environment) -> Worker:
        self._starts_in_flight += 1
        self._busy.set()
        limit = self.machine.memory_limits[role]
        try:
            with self.gate_of(environment).starting():
                worker = await self._executor.start(role, environment, limit_bytes=limit, deadline_s=self.spawn_s)
        except WorkerError as error:
            self.machine.note_started((role, environment), error)
            raise
        finally:
            self._starts_in_flight -= 1
        self.machine.note_started((role, environment))
        return worker

    async def _review_idle(self) -> None:
        idle_s = self.machine.limits.idle_s
        while True:
            await anyio.sleep(min(idle_s, LINGER_S) / 4)
            self.carry_out(self.machine.review_idle())
            self.front_ends.end_idle(idle_s)

    async def _watch_memory(self) -> None:
        """Stop the worker that outgrows its limit, before the machine suffers."""
        while True:
            idle = set(self.machine.idle)
            busy = [worker for worker in self._executor.workers if worker not in idle]
            if not busy and not self._starts_in_flight:
                self._busy = anyio.Event()
                await self._busy.wait()
            for worker in busy:
                worker.measure_memory()
                limit = self.machine.memory_limits[worker.role]
                if worker.memory_bytes > limit:
                    worker.kill(memory.exceeded(worker.memory_bytes, limit))
            await anyio.sleep(_MEMORY_S)

    def describe(self) -> list[dict[str, Any]]:
        """Return every worker for a status: ``pid role state age_s requests memory_bytes``."""
        idle = set(self.machine.idle)
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
