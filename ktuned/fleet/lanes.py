"""Lanes: one device's measuring position each, on which at most one trial is measured at any time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic
from typing import Any

import anyio
import msgspec
import structlog

from ktuned.fleet.courtesy import LINGER_S, Courtesy
from ktuned.fleet.executor import Environment, I, KernelCode, R, Worker
from ktuned.fleet.failures import HostLost, Output, RequestFailed
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.health import Health
from ktuned.fleet.pace import Pace
from ktuned.fleet.priority_semaphore import Turns
from ktuned.fleet.quiet import COURTESY_S, QuietGate
from ktuned.ipc import replies, requests
from ktuned.model import Device, Observation, Outcome, Role, WorkerError

_log = structlog.get_logger()

REAP_S = 1.0
"""Time for a killed worker to end: a process in an endless GPU kernel was seen to take 0.15 s."""

SPARES = {"cpu": 1, "cuda": 4}
SPARES_IN_TROUBLE = {"cpu": 2, "cuda": 6}
"""Spares of a lane, by the kind of its device, and of one that has just lost a worker. Bad configs come in rows, being
neighbours in the space, and often right after an edit, whose opening takes a spare, too: without one, the next failure
waits for an interpreter that imports torch, which takes two seconds. Spares that start together share the cores, and
each holds memory."""

CROWDED = "device_crowded"
"""Code of a worker's error: an application's memory leaves too little for a problem."""

OUTDATED = "outdated_worker"
"""Code of a worker's error: a file that it has mapped has changed on the disk."""

_NO_MEMORY = "out of memory"
"""Words of CUDA's and torch's errors."""

TROUBLE_S = 60.0
"""Time after a loss for which more spares are kept: each holds some 250 MiB, and 500 MiB of a GPU."""


class Bench(msgspec.Struct, frozen=True):
    """The problem that a bench worker must have opened before it can measure; equal identities need no reopening.

    ``code`` is the Python that opening it runs: a worker that has run other Python does not open it.
    ``learn`` takes in what the worker has observed while it opened the problem.
    """

    environment: Environment
    backend: str
    code: KernelCode
    identity: str
    request: requests.Request[Any, Any]
    learn: Callable[[Sequence[Observation]], Awaitable[None]] | None = None


class CannotOpen(WorkerError):
    """A problem's inputs or reference cannot be made: no trial of it can be measured."""

    code = "cannot_open"


class LaneSick(WorkerError):
    """The device does not work now; a job with another device uses that."""

    code = "lane_sick"


class LaneCrowded(LaneSick):
    """An application's memory leaves no room for a problem now; others on the device may be smaller."""


class ReferenceUnusable(WorkerError):
    """The artifact that was to give a problem's expected outputs is damaged, or the device cannot run it."""

    code = "reference_unusable"

    def __init__(self, message: str, key: str, *, is_damaged: bool) -> None:
        super().__init__(message)
        self.key = key
        self.is_damaged = is_damaged


class Lane:
    """One device, which a job holds by :meth:`hold` while it measures.

    After its worker was killed a lane is suspect: on a GPU the next worker must pass a canary first. If it does not, or
    the killed one cannot be reaped because it sits in the driver, the lane is sick, and is tried again with back-off.
    ``is_doubtful`` says that the last config may have damaged the worker, so that a failure after it proves nothing.
    Lanes of one device share its ``turns``; ``on_state`` is called when it becomes sick, and when it is well again.
    """

    def __init__(
        self,
        device: Device,
        fleet: Fleet,
        *,
        turns: Turns | None = None,
        on_state: Callable[[Lane], None] = lambda lane: None,
        health: Health | None = None,
        reap_s: float = REAP_S,
        courtesy: Courtesy | None = None,
    ) -> None:
        self.device = device
        self.busy_s = 0.0
        self.job: int | None = None
        self.health = health or Health()
        self._fleet = fleet
        self._on_state = on_state
        self._reap_s = reap_s
        self._turns = turns or Turns()
        self._courtesy = courtesy or Courtesy()
        self._cores = 0
        self._worker: Worker | None = None
        self._bench: Bench | None = None
        self._killed: Worker | None = None
        self._killed_at = -TROUBLE_S
        self._is_suspect = False
        self.is_doubtful = False
        self._is_used = False
        self._is_spent = False
        self._deadlines: Mapping[str, float] = {}

    @property
    def state(self) -> str:
        """``ready``, ``busy`` or ``sick``."""
        if self.health.is_sick:
            return "sick"
        return "busy" if self._turns.is_full else "ready"

    @property
    def worker_pid(self) -> int | None:
        """The process that measures here, if one is up."""
        return self._worker.pid if self._worker is not None and self._worker.is_alive else None

    @asynccontextmanager
    async def hold(self, job: int) -> AsyncIterator[None]:
        """Hold the device for one job's next request; beside an application that is at work, not too often."""
        await self._courtesy.turn(self.device, job)
        async with self._turns.hold(job):
            self.job = job
            began = monotonic()
            try:
                yield
            finally:
                self._give_cores()
                self.busy_s += monotonic() - began
                self.job = None

    async def use_cores(self, cores: int) -> int:
        """Have cores that no other part of ktuned uses until the lane is left; the caller holds it. Returns how many.

        A GPU's lane needs one for the host's side of its launches.
        """
        if self._cores < cores:
            self._give_cores()
            self._cores = await self.gate.take(cores)
        return self._cores

    @property
    def pace(self) -> Pace:
        """The pace of all work on results."""
        return self._fleet.pace

    @property
    def gate(self) -> QuietGate:
        """The gate between compiles and timing on the device's machine."""
        return self._fleet.gate_on(self.device)

    def _give_cores(self) -> None:
        if self._cores:
            self.gate.give(self._cores)
            self._cores = 0

    async def open(self, bench: Bench, deadlines: Mapping[str, float]) -> None:
        """Have a worker ready that has opened ``bench``; the caller holds the lane. Waits while the lane is sick.

        Raises:
            CannotOpen: the kernel file, its inputs or its reference fail, hang or crash.
            ReferenceUnusable: another artifact is wanted; the lane has no worker until it is opened again.
            LaneCrowded: an application leaves too little memory.
        """
        while True:
            if self.health.pause_s:
                await anyio.sleep(self.health.pause_s)
            try:
                await self.open_now(bench, deadlines)
            except LaneCrowded:
                raise
            except LaneSick:
                continue
            return

    async def open_now(self, bench: Bench, deadlines: Mapping[str, float]) -> None:
        """Have a worker ready that has opened ``bench``, or learn that the lane is sick; the caller holds the lane.

        Raises:
            CannotOpen: as :meth:`open`; what failed may be the device, which the next try finds out.
            ReferenceUnusable: as :meth:`open`.
            LaneSick: the device does not work.
        """
        if self._worker is not None and self._worker.is_alive and self._bench is not None:
            if self._bench.environment == bench.environment and self._bench.identity == bench.identity:
                if not (self._is_spent or self._fleet.is_worn(self._worker)):
                    return
                self._let_go()
            elif self._bench.environment != bench.environment or self._bench.code != bench.code:
                self.rest()
            elif self.is_doubtful or self._is_spent or self._fleet.is_worn(self._worker):
                # Another problem's reference must not run where the last config of one may have done damage.
                self._let_go()
        self._deadlines = deadlines
        try:
            try:
                await self._open_in_worker(bench, deadlines)
            except RequestFailed as error:
                if error.code == "source_changed" or not await self._may_work_in_another(error.message):
                    raise
                _log.info("lane_opens_again", device=self.device.name, reason=error.message)
                # Waited for, as it may hold memory of the device; nothing is wrong with that.
                self._killed = self._worker
                self._let_go()
                await self._open_in_worker(bench, deadlines)
        except ReferenceUnusable:
            raise
        except BaseException as error:
            if isinstance(error, RequestFailed) and error.code == CROWDED:
                self._let_go()
                self._sick(error.message)
                raise LaneCrowded(error.message) from error
            self.drop()
            if isinstance(error, HostLost):
                # This says nothing about the problem; the lane waits for its machine, or another one stands in.
                self._sick(error.message)
                raise LaneSick(error.message) from error
            if isinstance(error, LaneSick) or (isinstance(error, WorkerError) and error.code == "source_changed"):
                raise
            if isinstance(error, WorkerError):
                raise CannotOpen(error.message, hint=error.hint) from error
            raise

    async def _open_in_worker(self, bench: Bench, deadlines: Mapping[str, float]) -> None:
        began = monotonic()
        if self._worker is None or not self._worker.is_alive:
            self._bench = None
            self._worker = await self._well_worker(bench, deadlines)
            await self._fleet.make_room(self.device.name)
        worker = self._worker
        self._is_used = worker.code is not None
        worker.code, worker.holds_data = bench.code, True
        had_worker_s = monotonic() - began
        if self._is_in_trouble:
            self._prepare_spares(bench)
        request = bench.request
        if isinstance(request, requests.Open):
            request = replace(request, is_shared=self._courtesy.is_shared(self.device))
        # Imports and references may use every core; what this lane has timed so far is over.
        self._give_cores()
        async with self.gate.computing(COURTESY_S):
            reply, _ = await worker.exchange(request, deadlines)
        if self.health.is_sick:
            self._well()
        if isinstance(request, requests.Open) and request.reference is not None and reply.unusable:
            # Nothing is wrong with the worker, which may open the problem with another artifact.
            self._bench = bench
            self.rest()
            raise ReferenceUnusable(reply.unusable, request.reference.key, is_damaged=reply.is_damaged)
        if bench.learn is not None:
            await bench.learn(reply.observed)
        # Not earlier: without a recent failure, spares' starts would only slow this opening, on 16 cores by 0.2 s.
        self._prepare_spares(bench)
        # The problem's data is its to keep; only what comes on top wears a worker out.
        worker.settle()
        self._bench = bench
        _log.debug(
            "lane_opened",
            device=self.device.name,
            pid=worker.pid,
            worker_s=round(had_worker_s, 3),
            took_s=round(monotonic() - began, 3),
            phases=worker.timeline(),
        )

    async def _may_work_in_another(self, reason: str) -> bool:
        """Return whether an opening that failed for a reason may succeed in a new worker.

        What the worker had opened before may be the reason (some modules cannot be imported twice), or the memory that
        idle ones hold on a GPU; those end.
        """
        if self.device.kind == "cpu":
            return self._is_used
        return await self._fleet.clear(self.device.name, and_spares=_NO_MEMORY in reason) or self._is_used

    async def _well_worker(self, bench: Bench, deadlines: Mapping[str, float]) -> Worker:
        """Return a worker on a device that works; after a failure on it, only once a canary has passed."""
        # Before the killed one is waited for: a worker that must start does so meanwhile.
        worker = await self._fleet.acquire(Role.BENCH, bench.environment, self.device.name, bench.code)
        try:
            trouble = await self._unreaped()
        except BaseException:
            worker.kill()
            raise
        if trouble:
            self._fleet.release(worker)
        else:
            # A crash on the CPU leaves nothing behind: every other process runs on it all the while.
            if not self._is_suspect or self.device.kind == "cpu":
                return worker
            trouble = await self._run_canary(worker, deadlines)
            if not trouble:
                self._is_suspect = False
                self._well()
                return worker
        self._sick(trouble)
        raise LaneSick(f"{self.device.name}: {trouble}")

    @property
    def _is_in_trouble(self) -> bool:
        return monotonic() - self._killed_at < TROUBLE_S

    def prepare(self, environment: Environment, backend: str) -> None:
        """Have the worker start that the lane will need."""
        self._fleet.spares.prepare(Role.BENCH, environment, backend, with_context=self.device.kind != "cpu")

    def _prepare_spares(self, bench: Bench) -> None:
        wanted = SPARES_IN_TROUBLE if self._is_in_trouble else SPARES
        count = wanted.get(self.device.kind, 1)
        if self.device.kind == "cpu" or self._courtesy.is_shared(self.device):
            # A warm spare would take memory that an application may need.
            self._fleet.spares.prepare(Role.BENCH, bench.environment, bench.backend, count)
            return
        self._fleet.spares.prepare_warm(bench.environment, bench.backend, self.device, self._turns, count)

    async def _unreaped(self) -> str:
        """Wait for the killed worker's end; return why the device cannot be used if it does not come."""
        killed = self._killed
        if killed is None:
            return ""
        with anyio.move_on_after(self._reap_s):
            await killed.gone.wait()
            self._killed = None
            return ""
        return f"worker {killed.pid} was killed but does not end: it is stuck in the driver"

    async def _run_canary(self, worker: Worker, deadlines: Mapping[str, float]) -> str:
        """Run the canary; return what is wrong with the device, or nothing."""
        try:
            await worker.exchange(requests.Canary(self.device), deadlines)
        except WorkerError as error:
            self._killed = worker
            worker.kill()
            return f"the canary failed: {error.message}"
        return ""

    def _sick(self, reason: str) -> None:
        self.health.failed(reason)
        self._on_state(self)

    def _well(self) -> None:
        was_sick = self.health.is_sick
        self.health.succeeded()
        if was_sick:
            self._on_state(self)

    async def exchange(
        self,
        request: requests.Request[R, I],
        deadlines: Mapping[str, float],
        *,
        on_item: Callable[[I], None] | None = None,
    ) -> tuple[R, Output]:
        """Have the opened worker measure something; the caller holds the lane.

        A worker that has mapped a file which has changed since is replaced first. One in which the last config has left
        something is replaced at the next :meth:`open`, and so is one that a config may have damaged and that fails.

        Raises:
            WorkerDied, DeadlineExpired: the worker is gone; the next :meth:`open` takes the spare.
        """
        assert self._worker is not None
        began = monotonic()
        try:
            try:
                reply, output = await self._worker.exchange(request, deadlines, on_item=on_item)
            except RequestFailed as error:
                if error.code != OUTDATED or self._bench is None:
                    raise
                _log.info("lane_worker_outdated", device=self.device.name, reason=error.message)
                bench = self._bench
                self._let_go()
                await self.open_now(bench, self._deadlines)
                reply, output = await self._worker.exchange(request, deadlines, on_item=on_item)
            if isinstance(reply, replies.Measurement):
                self._look_after_worker(reply)
            return reply, output
        except BaseException:
            self.drop()
            raise
        finally:
            self._courtesy.used(self.device, began, monotonic())

    def _look_after_worker(self, measured: replies.Measurement) -> None:
        """Replace the worker where the last config may have left it, or the device's context, in any state."""
        was_doubtful, self.is_doubtful = self.is_doubtful, measured.is_guilty
        failed_in_doubt = was_doubtful and measured.outcome is Outcome.MISMATCH
        if measured.leftover:
            _log.debug("lane_worker_spent", device=self.device.name, reason=measured.leftover)
            self._is_spent = True
        if measured.is_unsound or failed_in_doubt or measured.outcome is Outcome.LAUNCH_ERROR:
            self.drop()

    def output(self) -> Output:
        """Return what the worker has printed since it was asked last; the caller holds the lane."""
        return Output() if self._worker is None else self._worker.output()

    def drop(self) -> None:
        """Kill the lane's worker: after a failure that may have left it, or its device, in an unknown state."""
        if self._worker is not None:
            self._killed = self._worker
            self._killed_at = monotonic()
            self._is_suspect = True
        self._let_go()

    def _let_go(self) -> None:
        if self._worker is not None:
            self._worker.kill()
        self._worker = None
        self._bench = None
        self.is_doubtful = self._is_spent = False

    def rest(self) -> None:
        """Give the worker back when there is nothing to measure, so that it can be let go."""
        if self.is_doubtful or self._is_spent:
            self._let_go()
        if self._worker is not None and self._bench is not None:
            self._fleet.release(self._worker)
        self._worker = None
        self._bench = None

    async def leave_room(self) -> None:
        """Give up the device's memory beside an application when there is nothing to measure: data at once, and
        contexts a little later.
        """
        if not self._courtesy.is_shared(self.device):
            return
        await self._fleet.make_room(self.device.name)
        await anyio.sleep(LINGER_S)
        if self.is_at_rest and self._courtesy.is_shared(self.device):
            await self._fleet.clear(self.device.name)

    @property
    def is_at_rest(self) -> bool:
        """True if no job uses the device."""
        return self._worker is None and not self._turns.is_full

    @property
    def applications(self) -> tuple[int, ...]:
        """The applications that may be at work on the device."""
        return self._courtesy.pids(self.device)

    def describe(self) -> dict[str, Any]:
        """Return the lane for a status."""
        return {
            "device": self.device.name,
            "model": self.device.model,
            "state": self.state,
            "reason": self.health.reason,
            "job": self.job,
            "worker_pid": self.worker_pid,
            "busy_s": round(self.busy_s, 3),
        }
