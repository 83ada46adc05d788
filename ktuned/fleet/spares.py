"""Spares: workers that start and import ahead, so that one that is killed or missing costs a lane no start.

They are made in the background, cold or warm for a GPU, and idle with the rest once they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from time import monotonic
from typing import Any, Protocol

import anyio
import msgspec
import structlog

from ktuned.fleet.executor import Environment, Worker
from ktuned.fleet.failures import RequestFailed
from ktuned.fleet.idle import IdleWorkers
from ktuned.fleet.priority_semaphore import NO_JOB, Turns
from ktuned.fleet.quiet import QuietGate
from ktuned.ipc import requests
from ktuned.model import Device, Phase, Role, WorkerError

_log = structlog.get_logger()

WARM_S = 5.0
"""Time for a spare's context and first kernels on a device, which take half a second: its lanes wait meanwhile."""

BENCH_MODULES = ("torch", "safetensors.torch", "safetensors.numpy")
"""The modules that a bench worker needs besides its backend; a spare has imported those that are there."""

EARLY_COMPILERS = 16
"""Compile workers that start before it is known how many configs there are: more than a small space needs, and less
than a machine with hundreds of cores would run."""


class Lender(Protocol):
    """Interface of spares to the fleet that lends them."""

    spawn_s: float

    @property
    def has_contexts(self) -> bool:
        """True if a worker, in use or idle, has a context on a GPU or makes one."""

    def gate_of(self, environment: Environment) -> QuietGate:
        """Return the gate of an environment's machine."""

    def slots_of(self, environment: Environment) -> Turns:
        """Return the compile slots of an environment's machine."""

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> None:
        """Run something until the fleet ends."""

    async def start(self, role: Role, environment: Environment) -> Worker:
        """Start a worker."""

    def release(self, worker: Worker) -> None:
        """Take a worker among the idle ones."""


class _UnderWay(msgspec.Struct, eq=False):
    """Numbers of spares of one kind that are under way, and of callers that wait for one; ``news`` is set when a spare
    is there, or has failed.
    """

    count: int = 0
    awaited: int = 0
    news: anyio.Event = msgspec.field(default_factory=anyio.Event)

    def end_one(self) -> None:
        """Have one under way no longer, and wake those that wait for any."""
        self.count -= 1
        self.news.set()
        self.news = anyio.Event()


class _Warming(msgspec.Struct, eq=False):
    """The number of spares that a device is to have, and of those that work there for the first time now."""

    wanted: int = 0
    at_work: int = 0


class Spares:
    """Makes spares for a fleet; ``are_kept`` may be changed at any time, and nothing begins once ``is_closed``."""

    def __init__(self, lender: Lender, idle: IdleWorkers, modules: Sequence[str], *, are_kept: bool) -> None:
        self.are_kept = are_kept
        self.is_closed = False
        self._lender = lender
        self._idle = idle
        self._modules = tuple(modules)
        self._under_way: dict[tuple[Role, Environment], _UnderWay] = {}
        self._warming: dict[tuple[Environment, str], _Warming] = {}
        self._cold: dict[str, str] = {}

    @property
    def notices(self) -> list[str]:
        """Reasons why spares are not kept warm now, one line each."""
        return [
            f"no warm spare on {device}: after a failure its lane takes longer to come back: {reason}"
            for device, reason in self._cold.items()
        ]

    def under_way(self, role: Role, environment: Environment) -> int:
        """Return how many are being made."""
        return self._of_kind(role, environment).count

    def _of_kind(self, role: Role, environment: Environment) -> _UnderWay:
        return self._under_way.setdefault((role, environment), _UnderWay())

    async def await_one(self, role: Role, environment: Environment) -> bool:
        """Wait for one that is half started, which is ready sooner than a new worker; return whether there was one.

        Each serves one caller only.
        """
        under_way = self._of_kind(role, environment)
        if under_way.awaited >= under_way.count:
            return False
        under_way.awaited += 1
        try:
            with anyio.move_on_after(self._lender.spawn_s) as waiting:
                await under_way.news.wait()
        finally:
            under_way.awaited -= 1
        return not waiting.cancelled_caught

    def prepare(
        self, role: Role, environment: Environment, backend: str = "", count: int = 1, *, with_context: bool = False
    ) -> None:
        """Start idle workers of a role in the background until ``count`` are there, if spares are kept.

        They have imported ``backend``, if it is known yet, and what it compiles and loads with, as kernel files do; one
        that measures also the spare modules. Those that are warm for a device are that device's, and do not count.
        One ``with_context`` is about to measure: if there is one GPU, it makes its context there while it imports. Only
        the first does, of all environments: beside others a lane may be timing by then, which that would stretch.
        """
        under_way = self._of_kind(role, environment)
        there = self._idle.spares(role, environment, "") + under_way.count
        for number in range(there, count if self._makes_any else 0):
            under_way.count += 1
            self._lender.start_soon(self._make, role, environment, backend, with_context and number == 0)

    def prepare_warm(self, environment: Environment, backend: str, device: Device, turns: Turns, count: int) -> None:
        """Have ``count`` spares that measure stand by for a GPU, each with its context there and its first kernels.

        They work on it in ``turns`` with its lanes: what is timed beside another process is stretched.
        """
        if not self._makes_any:
            return
        key = environment, device.name
        begins = key not in self._warming
        self._warming.setdefault(key, _Warming()).wanted = count
        self.prepare(Role.BENCH, environment, backend, self._missing(environment))
        if begins:
            self._lender.start_soon(self._warm_all, environment, device, turns)

    def _missing(self, environment: Environment) -> int:
        """Return how many more spares the devices of an environment are to have."""
        return sum(
            max(0, warming.wanted - warming.at_work - self._idle.spares(Role.BENCH, environment, device))
            for (its_environment, device), warming in self._warming.items()
            if its_environment == environment
        )

    @property
    def _makes_any(self) -> bool:
        return self.are_kept and not self.is_closed

    def prepare_compilers(self, environment: Environment, backend: str, *, besides: int = 0) -> None:
        """Have compile workers start and import what ``backend`` compiles with, all that have work at once and
        ``besides``.

        Of an unknown backend one starts. On another host, whose cores others may need, none starts before there is
        something to compile.
        """
        if not environment.host:
            count = min(self._lender.slots_of(environment).most_inside, EARLY_COMPILERS) if backend else 1
            self.prepare(Role.COMPILE, environment, backend, count + besides)

    async def _make(self, role: Role, environment: Environment, backend: str, with_context: bool) -> None:
        """Start a spare."""
        try:
            # Not acquired: that would wait for this very spare.
            worker = await self._lender.start(role, environment)
            worker.makes_context = with_context and not self._lender.has_contexts
            try:
                modules = self._modules if role is Role.BENCH else ()
                wanted = requests.Prepare((backend,) if backend else (), modules, worker.makes_context)
                with self._lender.gate_of(environment).starting():
                    await worker.exchange(wanted, {Phase.LOAD: self._lender.spawn_s})
            except BaseException:
                worker.kill()
                raise
            self._stand_by(worker)
        except WorkerError as error:
            # The lane meets the same error when it needs the worker, and reports it.
            _log.info("spare_failed", role=role, reason=error.message)
        finally:
            self._of_kind(role, environment).end_one()

    def _stand_by(self, worker: Worker) -> None:
        took_s = round(monotonic() - worker.started, 3)
        _log.debug("spare_ready", role=worker.role, pid=worker.pid, took_s=took_s, phases=worker.timeline())
        self._lender.release(worker)

    async def _warm_all(self, environment: Environment, device: Device, turns: Turns) -> None:
        """Warm spares for a device one after the other, as they come, until it has as many as are wanted."""
        kind, key = (Role.BENCH, environment), (environment, device.name)
        under_way, warming = self._of_kind(*kind), self._warming[key]
        try:
            while self._idle.spares(*kind, device.name) < warming.wanted and self._makes_any:
                if self._idle.spares(*kind, ""):
                    async with turns.hold(NO_JOB):
                        await self._warm_one(environment, device, warming)
                elif under_way.count:
                    await under_way.news.wait()
                else:
                    return
        finally:
            del self._warming[key]

    async def _warm_one(self, environment: Environment, device: Device, warming: _Warming) -> None:
        """Have a spare make its context on a device, and load its first kernels; the caller holds the device.

        One that the device refuses stays cold, and is announced.
        """
        # A lane may have taken the last one meanwhile.
        worker = self._idle.take_cold(Role.BENCH, environment)
        if worker is None:
            return
        wanted = requests.Canary(device, warms_up=True)
        warming.at_work += 1
        try:
            await worker.exchange(wanted, {Phase.LOAD: min(WARM_S, self._lender.spawn_s)})
        except RequestFailed as error:
            self._cold[device.name] = error.message
            _log.info("spare_cold", device=device.name, reason=error.message)
        except WorkerError as error:
            _log.info("spare_failed", role=worker.role, reason=error.message)
            return
        except BaseException:
            worker.kill()
            raise
        else:
            self._cold.pop(device.name, None)
        finally:
            warming.at_work -= 1
        # Cold or warm it is this device's: counted among its spares, and not tried again.
        worker.device = device.name
        self._stand_by(worker)
