"""All workers of a daemon: started when needed, reused while they behave, replaced by a warm spare when killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any, Self

import anyio
import anyio.abc
import msgspec
import structlog

from ktuned.fleet import memory
from ktuned.fleet.executor import Environment, Executor, KernelCode, Worker
from ktuned.fleet.failures import NodeAbsent, RequestFailed, is_outside_kill
from ktuned.fleet.health import FIRST_PAUSE_S, Health
from ktuned.fleet.idle import KEPT_LOADED, IdleWorkers
from ktuned.fleet.pace import Pace
from ktuned.fleet.priority_semaphore import RankOf, Turns
from ktuned.fleet.quiet import QuietGate
from ktuned.ipc import replies, requests
from ktuned.model import Device, Phase, Role, WorkerError

_log = structlog.get_logger()

IDLE_S_OF = {Role.INSPECT: 900.0, Role.EXPLORE: 900.0}
"""Roles that idle longer: such a worker holds some 30 MiB, and an author thinks for minutes between two saves."""

WORN_SHARE = 0.25
"""A worker is replaced when it has grown by this part of its memory limit since it had settled, or after a number of
requests: what loaded code leaks must not add up until a harmless config is stopped for it."""

TOLERATED_FAILURES = 3
"""Starts of a worker that may fail in a row before there is a pause between them."""

WARM_S = 5.0
"""Time for a spare's context on a device that another worker uses already, where it takes half a second: a lane that
waits for a spare must not wait for a device that hangs."""

CLOSE_S = 5.0
"""Time for a worker to give up a problem's data, which takes milliseconds."""

_MEMORY_S = 0.2
"""Interval between two looks at workers' memory."""

BENCH_MODULES = ("torch", "safetensors.torch", "safetensors.numpy")
"""The modules that a bench worker needs besides its backend; a spare has imported those that are there."""


EARLY_COMPILERS = 16
"""Compile workers that start before it is known how many configs there are: more than a small space needs, and less
than a machine with hundreds of cores would run."""


class PoolLimits(msgspec.Struct, frozen=True):
    """Limits of the workers that a pool keeps."""

    idle_s: float = 60.0
    """An idle worker is let go after this long: a bench worker holds torch, some 300 MiB."""

    max_idle: int = 8
    """Idle workers of one role, environment and device; a job's compile workers come back all at once."""

    max_requests: int = 500
    """Requests after which a worker is replaced."""

    first_pause_s: float = FIRST_PAUSE_S
    """Pause after the first start that is not tolerated to fail."""


class _Spare(msgspec.Struct, eq=False):
    """A spare under way, and the device on which it gets a context; ``made`` is set when it is there, or has failed."""

    device: Device | None
    made: anyio.Event = msgspec.field(default_factory=anyio.Event)


class _Node(msgspec.Struct, frozen=True, eq=False):
    """The compile slots of a node, and its gate."""

    gate: QuietGate
    slots: Turns


class Fleet:
    """Lends workers, keeps the idle ones, and stops those that outgrow their memory.

    ``spawn_s`` is how long one may take to start; it and ``keeps_spares`` may be changed at any time. Spares import
    ``spare_modules`` and their backend.
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
        pool: PoolLimits | None = None,
    ) -> None:
        self.gate = QuietGate(cores, on_wide=self._widen)
        self.pace = Pace()
        self._lanes = 1
        self._wide = 0
        self.compile_slots = Turns(compile_slots, rank_of=rank_of)
        self._rank_of = rank_of
        self._nodes: dict[str, _Node] = {}
        self.spawn_s = spawn_s
        self.keeps_spares = keeps_spares
        self._executor = executor
        self._pool = pool or PoolLimits()
        self._spare_modules = tuple(spare_modules)
        self._idle = IdleWorkers()
        self._spares_under_way: dict[tuple[Role, Environment], list[_Spare]] = {}
        self._warming: dict[str, anyio.Lock] = {}
        self._spares_awaited: Counter[tuple[Role, Environment]] = Counter()
        self._health: dict[tuple[Role, Environment], Health] = {}
        self._cold: dict[str, str] = {}
        self._limits: dict[Role, int] = {}
        self._limit(*(memory_limits or memory.default_limits(compile_slots)))
        self._renewed: dict[Environment, float] = {}
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
                self._closing = True
                self._tasks.cancel_scope.cancel()

    def add_node(self, node: str, cores: int) -> None:
        """Count on a node: it keeps one of its cores for a lane, and compiles on the others."""
        slots = max(1, cores - 1)
        if node in self._nodes:
            # It was there before, and jobs hold its turns.
            self._nodes[node].slots.total_tokens = slots
        else:
            self._nodes[node] = _Node(QuietGate(cores), Turns(slots, rank_of=self._rank_of))

    async def take_device(self, device: Device) -> None:
        """Hold a device for a lane, as :meth:`Executor.take_device`."""
        await self._executor.take_device(device)

    def watch_toolchain(self, node: str, observed: replies.Observed, ended: Callable[[str], None]) -> None:
        """Watch a node's toolchain, as :meth:`Executor.watch_toolchain`."""
        self._executor.watch_toolchain(node, observed, ended)

    def give_device(self, device: Device) -> None:
        """Give a device back that no job uses."""
        self._executor.give(device.name)

    @asynccontextmanager
    async def compile_slot(self, node: str) -> AsyncIterator[None]:
        """Hold what a compile takes of a node's account of its CPUs.

        Raises:
            NodeAbsent: the node is not there, or others have all of its CPUs.
        """
        name = await self._executor.take_slot(node)
        try:
            yield
        finally:
            if name:
                self._executor.give(name)

    def end_idle(self, device: str) -> None:
        """End the idle workers that have their context on a device, spares among them."""
        self._end(self._idle.take_device(device))

    def gate_of(self, node: str) -> QuietGate:
        """Return the gate between compiles and timing on a node; without a name, on this machine."""
        if not node:
            return self.gate
        return self._node(node).gate

    def slots_of(self, node: str) -> Turns:
        """Return the compile slots of a node; without a name, of this machine."""
        if not node:
            return self.compile_slots
        return self._node(node).slots

    def _node(self, node: str) -> _Node:
        if node not in self._nodes:
            # Known from an earlier daemon, and not there yet.
            self.add_node(node, 1)
        return self._nodes[node]

    def resize(self, compile_slots: int, memory_limits: tuple[int, int]) -> None:
        """Follow new settings; what runs goes on, and counts under the new limits."""
        self.compile_slots.total_tokens = compile_slots
        self._limit(*memory_limits)

    def _limit(self, bench_bytes: int, compile_bytes: int) -> None:
        self._limits |= dict.fromkeys(Role, bench_bytes) | {Role.COMPILE: compile_bytes}

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
            under_way = self._spares_under_way.setdefault((role, environment), [])
            if self._spares_awaited[role, environment] < len(under_way):
                # A spare that is half started is ready sooner than a new worker, but serves only one caller.
                self._spares_awaited[role, environment] += 1
                try:
                    with anyio.move_on_after(self.spawn_s):
                        await under_way[0].made.wait()
                        continue
                finally:
                    self._spares_awaited[role, environment] -= 1
            worker = await self._start(role, environment)
            worker.device = device
            return worker

    def release(self, worker: Worker) -> None:
        """Take a worker back; it idles until it is lent again, or has idled for too long."""
        if not worker.settled_bytes:
            worker.settle()
        # One besides the slots' translates functions for them.
        in_use = int(self.slots_of(worker.environment.node).total_tokens) + 1 if worker.role is Role.COMPILE else 0
        is_one_too_many = self._idle.alike(worker) >= max(self._pool.max_idle, in_use)
        if not worker.is_alive or self._closing or is_one_too_many or self.is_worn(worker):
            worker.kill()
            return
        self._idle.put(worker)
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

    async def clear(self, device: str) -> bool:
        """End the idle workers that have opened a kernel file on a device; return whether there were any."""
        loaded = self._idle.take_surplus(device, 0)
        self._end(loaded)
        with anyio.move_on_after(CLOSE_S):
            for worker in loaded:
                await worker.gone.wait()
        return bool(loaded)

    def _end(self, workers: Iterable[Worker]) -> None:
        for worker in workers:
            worker.kill()

    def renew(self, environment: Environment) -> None:
        """Let no worker of an environment be lent again that has started before now: what it imported has changed."""
        self._renewed[environment] = monotonic()
        self._end(self._idle.take_environment(environment))

    def is_worn(self, worker: Worker) -> bool:
        """Return whether a worker is due to be replaced, between two requests."""
        if worker.started <= self._renewed.get(worker.environment, 0.0):
            return True
        grown = worker.memory_bytes - worker.settled_bytes
        return worker.requests >= self._pool.max_requests or grown > WORN_SHARE * self._limits[worker.role]

    def prepare_spares(self, role: Role, environment: Environment, backend: str = "", count: int = 1) -> None:
        """Start idle workers of a role in the background until ``count`` are there, if spares are kept.

        They have imported ``backend``, if it is known yet, and what it compiles and loads with, as kernel files do; one
        that measures also the spare modules. Those that are warm for a device are that device's, and do not count.
        """
        under_way = self._spares_under_way.setdefault((role, environment), [])
        there = self._idle.spares(role, environment, "") + sum(spare.device is None for spare in under_way)
        for _ in range(count - there if self._makes_spares else 0):
            self._begin_spare(role, environment, backend, None)

    def prepare_warm_spares(
        self, environment: Environment, backend: str, device: Device, count: int, warm: int | None = None
    ) -> None:
        """Have ``count`` spares that measure stand by for a GPU, of which ``warm`` have its context; else all have.

        A context takes memory of the device, and half a second in which the driver keeps others waiting.
        """
        if not self._makes_spares:
            return
        key = (Role.BENCH, environment)
        under_way = self._spares_under_way.setdefault(key, [])
        ours = sum(spare.device is not None and spare.device.name == device.name for spare in under_way)
        there = self._idle.spares(*key, device.name) + ours
        cold = [spare for spare in under_way if spare.device is None]
        for _ in range((count if warm is None else warm) - there):
            there += 1
            worker = self._idle.take_cold(*key)
            if worker is None and cold:
                cold.pop(0).device = device
            else:
                self._begin_spare(Role.BENCH, environment, backend, device, worker)
        self.prepare_spares(Role.BENCH, environment, backend, count - there)

    @property
    def _makes_spares(self) -> bool:
        return self.keeps_spares and not self._closing

    def _begin_spare(
        self, role: Role, environment: Environment, backend: str, device: Device | None, worker: Worker | None = None
    ) -> None:
        spare = _Spare(device)
        under_way = self._spares_under_way.setdefault((role, environment), [])
        # The first is the one that is waited for: what has only to be warmed is there sooner.
        under_way.insert(len(under_way) if worker is None else 0, spare)
        self._tasks.start_soon(self._make_spare, role, environment, backend, spare, worker)

    def prepare_compilers(self, environment: Environment, backend: str, *, besides: int = 0) -> None:
        """Have compile workers start and import what ``backend`` compiles with, for each slot and for ``besides``.

        Of an unknown backend one starts. On a node a worker takes a part of the cluster's account, and starts when
        there is something to compile.
        """
        if not environment.node:
            count = min(int(self.compile_slots.total_tokens), EARLY_COMPILERS) if backend else 1
            self.prepare_spares(Role.COMPILE, environment, backend, count + besides)

    async def _make_spare(
        self, role: Role, environment: Environment, backend: str, spare: _Spare, worker: Worker | None
    ) -> None:
        """Start a spare, unless there is a ``worker`` that has imported everything, and warm it."""
        try:
            # Not acquired: that would wait for this very spare.
            worker = worker or await self._start(role, environment)
            try:
                if not worker.requests:
                    modules = self._spare_modules if role is Role.BENCH else ()
                    wanted = requests.Prepare((backend,) if backend else (), modules)
                    with self.gate_of(environment.node).starting():
                        await worker.exchange(wanted, {Phase.LOAD: self.spawn_s})
                if spare.device is not None:
                    await self._warm(worker, spare.device)
            except BaseException:
                worker.kill()
                raise
            took_s = round(monotonic() - worker.started, 3)
            _log.debug("spare_ready", role=role, pid=worker.pid, took_s=took_s, phases=worker.timeline())
            self.release(worker)
        except WorkerError as error:
            # The lane meets the same error when it needs the worker, and reports it.
            _log.info("spare_failed", role=role, reason=error.message)
        finally:
            self._spares_under_way[role, environment].remove(spare)
            spare.made.set()

    async def _warm(self, worker: Worker, device: Device) -> None:
        """Have a spare make its context on a device; one that the device refuses stays cold, and is announced.

        One after the other: the driver makes one context at a time, and a lane's own may be waiting for it.
        """
        wanted = requests.Canary(device, warms_up=True)
        try:
            async with self._warming.setdefault(device.name, anyio.Lock()):
                await worker.exchange(wanted, {Phase.LOAD: min(WARM_S, self.spawn_s)})
        except RequestFailed as error:
            self._cold[device.name] = error.message
            _log.info("spare_cold", device=device.name, reason=error.message)
        else:
            self._cold.pop(device.name, None)
        # Cold or warm it is this device's: counted among its spares, and not tried again.
        worker.device = device.name

    async def _start(self, role: Role, environment: Environment) -> Worker:
        health = self._health.setdefault(
            (role, environment),
            Health(tolerated=TOLERATED_FAILURES, first_pause_s=self._pool.first_pause_s),
        )
        if health.pause_s:
            raise WorkerError(
                f"{environment.python} failed to run a worker {health.failures} times in a row and is left alone for "
                f"{health.pause_s:.0f} s: {health.reason}",
                hint="mend that interpreter; `ktuned doctor` says more",
            )
        self._busy.set()
        try:
            with self.gate_of(environment.node).starting():
                worker = await self._executor.start(
                    role, environment, limit_bytes=self._limits[role], deadline_s=self.spawn_s
                )
        except WorkerError as error:
            if not is_outside_kill(error) and not isinstance(error, NodeAbsent):
                health.failed(error.message)
            raise
        health.succeeded()
        return worker

    def retire_idle(self) -> None:
        """End all idle workers: what they were started with is no longer so."""
        self._end(self._idle.take_expired(lambda role: 0.0))

    async def _retire_idle(self) -> None:
        while True:
            await anyio.sleep(self._pool.idle_s / 4)
            self._end(self._idle.take_expired(lambda role: IDLE_S_OF.get(role, self._pool.idle_s)))

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
                limit = self._limits[worker.role]
                if worker.memory_bytes > limit:
                    worker.stop(memory.exceeded(worker.memory_bytes, limit))
            await anyio.sleep(_MEMORY_S)

    @property
    def notices(self) -> list[str]:
        """Reasons why workers cannot be started now, or spares not be kept warm, one line each."""
        cold = [
            f"no warm spare on {device}: after a failure its lane takes longer to come back: {reason}"
            for device, reason in self._cold.items()
        ]
        return cold + [
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
                "node": worker.environment.node,
                "role": worker.role,
                "state": "idle" if worker in idle else "busy",
                "age_s": round(monotonic() - worker.started, 3),
                "requests": worker.requests,
                "memory_bytes": worker.memory_bytes,
            }
            for worker in self._executor.workers
        ]
