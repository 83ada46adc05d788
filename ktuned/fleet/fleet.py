"""The fleet: all workers of a daemon, on this machine and on hosts.

The :mod:`~ktuned.fleet.lane_machine` decides which worker is lent, kept or ended. A :class:`Fleet` carries out its
decisions, and owns everything that belongs to no single worker:

- each machine's *compile slots*, and its *gate* between compiles and timing;
- the *turns* on each device, which all lanes of the device share;
- two background tasks: one ends workers that have idled too long, the other kills workers that outgrow their memory,
  and sets stalled compiles aside.

A caller borrows a worker for a block (:meth:`Fleet.lend_worker`), or acquires it and releases it later. A worker whose
caller fails or is cancelled is killed: its state cannot be inspected, and a new worker costs less than a wrong result.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic
from typing import Any, Self

import anyio
import anyio.abc
import structlog
from msgspec.structs import replace

from ktuned.backends import cpu
from ktuned.fleet import memory
from ktuned.fleet.applications import Applications
from ktuned.fleet.compile_slot import CompileSlot, hold_compile_slot
from ktuned.fleet.executor import Environment, Executor, KernelCode, Worker
from ktuned.fleet.front_ends import FrontEnds
from ktuned.fleet.lane_machine import (
    LINGER_S,
    AwaitSpare,
    AwaitTurn,
    CloseData,
    DataClosed,
    EndWorker,
    Event,
    Fail,
    FleetLimits,
    LaneMachine,
    LendWorker,
    MakeSpare,
    SpareMade,
    SparesNeeded,
    SpareWarmed,
    StartWorker,
    Step,
    TimePassed,
    TurnCame,
    WarmSpare,
    WorkerKind,
    WorkerNeeded,
    WorkerReleased,
    WorkersOutdated,
    WorkerStarted,
)
from ktuned.fleet.priority_semaphore import NO_JOB, RankOf, Turns
from ktuned.fleet.quiet import Pace, QuietGate
from ktuned.ipc import requests
from ktuned.model import Device, FrozenStruct, Phase, Role, WorkerError
from ktuned.protocol import WorkerInfo

_log = structlog.get_logger()

WARM_S = 5.0
"""Deadline for a spare's context and first kernels on a device. They take half a second, and the device's lanes wait
meanwhile."""

BENCH_MODULES = ("torch", "safetensors.torch", "safetensors.numpy")
"""The modules that a bench worker needs besides its backend; a spare imports those that are installed."""

CLOSE_S = 5.0
"""Deadline for a worker to close a problem's data, which normally takes milliseconds."""

EARLY_COMPILERS = 16
"""At most this many compile workers start before the number of configs is known: more than a small space needs, and
fewer than a machine with hundreds of cores would run."""

IDLE_SHARE = 0.125
"""Share of the machine's memory that all idle workers together may hold."""

FEWEST_IDLE = 8
CORES_OF_IDLE = 2
"""Idle workers that are kept on a machine with few cores, and cores for each idle worker on a larger one: a machine
with more devices has more cores, and a person may have a hundred projects."""


def choose_compile_slots(cores: int, lanes: int = 1) -> int:
    """Return how many compiles run at once if no setting gives the number: all cores but one for each lane."""
    return max(1, cores - max(1, lanes))


def count_compile_workers(slots: int) -> int:
    """Return how many compile workers are needed to keep all compile slots busy.

    A slot goes to the next compile as soon as the compiler is done, but its worker needs another 4 to 10 ms, a few
    percent of a compile, to write the artifact. So more workers than slots have work: a quarter more,
    of which one is nearly always free.
    """
    return slots + slots // 4


class _Host(FrozenStruct, eq=False):
    """The compile slots of a machine, and its gate between compiles and timing."""

    gate: QuietGate
    slots: Turns


class Fleet:
    """Lends workers, keeps the idle ones, and kills those that outgrow their memory.

    Args:
        executor: Starts workers, here and on hosts.
        compile_slots: Compiles that may run at once on this machine; None for all cores but one for each lane.
        deadlines: Seconds that a worker's start (``spawn``) and each phase of its requests may take, by name; may be
            changed at any time.
        memory_limits: Bytes that a bench worker and a compile worker may use; by default a share of the machine's.
        keeps_spares: Whether workers are started before they are needed.
        rank_of: Returns a job's rank, by which slots and devices are handed out.
        spare_modules: Modules that a spare bench worker imports besides its backend.
        cores: Cores that compiles and timing share; without it no timing waits for a compile.
        applications: The applications that work on this machine's GPUs, for which lanes leave time and memory.
        limits: How many idle workers are kept, for how long, and when a worker is replaced.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        compile_slots: int | None = None,
        deadlines: dict[str, float],
        memory_limits: tuple[int, int] | None = None,
        keeps_spares: bool = True,
        rank_of: RankOf = lambda job: 0,
        spare_modules: Sequence[str] = BENCH_MODULES,
        cores: int | None = None,
        applications: Applications | None = None,
        limits: FleetLimits | None = None,
    ) -> None:
        self.pace = Pace()
        self.applications = applications or Applications()
        self._lane_count = 1
        self.gate = QuietGate(cores, on_extra_cores=self._confine_compilers)
        self._chosen_slots = compile_slots
        self.compile_slots = Turns(self._count_slots(), rank_of=rank_of, most_inside_of=count_compile_workers)
        self._held_slots: set[CompileSlot] = set()
        # The empty name is this machine.
        self._hosts = {"": _Host(self.gate, self.compile_slots)}
        self._rank_of = rank_of
        self._turns: dict[str, Turns] = {}
        self.deadlines = deadlines
        self._executor = executor
        self._spare_modules = tuple(spare_modules)
        self.machine = LaneMachine(
            limits
            or FleetLimits(
                max_idle=max(FEWEST_IDLE, cpu.cores() // CORES_OF_IDLE),
                max_idle_bytes=IDLE_SHARE * cpu.memory_bytes(),
            ),
            compilers_of=lambda host: self._get_host(host).slots.most_inside,
            keeps_spares=keeps_spares,
        )
        bench_bytes, compile_bytes = memory_limits or memory.choose_default_limits(self.compile_slots.most_inside)
        self.machine.memory_limits |= dict.fromkeys(Role, bench_bytes) | {Role.COMPILE: compile_bytes}
        self.front_ends = FrontEnds(self.machine, self.acquire_worker, self.get_gate, rank_of)
        self._spare_finished: dict[WorkerKind, anyio.Event] = {}
        """For each kind of spare that callers wait for, an event that is set when a spare is ready or has failed."""
        self._some_worker_busy = anyio.Event()
        self._starts_in_flight = 0
        self._tasks: anyio.abc.TaskGroup

    @asynccontextmanager
    async def run_workers(self) -> AsyncIterator[Self]:
        """Run the fleet's tasks and its executor for the block; afterwards every worker is killed and reaped."""
        async with self._executor.run_workers(), anyio.create_task_group() as self._tasks:
            self._tasks.start_soon(self._review_idle)
            self._tasks.start_soon(self._watch_busy_workers)
            try:
                yield self
            finally:
                self.machine.keeps_spares = False
                self._tasks.cancel_scope.cancel()

    def add_host(self, host: str, cores: int) -> None:
        """Use a host from now on: one of its cores is for a lane, the others are compile slots."""
        slots = max(1, cores - 1)
        if host in self._hosts:
            # The host is back. Jobs may hold turns of its slots, so keep that object and change only its size.
            self._hosts[host].slots.total_tokens = slots
        else:
            self._hosts[host] = _Host(QuietGate(cores), Turns(slots, rank_of=self._rank_of))

    def get_gate(self, place: Environment | Device) -> QuietGate:
        """Return the gate between compiles and timing on the machine of an environment or a device."""
        return self._get_host(place.host).gate

    @asynccontextmanager
    async def hold_quiet(self, devices: Iterable[Device]) -> AsyncIterator[None]:
        """Allow no compiles on the machines of some devices during the block."""
        async with AsyncExitStack() as machines:
            # Every caller takes the gates in the same order, so two callers cannot wait for each other.
            for device in {device.host: device for device in sorted(devices, key=lambda device: device.host)}.values():
                await machines.enter_async_context(self.get_gate(device).hold_quiet())
            yield

    def get_slots(self, environment: Environment) -> Turns:
        """Return the compile slots of an environment's machine."""
        return self._get_host(environment.host).slots

    @asynccontextmanager
    async def hold_compile_slot(self, environment: Environment, job: int) -> AsyncIterator[CompileSlot]:
        """Wait for a compile slot of an environment's machine, and hold it for the block."""
        host = self._get_host(environment.host)
        async with hold_compile_slot(host.slots, host.gate, job) as slot:
            self._held_slots.add(slot)
            try:
                yield slot
            finally:
                self._held_slots.remove(slot)

    def get_turns(self, device: Device) -> Turns:
        """Return the turns of a device. All its lanes share them, also those of different backends, which may name the
        device's model differently.
        """
        return self._turns.setdefault(device.name, Turns(rank_of=self._rank_of))

    def _get_host(self, host: str) -> _Host:
        if host not in self._hosts:
            # A host known from an earlier daemon run that has not connected yet: assume one core until it does.
            self.add_host(host, 1)
        return self._hosts[host]

    def _count_slots(self) -> int:
        return self._chosen_slots or choose_compile_slots(cpu.cores(), self._lane_count)

    def leave_cores(self, lanes: int) -> None:
        """Keep compilers off one core for each lane, and off any more cores that a wide timing holds."""
        self._lane_count = lanes
        if self._chosen_slots is None:
            self.compile_slots.total_tokens = self._count_slots()
        self._confine_compilers()

    def _confine_compilers(self) -> None:
        self._executor.leave_cores(self._lane_count + self.gate.extra_cores)

    @asynccontextmanager
    async def lend_worker(self, role: Role, environment: Environment) -> AsyncIterator[Worker]:
        """Lend a worker for the block. If it is still alive afterwards, it is kept for the next caller.

        Raises:
            WorkerError: no worker can be started.
        """
        worker = await self.acquire_worker(role, environment)
        try:
            yield worker
        except BaseException:
            # Also when the caller is cancelled, because the worker may then be in the middle of a request.
            worker.kill()
            raise
        self.release_worker(worker)

    async def acquire_worker(
        self, role: Role, environment: Environment, device: str = "", code: KernelCode | None = None
    ) -> Worker:
        """Return an idle worker of a role and environment, or a new one; give it back by :meth:`release_worker`.

        A worker that has opened ``code`` on ``device`` is preferred, then one that has opened nothing and has its
        context on ``device``, then any that has opened nothing. Idle workers that have opened an earlier state of the
        same kernel file end.

        Raises:
            WorkerError: no worker can be started, or starts have failed so often that the next one has to wait.
        """
        need = WorkerNeeded(role, environment, device, code)
        while True:
            match self.handle(need):
                case LendWorker(worker):
                    self._some_worker_busy.set()
                    return worker
                case AwaitSpare(kind):
                    need = replace(need, waits=await self._await_spare(kind))
                case StartWorker():
                    worker = await self._start_worker(role, environment)
                    worker.device = device
                    return worker
                case Fail(error):
                    raise error

    async def _await_spare(self, kind: WorkerKind) -> bool:
        """Wait until a spare is ready or has failed; return False if neither happened within ``spawn`` seconds."""
        with anyio.move_on_after(self.deadlines["spawn"]) as waiting:
            await self._spare_finished.setdefault(kind, anyio.Event()).wait()
        return not waiting.cancelled_caught

    def release_worker(self, worker: Worker) -> None:
        """Take a worker back. It idles until it is lent again, or ends after idling too long."""
        if not worker.settled_bytes:
            worker.settle_memory()
        self.handle(WorkerReleased(worker))

    def handle(self, event: Event) -> Step | None:
        """Give the machine an event and carry out its instructions; return the caller's step, if there is one."""
        for instruction in self.machine.handle(event):
            match instruction:
                case EndWorker(worker):
                    worker.kill()
                case CloseData(workers):
                    self.start_soon(self.close_data, workers)
                case MakeSpare():
                    self.start_soon(self._make_spare, instruction)
                case AwaitTurn(environment, device):
                    self.start_soon(self._warm_spare, environment, device)
                case _:
                    # A step is the last instruction.
                    return instruction
        return None

    async def close_data(self, workers: Sequence[Worker]) -> None:
        """Have idle workers close their problems' data, one after another."""
        waiting = list(workers)
        try:
            while waiting:
                error = await self._ask_worker(waiting[0], requests.Close(), CLOSE_S)
                self.handle(DataClosed(waiting.pop(0), error))
        finally:
            # Some are left only after a cancellation. They still hold data, so they end.
            for worker in waiting:
                worker.kill()

    async def _ask_worker(
        self, worker: Worker, request: requests.Request[Any, Any], deadline_s: float
    ) -> WorkerError | None:
        """Send a worker a request that no job waits for; return the error if it fails.

        If the caller is cancelled, the worker is killed.
        """
        try:
            await worker.send_request(request, {Phase.LOAD: deadline_s})
        except WorkerError as error:
            _log.info("worker_failed", pid=worker.pid, asked=type(request).__name__, reason=error.message)
            return error
        return None

    def prepare_spares(
        self,
        role: Role,
        environment: Environment,
        backend: str = "",
        count: int = 1,
        *,
        device: Device | None = None,
        with_context: bool = False,
    ) -> None:
        """Start spares in the background until ``count`` of a role are ready; does nothing if no spares are kept.

        Args:
            role: The role of the spares.
            environment: The environment that they run in.
            backend: The backend that they import, with its compiler and loader; empty if not known yet.
            count: How many spares should be ready, including those that are idle now.
            device: Each spare makes its context on this device, taking turns with the lanes there.
            with_context: One spare may make its context while it imports, if no worker has a context yet.
        """
        self.handle(SparesNeeded(role, environment, backend, count, device, with_context))

    def prepare_compilers(self, environment: Environment, backend: str, *, besides: int = 0) -> None:
        """Start in the background as many compile workers as can have work at once, plus ``besides`` more.

        While the backend is unknown, one is enough. None is started on another host before there is something to
        compile, because others may need its cores.
        """
        if not environment.host:
            count = min(self.compile_slots.most_inside, EARLY_COMPILERS) if backend else 1
            self.prepare_spares(Role.COMPILE, environment, backend, count + besides)

    async def _make_spare(self, order: MakeSpare) -> None:
        spare: Worker | None = None
        role, environment = order.kind
        try:
            worker = await self._start_worker(role, environment)
            worker.device = order.device
            worker.makes_context = order.may_make_context and not self.has_contexts
            modules = self._spare_modules if role is Role.BENCH else ()
            request = requests.Prepare((order.backend,) if order.backend else (), modules, worker.makes_context)
            with self.get_gate(environment).hold_for_start():
                if await self._ask_worker(worker, request, self.deadlines["spawn"]) is None:
                    worker.settle_memory()
                    spare = worker
                else:
                    worker.kill()
        except WorkerError as error:
            # Not reported to anyone: the lane that needs the worker will meet the same error.
            _log.info("spare_failed", role=role, reason=error.message)
        finally:
            self.handle(SpareMade(order.kind, spare))
            # Callers that wait for this spare now ask the machine again, also if it failed.
            self._spare_finished.pop(order.kind, anyio.Event()).set()

    async def _warm_spare(self, environment: Environment, device: Device) -> None:
        """Have a spare make its context on a device. It takes a turn there, because it would stretch a timing that ran
        at the same time.
        """
        async with self.get_turns(device).hold_turn(NO_JOB):
            step = self.handle(TurnCame(environment, device))
            if isinstance(step, WarmSpare):
                request = requests.Canary(device, warms_up=True)
                error = await self._ask_worker(step.worker, request, min(WARM_S, self.deadlines["spawn"]))
                self.handle(SpareWarmed(step.worker, device, error))

    def outdate_workers(self, environment: Environment) -> None:
        """Never again lend a worker of an environment started before now: its installed packages have changed."""
        self.handle(WorkersOutdated(environment))

    @property
    def has_contexts(self) -> bool:
        """True if any worker, in use or idle, has a context on a GPU or is making one."""
        return any(worker.has_context for worker in self._executor.workers)

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """Run a coroutine in the background; it is cancelled when the fleet ends."""
        self._tasks.start_soon(work, *arguments)

    async def _start_worker(self, role: Role, environment: Environment) -> Worker:
        self._starts_in_flight += 1
        self._some_worker_busy.set()
        limit = self.machine.memory_limits[role]
        try:
            with self.get_gate(environment).hold_for_start():
                worker = await self._executor.start_worker(
                    role, environment, limit_bytes=limit, deadline_s=self.deadlines["spawn"]
                )
        except WorkerError as error:
            self.handle(WorkerStarted((role, environment), error))
            raise
        finally:
            self._starts_in_flight -= 1
        self.handle(WorkerStarted((role, environment)))
        return worker

    async def _review_idle(self) -> None:
        idle_s = self.machine.limits.idle_s
        while True:
            await anyio.sleep(min(idle_s, LINGER_S) / 4)
            self.handle(TimePassed())
            self.front_ends.end_idle(idle_s)

    async def _watch_busy_workers(self) -> None:
        """Kill workers that outgrow their limit, before the machine runs short; set stalled compiles aside."""
        while True:
            idle = set(self.machine.idle)
            busy = [worker for worker in self._executor.workers if worker not in idle]
            if not busy and not self._starts_in_flight:
                self._some_worker_busy = anyio.Event()
                await self._some_worker_busy.wait()
            for worker in busy:
                memory.enforce_limit(worker, self.machine.memory_limits[worker.role])
            for slot in list(self._held_slots):
                await slot.check_progress(monotonic())
            await anyio.sleep(memory.CHECK_S)

    def describe_workers(self) -> tuple[WorkerInfo, ...]:
        """Return a description of every worker for a status."""
        idle = set(self.machine.idle)
        return tuple(
            WorkerInfo(
                pid=worker.pid,
                host=worker.environment.host,
                role=worker.role,
                state="idle" if worker in idle else "busy",
                age_s=round(monotonic() - worker.started, 3),
                requests=worker.requests,
                memory_bytes=worker.memory_bytes,
            )
            for worker in self._executor.workers
        )
