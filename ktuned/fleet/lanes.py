"""Lanes: each is one device's measuring position, on which at most one trial is measured at any time.

A :class:`Lane` carries out the instructions of the :mod:`~ktuned.fleet.lane_machine` and decides nothing itself. A job
uses it in this order::

    async with lane.hold(job):  # the device is the job's, for one request or a few
        await lane.open_problem(bench, deadlines)  # a worker has the problem open; often it already had
        await lane.send_request(request, deadlines)  # the worker measures
    lane.release_worker()  # when no job needs the lane any more

An error or a cancellation in between leaves the lane without a worker; the next opening gets another one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from time import monotonic

import anyio
import structlog
from msgspec.structs import replace

from ktuned.fleet.device_share import LOOK_S, LOOKS
from ktuned.fleet.executor import Environment, I, R, Worker
from ktuned.fleet.failures import Health, Output, ReferenceUnusable
from ktuned.fleet.fleet import Fleet
from ktuned.fleet.lane_machine import (
    Bench,
    DeviceUsed,
    Event,
    Fail,
    LaneRecord,
    LaneState,
    Measured,
    OpenProblem,
    ProblemNeeded,
    Released,
    Rest,
    RunCanary,
    Step,
    StepDone,
    StepFailed,
    Stopped,
    TakeWorker,
    Trust,
    WorkerTaken,
)
from ktuned.fleet.quiet import COURTESY_S, Pace, QuietGate
from ktuned.ipc import replies, requests
from ktuned.model import Device, Role, WorkerError
from ktuned.protocol import LaneInfo

_log = structlog.get_logger()

REAP_S = 1.0
"""Deadline for a killed worker to end. A process in an endless GPU kernel was seen to take 0.15 s."""


class Lane:
    """One device, which a job holds by :meth:`hold` while it measures. Lanes of the same device take turns.

    Args:
        device: The device; several lanes may share it.
        fleet: Lends the workers.
        on_state: Called when the lane becomes sick, and when it is well again.
        health: Failures of the device and the pauses after them.
        reap_s: How long a killed worker may take to end before the device counts as sick, in seconds.
        applications: The applications that may be at work on the device.
        is_waited_for: Returns whether a client waits for a job; such a job does not make way for an application.

    Attributes:
        record: The lane's state, which only the lane machine changes.
        busy_s: Seconds for which jobs have held the lane in all.
        job: The job that holds the lane now, if any.
        data: The digest of the data that is open (:class:`~ktuned.ipc.replies.Opened`).
    """

    def __init__(
        self,
        device: Device,
        fleet: Fleet,
        *,
        on_state: Callable[[Lane], None] = lambda lane: None,
        health: Health | None = None,
        reap_s: float = REAP_S,
        is_waited_for: Callable[[int], bool] = lambda job: False,
    ) -> None:
        self.device = device
        self.record = LaneRecord(device, health or Health())
        self.busy_s = 0.0
        self.job: int | None = None
        self.data = self.inputs = ""
        self._fleet = fleet
        self._reported_failures = self.record.health.failures
        self._turns = fleet.get_turns(device)
        self._on_state = on_state
        self._reap_s = reap_s
        self._is_waited_for = is_waited_for
        self._cores = 0
        self._deadlines: Mapping[str, float] = {}

    @property
    def health(self) -> Health:
        """Whether the device works, and if not, for how long it is left alone."""
        return self.record.health

    @property
    def is_doubtful(self) -> bool:
        """True if the last config may have damaged the worker, so that a failure after it proves nothing."""
        return self.record.trust is Trust.DOUBTFUL

    @property
    def state(self) -> str:
        """``ready``, ``busy`` or ``sick``."""
        if self.health.is_sick:
            return "sick"
        return "busy" if self._turns.is_full else "ready"

    @property
    def worker_pid(self) -> int | None:
        """The process id of the lane's worker, if it has a live one."""
        worker = self.record.worker
        return worker.pid if worker is not None and worker.is_alive else None

    @property
    def applications(self) -> tuple[int, ...]:
        """The applications that may be at work on the device."""
        return self._fleet.applications.list_on_device(self.device)

    @property
    def pause_s(self) -> float:
        """For how many seconds the lane leaves the device to an application, unless the application leaves it."""
        return self._fleet.machine.pause_s(self.device) if self.applications else 0.0

    @property
    def pace(self) -> Pace:
        """The pace at which results are worked on; all lanes share it."""
        return self._fleet.pace

    @property
    def gate(self) -> QuietGate:
        """The gate between compiles and timing on the device's machine."""
        return self._fleet.get_gate(self.device)

    @asynccontextmanager
    async def hold(self, job: int) -> AsyncIterator[None]:
        """Hold the device for a job's next request.

        If an application is using the device and no client waits for the job, this first waits until the lane's share
        of the time (:mod:`~ktuned.fleet.device_share`) allows another request.
        """
        while (pause_s := self.pause_s) and not self._is_waited_for(job):
            await anyio.sleep(min(pause_s, LOOK_S))
            # The last look would only prolong the pause by what it takes itself.
            if pause_s > LOOK_S:
                await self._look_at_device(job)
        async with self._turns.hold_turn(job):
            self.job = job
            began = monotonic()
            try:
                yield
            finally:
                self._release_cores()
                self.busy_s += monotonic() - began
                self.job = None

    async def _look_at_device(self, job: int) -> None:
        """Have the open worker look whether the application has left the device; it costs nothing then."""
        async with self._turns.hold_turn(job):
            if self.record.state is LaneState.OPEN and self.worker_pid is not None:
                with suppress(WorkerError):
                    await self.send_request(requests.Canary(self.device, looks=LOOKS), self._deadlines)

    async def reserve_cores(self, cores: int) -> int:
        """Reserve cores for a timing until the caller leaves the lane; return how many are reserved.

        No other part of ktuned uses them meanwhile. A GPU's lane needs one core, for the host side of its launches.
        """
        if self._cores < cores:
            self._release_cores()
            self._cores = await self.gate.reserve_cores(cores)
        return self._cores

    def _release_cores(self) -> None:
        if self._cores:
            self.gate.release_cores(self._cores)
            self._cores = 0

    def prepare_worker(self, environment: Environment, backend: str) -> None:
        """Start in the background the worker that the lane will need."""
        self._fleet.prepare_spares(Role.BENCH, environment, backend, with_context=self.record.is_gpu)

    async def open_problem(
        self, bench: Bench, deadlines: Mapping[str, float], *, waits: bool = True, has_stand_in: bool = False
    ) -> None:
        """Have a worker ready that has opened a problem; the caller holds the lane.

        Args:
            bench: The problem.
            deadlines: Seconds for each phase, by its name.
            waits: Whether to wait while the lane is sick.
            has_stand_in: Whether the job has another lane that works.

        Raises:
            CannotOpen: the kernel file, its inputs or its reference fail, hang or crash.
            ReferenceUnusable: the problem needs another reference; the lane has no worker until the next opening.
            LaneCrowded: an application leaves too little memory.
            LaneSick: the device does not work, and the caller does not wait.
        """
        self._deadlines = deadlines
        try:
            await self._drive(ProblemNeeded(self.record, bench, waits, has_stand_in, bool(self.applications)))
        except BaseException:
            self._handle(Stopped(self.record))
            raise

    async def send_request(
        self,
        request: requests.Request[R, I],
        deadlines: Mapping[str, float],
        *,
        on_item: Callable[[I], None] | None = None,
    ) -> tuple[R, Output]:
        """Have the opened worker measure something; the caller holds the lane.

        Raises:
            WorkerDied, DeadlineExpired, RequestFailed: the worker has ended; the next opening takes another worker.
        """
        began = monotonic()
        taken_s: float | None = None
        try:
            while True:
                try:
                    reply, output = await self._worker.send_request(request, deadlines, on_item=on_item)
                except WorkerError as error:
                    # Raises the error, unless the machine retries the request with another worker.
                    await self._drive(StepFailed(self.record, error))
                    continue
                if isinstance(reply, replies.Measurement):
                    self._handle(Measured(self.record, reply))
                if isinstance(reply, replies.Measurement | replies.DeviceSeen):
                    taken_s = reply.taken_s
                return reply, output
        except BaseException:
            self._handle(Stopped(self.record))
            taken_s = monotonic() - began
            raise
        finally:
            if taken_s is not None:
                self._handle(DeviceUsed(self.device, taken_s, bool(self.applications)))
                _log.debug("device_used", device=self.device.name, taken_s=taken_s, took_s=monotonic() - began)

    def take_output(self) -> Output:
        """Return the output that the worker's code has printed since the last call; the caller holds the lane."""
        return Output() if self.record.worker is None else self.record.worker.take_output()

    def release_worker(self) -> None:
        """Give up the worker when no job needs the lane.

        If an application may be at work on the device, idle workers also give up the device's memory.
        """
        self._handle(Released(self.record, bool(self.applications)))

    def _handle(self, event: Event) -> Step | None:
        """Give the machine an event and carry out its instructions; return the lane's step, if there is one.

        Raises:
            WorkerError: the machine says so.
        """
        step = self._fleet.handle(event)
        if self.health.failures != self._reported_failures:
            self._reported_failures = self.health.failures
            self._on_state(self)
        if isinstance(step, Fail):
            raise step.error
        return step

    async def _drive(self, event: Event) -> None:
        """Give the machine an event, and carry out the lane's steps until the problem is open.

        Raises:
            WorkerError: the problem cannot be opened now, or at all.
        """
        step = self._handle(event)
        while step is not None:
            try:
                outcome = await self._carry_out_step(step)
            except WorkerError as error:
                outcome = StepFailed(self.record, error)
            step = self._handle(outcome)

    async def _carry_out_step(self, step: Step) -> Event:
        match step:
            case Rest():
                await anyio.sleep(self.health.pause_s)
            case TakeWorker():
                return WorkerTaken(self.record, await self._take_worker())
            case RunCanary():
                await self._worker.send_request(requests.Canary(self.device), self._deadlines)
            case OpenProblem(_, closing):
                await self._run_opening(closing)
        return StepDone(self.record)

    @property
    def _worker(self) -> Worker:
        assert self.record.worker is not None
        return self.record.worker

    async def _take_worker(self) -> Worker:
        lane = self.record
        worker = await self._fleet.acquire_worker(
            Role.BENCH, lane.needed.bench.environment, self.device.name, lane.needed.bench.code
        )
        try:
            with anyio.move_on_after(self._reap_s):
                for killed in lane.ending:
                    await killed.gone.wait()
        except BaseException:
            worker.kill()
            raise
        return worker

    async def _run_opening(self, closing: Sequence[Worker]) -> None:
        worker, bench, began = self._worker, self.record.needed.bench, monotonic()
        await self._fleet.close_data(closing)
        request = bench.request
        if isinstance(request, requests.Open):
            request = replace(request, is_shared=bool(self.applications))
        # The lane's timings so far are over, so its cores go back. The opening's imports and references may use every
        # core, and a lane that still held them all would wait for itself at the gate.
        self._release_cores()
        async with self.gate.hold_for_computing(COURTESY_S):
            reply, _ = await worker.send_request(request, self._deadlines)
        # The problem's data does not wear a worker out; only memory beyond it counts as growth.
        worker.settle_memory()
        if isinstance(request, requests.Open) and request.reference is not None and reply.unusable:
            raise ReferenceUnusable(reply.unusable, request.reference.key, is_damaged=reply.is_damaged)
        self.data, self.inputs = (reply.data, reply.inputs) if isinstance(request, requests.Open) else ("", "")
        if bench.learn is not None:
            await bench.learn(reply.observed)
        took_s = round(monotonic() - began, 3)
        _log.debug(
            "lane_opened", device=self.device.name, pid=worker.pid, took_s=took_s, phases=worker.read_phase_durations()
        )

    def describe_lane(self) -> LaneInfo:
        """Return a description of the lane for a status."""
        return LaneInfo(
            device=self.device.name,
            model=self.device.model,
            state=self.state,
            reason=self.health.reason,
            job=self.job,
            worker_pid=self.worker_pid,
            busy_s=round(self.busy_s, 3),
        )
