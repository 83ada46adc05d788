"""Spares: workers that start and import ahead, so that one that is killed or missing costs a lane no start.

They are made in the background, cold or warm for a GPU, and idle with the rest once they are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, Protocol

import anyio
import msgspec
import structlog

from ktuned.fleet.executor import Environment, Worker
from ktuned.fleet.failures import RequestFailed
from ktuned.fleet.idle import IdleWorkers
from ktuned.fleet.priority_semaphore import Turns
from ktuned.fleet.quiet import QuietGate
from ktuned.ipc import requests
from ktuned.model import Device, Phase, Role, WorkerError

_log = structlog.get_logger()

WARM_S = 5.0
"""Time for a spare's context on a device that another worker uses already, where it takes half a second: a lane that
waits for a spare must not wait for a device that hangs."""

BENCH_MODULES = ("torch", "safetensors.torch", "safetensors.numpy")
"""The modules that a bench worker needs besides its backend; a spare has imported those that are there."""

EARLY_COMPILERS = 16
"""Compile workers that start before it is known how many configs there are: more than a small space needs, and less
than a machine with hundreds of cores would run."""


class Lender(Protocol):
    """Interface of spares to the fleet that lends them."""

    spawn_s: float

    def gate_of(self, node: str) -> QuietGate:
        """Return a node's gate."""

    def slots_of(self, node: str) -> Turns:
        """Return a node's compile slots."""

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """Run something until the fleet ends."""

    async def start(self, role: Role, environment: Environment) -> Worker:
        """Start a worker."""

    def release(self, worker: Worker) -> None:
        """Take a worker among the idle ones."""


class _Spare(msgspec.Struct, eq=False):
    """A spare under way, and the device on which it gets a context."""

    device: Device | None


class _UnderWay(msgspec.Struct, eq=False):
    """The spares of one kind that are under way, and how many callers wait for one; ``news`` is set when one of them is
    there, or has failed.
    """

    spares: list[_Spare] = msgspec.field(default_factory=list)
    awaited: int = 0
    news: anyio.Event = msgspec.field(default_factory=anyio.Event)

    def remove(self, spare: _Spare) -> None:
        """Have a spare under way no longer, and wake those that wait for any."""
        self.spares.remove(spare)
        self.news.set()
        self.news = anyio.Event()


class Spares:
    """Makes spares for a fleet; ``are_kept`` may be changed at any time, and nothing begins once ``is_closed``."""

    def __init__(self, lender: Lender, idle: IdleWorkers, modules: Sequence[str], *, are_kept: bool) -> None:
        self.are_kept = are_kept
        self.is_closed = False
        self._lender = lender
        self._idle = idle
        self._modules = tuple(modules)
        self._under_way: dict[tuple[Role, Environment], _UnderWay] = {}
        self._warming: dict[str, anyio.Lock] = {}
        self._warmed: dict[str, float] = {}
        self._cold: dict[str, str] = {}

    @property
    def notices(self) -> list[str]:
        """Reasons why spares are not kept warm now, one line each."""
        return [
            f"no warm spare on {device}: after a failure its lane takes longer to come back: {reason}"
            for device, reason in self._cold.items()
        ]

    def worked_on(self, device: str, since: float) -> bool:
        """Return whether a spare has worked on a device since a time (monotonic, s)."""
        lock = self._warming.get(device)
        return lock is not None and (lock.locked() or self._warmed.get(device, -math.inf) >= since)

    def under_way(self, role: Role, environment: Environment) -> int:
        """Return how many are being made."""
        return len(self._of_kind(role, environment).spares)

    def _of_kind(self, role: Role, environment: Environment) -> _UnderWay:
        return self._under_way.setdefault((role, environment), _UnderWay())

    async def await_one(self, role: Role, environment: Environment) -> bool:
        """Wait for one that is half started, which is ready sooner than a new worker; return whether there was one.

        Each serves one caller only.
        """
        under_way = self._of_kind(role, environment)
        if under_way.awaited >= len(under_way.spares):
            return False
        under_way.awaited += 1
        try:
            with anyio.move_on_after(self._lender.spawn_s) as waiting:
                await under_way.news.wait()
        finally:
            under_way.awaited -= 1
        return not waiting.cancelled_caught

    def prepare(
        self, role: Role, environment: Environment, backend: str = "", count: int = 1, *, contexts: int = 0
    ) -> None:
        """Start idle workers of a role in the background until ``count`` are there, if spares are kept.

        They have imported ``backend``, if it is known yet, and what it compiles and loads with, as kernel files do; one
        that measures also the spare modules. Those that are warm for a device are that device's, and do not count.
        The first ``contexts`` of them are about to measure: if there is one GPU, each makes its context there while it
        imports.
        """
        under_way = self._of_kind(role, environment).spares
        there = self._idle.spares(role, environment, "") + sum(spare.device is None for spare in under_way)
        for number in range(there, count if self._makes_any else 0):
            self._begin(role, environment, backend, None, holds_context=number < contexts)

    def prepare_warm(
        self, environment: Environment, backend: str, device: Device, count: int, warm: int | None = None
    ) -> None:
        """Have ``count`` spares that measure stand by for a GPU, of which ``warm`` have its context; else all have.

        A context takes memory of the device, and half a second in which the driver keeps others waiting.
        """
        if not self._makes_any:
            return
        key = (Role.BENCH, environment)
        under_way = self._of_kind(*key).spares
        ours = sum(spare.device is not None and spare.device.name == device.name for spare in under_way)
        there = self._idle.spares(*key, device.name) + ours
        cold = [spare for spare in under_way if spare.device is None]
        for _ in range((count if warm is None else warm) - there):
            there += 1
            worker = self._idle.take_cold(*key)
            if worker is None and cold:
                cold.pop(0).device = device
            else:
                self._begin(Role.BENCH, environment, backend, device, worker)
        self.prepare(Role.BENCH, environment, backend, count - there)

    @property
    def _makes_any(self) -> bool:
        return self.are_kept and not self.is_closed

    def _begin(
        self,
        role: Role,
        environment: Environment,
        backend: str,
        device: Device | None,
        worker: Worker | None = None,
        *,
        holds_context: bool = False,
    ) -> None:
        spare = _Spare(device)
        self._of_kind(role, environment).spares.append(spare)
        self._lender.start_soon(self._make, role, environment, backend, spare, worker, holds_context)

    def prepare_compilers(self, environment: Environment, backend: str, *, besides: int = 0) -> None:
        """Have compile workers start and import what ``backend`` compiles with, for each slot and for ``besides``.

        Of an unknown backend one starts. On a node a worker takes a part of the cluster's account, and starts when
        there is something to compile.
        """
        if not environment.node:
            count = min(int(self._lender.slots_of(environment.node).total_tokens), EARLY_COMPILERS) if backend else 1
            self.prepare(Role.COMPILE, environment, backend, count + besides)

    async def _make(
        self,
        role: Role,
        environment: Environment,
        backend: str,
        spare: _Spare,
        worker: Worker | None,
        holds_context: bool,
    ) -> None:
        """Start a spare, unless there is a ``worker`` that has imported everything, and warm it."""
        try:
            # Not acquired: that would wait for this very spare.
            worker = worker or await self._lender.start(role, environment)
            try:
                if not worker.requests:
                    modules = self._modules if role is Role.BENCH else ()
                    wanted = requests.Prepare((backend,) if backend else (), modules, holds_context)
                    with self._lender.gate_of(environment.node).starting():
                        await worker.exchange(wanted, {Phase.LOAD: self._lender.spawn_s})
                if spare.device is not None:
                    await self._warm(worker, spare.device)
            except BaseException:
                worker.kill()
                raise
            took_s = round(monotonic() - worker.started, 3)
            _log.debug("spare_ready", role=role, pid=worker.pid, took_s=took_s, phases=worker.timeline())
            self._lender.release(worker)
        except WorkerError as error:
            # The lane meets the same error when it needs the worker, and reports it.
            _log.info("spare_failed", role=role, reason=error.message)
        finally:
            self._of_kind(role, environment).remove(spare)

    async def _warm(self, worker: Worker, device: Device) -> None:
        """Have a spare make its context on a device; one that the device refuses stays cold, and is announced.

        One after the other: the driver makes one context at a time, and a lane's own may be waiting for it.
        """
        wanted = requests.Canary(device, warms_up=True)
        try:
            async with self._warming.setdefault(device.name, anyio.Lock()):
                try:
                    await worker.exchange(wanted, {Phase.LOAD: min(WARM_S, self._lender.spawn_s)})
                finally:
                    self._warmed[device.name] = monotonic()
        except RequestFailed as error:
            self._cold[device.name] = error.message
            _log.info("spare_cold", device=device.name, reason=error.message)
        else:
            self._cold.pop(device.name, None)
        # Cold or warm it is this device's: counted among its spares, and not tried again.
        worker.device = device.name
