"""Lane machine: events in, instructions out. Decides which worker may use a device next; does no IO.

*Theory.* A lane is one device's measuring position. It has at most one worker, which has at most one problem open. A
worker that measures has imported torch and made a context on the GPU, which takes two seconds, so workers are kept. But
any config may leave its worker, or the device, in an unknown state that cannot be seen from outside the process. Two
questions follow: *may this worker do the next thing?* and *does this device still work?* This module answers them, for
all devices and all roles of workers. ``docs/life-of-a-lane.md`` tells the same without code.

*The state is the instruction.* Each :class:`LaneState` on the way to an open problem names one step. The lane carries
out that step and passes its outcome to :meth:`LaneMachine.advance_lane`, until the problem is open. :data:`MOVES` lists
every legal move. All other instructions are returned to the caller of the method, who carries them out.

*Trust*: a config that writes outside its tensors makes its worker doubtful, and the next config acquits or ends it. A
spent worker stays spent. Trust and the lane's next task together decide whether the worker stays, is released or ends;
nothing else does.

*Giving up.* There are three ways. Leaving a lane (the end of ``Lane.hold``) gives up the device and keeps the worker.
Releasing a worker lets it idle with its problem open. Ending a worker kills the process; the next worker does not touch
the device before that process is gone.

*Failures.* A lane that lost its worker to a failure is *suspect*: on a GPU its next worker must pass a canary. If the
canary fails, or a killed worker does not end because it is stuck in the driver, the lane is *sick* and is left alone
for growing pauses. A failed opening is retried once if something other than the problem may be the reason. The retry
uses another worker, which on a GPU must pass the canary.

*Why it is not simpler.* Which worker to end for memory, which to take and which to start is one decision about the
lane's worker and the idle ones together. When the two had separate owners, a worker could be told to close its data
while another job took it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from enum import Enum, StrEnum, auto
from time import monotonic
from typing import Any

import msgspec

from ktuned.fleet.executor import Environment, KernelCode, Worker
from ktuned.fleet.failures import (
    CannotOpen,
    HostLost,
    LaneCrowded,
    LaneSick,
    ReferenceUnusable,
    RequestFailed,
    is_outside_kill,
)
from ktuned.fleet.health import FIRST_PAUSE_S, Health
from ktuned.ipc import replies, requests
from ktuned.model import Device, DeviceName, IllegalMove, Observation, Outcome, Phase, Role, WorkerError

WorkerKind = tuple[Role, Environment]

SPARES = {"cpu": 1, "cuda": 4}
SPARES_IN_TROUBLE = {"cpu": 2, "cuda": 6}
"""Spares of a lane, by the kind of its device: normally, and after it has just lost a worker. Bad configs come in
rows, because they are neighbours in the space, and often right after an edit, whose opening takes a spare, too. Without
a spare, the next failure waits two seconds for a new interpreter to import torch. More spares would cost memory, and
spares that start together share the cores."""

TROUBLE_S = 60.0
"""How long after losing a worker a lane keeps ``SPARES_IN_TROUBLE``: each spare holds some 250 MiB, and 500 MiB of a
GPU."""

EARLY_COMPILERS = 16
"""At most this many compile workers start before the number of configs is known: more than a small space needs, and
fewer than a machine with hundreds of cores would run."""

KEPT_OPEN = 2
"""Workers of a device that have opened a kernel file, the one in use included: an author's saves alternate between two
files. Each holds some 300 MiB, and 500 MiB of a GPU."""

IDLE_S_OF = {Role.INSPECT: 900.0, Role.EXPLORE: 900.0}
"""Roles whose workers idle for longer: each holds only some 30 MiB, and an author thinks for minutes between two
saves."""

WORN_SHARE = 0.25
"""A worker is replaced when it has grown by this part of its memory limit since it settled, or after
``FleetLimits.max_requests``: otherwise leaks of the loaded code add up until a harmless config is killed for them."""

TOLERATED_FAILURES = 3
"""Worker starts that may fail in a row before the next start has to wait."""

LINGER_S = 10.0
"""How long idle workers keep their contexts beside an application: the next key's job often follows at once."""

DUTY = 0.1
"""Share of the time that a lane may use a GPU beside an application, so that a training step takes at most a tenth
longer."""

CROWDED = "device_crowded"
"""Code of a worker's error: an application leaves too little memory for the problem."""

OUTDATED = "outdated_worker"
"""Code of a worker's error: a file that the worker has mapped has changed on the disk."""

SOURCE_CHANGED = "source_changed"
"""Code of an error: the sources have changed since they were inspected. The save that changed them starts over."""

_NO_MEMORY = "out of memory"
"""Part of the messages of CUDA and torch when memory ran out."""


class FleetLimits(msgspec.Struct, frozen=True):
    """How many idle workers a fleet keeps, for how long, and when a worker is replaced."""

    idle_s: float = 60.0
    """An idle worker ends after this long: a bench worker holds torch, some 300 MiB."""

    max_idle: int = 32
    """Idle workers of all projects, not counting those that the compile slots need. A limit is needed because each
    project has its own environment, and a person may have a hundred projects."""

    max_idle_bytes: float = math.inf
    """Memory of this machine that all idle workers together may hold."""

    max_requests: int = 500
    """Requests after which a worker is replaced."""

    first_pause_s: float = FIRST_PAUSE_S
    """Pause after the first failed start beyond ``TOLERATED_FAILURES``."""


class Bench(msgspec.Struct, frozen=True):
    """The problem that a bench worker must have opened before it can measure.

    Attributes:
        environment: The environment that the worker runs in.
        backend: The backend of the kernel.
        code: The Python that runs when the problem is opened. A worker that has run other Python does not open it.
        identity: If the worker has a problem with the same identity open, it need not open this one.
        request: Has the worker open the problem.
        learn: Takes the worker's observations from the opening.
    """

    environment: Environment
    backend: str
    code: KernelCode
    identity: str
    request: requests.Request[Any, Any]
    learn: Callable[[Sequence[Observation]], Awaitable[None]] | None = None


class Trust(Enum):
    """How far a lane's worker is trusted."""

    SOUND = auto()
    """It may do anything."""
    DOUBTFUL = auto()
    """Its last config wrote outside its tensors: it may measure another one, but opens nothing."""
    SPENT = auto()
    """It must be replaced before its next request."""


class LaneState(StrEnum):
    """Where a lane is on its way to an open problem, and what it has to do next."""

    VACANT = "vacant"
    """The lane has no worker and nothing to do."""
    RESTING = "resting"
    """The lane is sick: wait until its pause is over."""
    TAKING = "taking"
    """Borrow a worker for ``bench``, and give the workers in ``ending`` a moment to end. The outcome is the worker, or
    the error."""
    PROVING = "proving"
    """Have the worker run the canary. The outcome is the error, if there is one."""
    OPENING = "opening"
    """Have the workers in ``closing`` close their data, then have the lane's worker open ``bench``. The outcome is the
    error, if there is one."""
    OPEN = "open"
    """The lane can measure. The outcome is the error of a request."""


_S = LaneState
MOVES: dict[LaneState, frozenset[LaneState]] = {
    _S.VACANT: frozenset({_S.RESTING, _S.TAKING}),
    _S.RESTING: frozenset({_S.TAKING, _S.VACANT}),
    _S.TAKING: frozenset({_S.TAKING, _S.PROVING, _S.OPENING, _S.RESTING, _S.VACANT}),
    _S.PROVING: frozenset({_S.OPENING, _S.RESTING, _S.VACANT}),
    _S.OPENING: frozenset({_S.OPEN, _S.TAKING, _S.RESTING, _S.VACANT}),
    _S.OPEN: frozenset({_S.OPENING, _S.TAKING, _S.VACANT}),
}
"""The states that may follow each state."""


class LaneRecord(msgspec.Struct, eq=False):
    """The whole state of a lane; only the machine changes it.

    Attributes:
        device: The device that the lane measures on.
        health: The failures of the device, and the pause after them.
        state: The lane's next step.
        worker: The worker that the lane has, if any.
        bench: The problem that is open, or is being opened.
        trust: How far the worker is trusted.
        ending: Killed workers that may still hold the device.
        closing: Idle workers that have to close their data before the problem is opened.
        is_suspect: Whether the lane lost its last worker to a failure; on a GPU the next one must pass the canary.
        lost_at: When the lane last lost a worker to a failure, by the machine's clock.
        has_retried: Whether the one retry of this need, of its opening or of a request, is used up.
        was_used: Whether the worker had opened a kernel file before this opening.
        waits: Whether the job waits while the lane is sick.
        has_stand_in: Whether the job has another lane that works.
        is_shared: Whether an application may be at work on the device.
    """

    device: Device
    health: Health = msgspec.field(default_factory=Health)
    state: LaneState = LaneState.VACANT
    worker: Worker | None = None
    bench: Bench | None = None
    trust: Trust = Trust.SOUND
    ending: list[Worker] = msgspec.field(default_factory=list)
    closing: list[Worker] = msgspec.field(default_factory=list)
    is_suspect: bool = False
    lost_at: float = -math.inf
    has_retried: bool = False
    was_used: bool = False
    waits: bool = True
    has_stand_in: bool = False
    is_shared: bool = False

    @property
    def is_gpu(self) -> bool:
        """True if a failure may have left the device itself in a bad state. A CPU is exempt: every other process keeps
        running on it.
        """
        return self.device.kind != "cpu"

    def require_state(self, *states: LaneState) -> None:
        """Refuse an event that is legal only in some states.

        Raises:
            IllegalMove: the lane is in none of these states.
        """
        if self.state not in states:
            raise IllegalMove(f"lane {self.device.name} is {self.state}, and not {' or '.join(states)}")

    def move_to(self, state: LaneState) -> None:
        """Go to another state, if :data:`MOVES` allows it.

        Raises:
            IllegalMove: :data:`MOVES` does not allow it; the state stays the same.
        """
        if state not in MOVES[self.state]:
            raise IllegalMove(f"lane {self.device.name} is {self.state}, and cannot be {state} next")
        self.state = state


# Instructions


class EndWorker(msgspec.Struct, frozen=True):
    """Kill a worker."""

    worker: Worker


class CloseData(msgspec.Struct, frozen=True):
    """Have idle workers close their problems' data, in the background."""

    workers: Sequence[Worker]


class MakeSpare(msgspec.Struct, frozen=True):
    """Make a spare, in the background. It imports ``backend``.

    With ``may_make_context`` it also makes its context, but only if no worker has one yet: otherwise a lane may be
    timing by then, and making a context would stretch that timing.
    """

    role: Role
    environment: Environment
    backend: str
    may_make_context: bool

    @property
    def kind(self) -> WorkerKind:
        """The role and environment of the spare."""
        return self.role, self.environment


class WarmSpare(msgspec.Struct, frozen=True):
    """Wait for a turn on a device, behind all jobs, and have a spare make its context there."""

    environment: Environment
    device: Device


class LendWorker(msgspec.Struct, frozen=True):
    """Give the caller this worker."""

    worker: Worker


class AwaitSpare(msgspec.Struct, frozen=True):
    """Have the caller wait until a spare of this kind is ready or has failed, and then ask again."""

    kind: WorkerKind


class Fail(msgspec.Struct, frozen=True):
    """Raise this error at the caller."""

    error: WorkerError


Instruction = EndWorker | CloseData | MakeSpare | WarmSpare | LendWorker | AwaitSpare | Fail


class _Warming(msgspec.Struct, eq=False):
    """Spares that have not yet made their contexts on a device; they do so one at a time.

    Attributes:
        device: The device.
        missing: How many spares are still to make a context there.
        waits: Whether one of them is waiting for its turn on the device.
        is_at_work: Whether one of them is making its context now.
    """

    device: Device
    missing: int = 0
    waits: bool = False
    is_at_work: bool = False


class LaneMachine:
    """The rules for all lanes and workers of a fleet. Each method takes an event and returns instructions.

    Args:
        limits: How many idle workers are kept, for how long, and when a worker is replaced.
        compilers_of: Returns how many compile workers of a host may have work at once; an empty name is this machine.
        keeps_spares: Whether spares are made; may be changed at any time.
        memory_limits: Bytes that a worker of each role may use; may be changed at any time.
        clock: The time in seconds, by the clock of workers' starts.
    """

    def __init__(
        self,
        limits: FleetLimits | None = None,
        *,
        compilers_of: Callable[[str], int] = lambda host: 1,
        keeps_spares: bool = True,
        memory_limits: dict[Role, int] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.limits = limits or FleetLimits()
        self.keeps_spares = keeps_spares
        self.memory_limits = memory_limits or {}
        self.idle: list[Worker] = []
        """Workers that may be lent, the longest idle first."""
        self.spares_under_way: Counter[WorkerKind] = Counter()
        self._awaited: Counter[WorkerKind] = Counter()
        """Callers that wait for a spare, by its kind."""
        self._warming: dict[tuple[Environment, DeviceName], _Warming] = {}
        self._cold: dict[str, str] = {}
        """Why a device's spares are not warm, by the device's name."""
        self._starts: dict[WorkerKind, Health] = {}
        """The starts of workers that failed in a row, and the pause after them."""
        self._outdated_at: dict[Environment | None, float] = {}
        """When something changed that an environment's workers had imported; None stands for all environments."""
        self._free_at: dict[str, float] = {}
        """When a lane may use a device again beside an application, by the device's name."""
        self._idle_bytes = 0
        self._compilers_of = compilers_of
        self._clock = clock

    # A lane's way to an open problem

    def need_problem(
        self, lane: LaneRecord, bench: Bench, *, waits: bool = True, has_stand_in: bool = False, is_shared: bool = False
    ) -> Iterator[Instruction]:
        """A job that holds a lane needs a problem open there.

        Args:
            lane: The lane, vacant or open.
            bench: The problem.
            waits: Whether the job waits while the lane is sick.
            has_stand_in: Whether the job has another lane that works.
            is_shared: Whether an application may be at work on the device.
        """
        lane.require_state(LaneState.VACANT, LaneState.OPEN)
        before, lane.bench = lane.bench, bench
        lane.waits, lane.has_stand_in, lane.is_shared = waits, has_stand_in, is_shared
        lane.has_retried = False
        if lane.worker is not None and before is not None:
            trust = self._judge_trust(lane)
            has_same_code = (before.environment, before.code) == (bench.environment, bench.code)
            if has_same_code and before.identity == bench.identity and trust is not Trust.SPENT:
                return
            # A doubtful worker opens nothing: its last config may have damaged the memory that the reference is
            # computed from. And a worker opens only one file: the file may have changed the process (torch's default
            # dtype, threads, flags), which would affect another file's results.
            if has_same_code and trust is Trust.SOUND:
                yield from self._open_problem(lane)
                return
            yield from self._part_with_worker(lane)
        lane.move_to(LaneState.RESTING if waits and lane.health.pause_s else LaneState.TAKING)

    def advance_lane(self, lane: LaneRecord, outcome: Worker | WorkerError | None = None) -> Iterator[Instruction]:
        """A lane has carried out the step of its state; ``outcome`` is the worker that it got, or the error.

        Raises:
            IllegalMove: the step cannot have this outcome.
        """
        match lane.state, outcome:
            case LaneState.RESTING, None:
                lane.move_to(LaneState.TAKING)
            case LaneState.TAKING, Worker() as worker:
                lane.worker = worker
                if stuck := [killed for killed in lane.ending if killed.is_alive]:
                    yield from self._release_worker_of(lane)
                    message = f"worker {stuck[0].pid} was killed but does not end: it is stuck in the driver"
                    yield from self._fall_sick(lane, LaneSick(message))
                    return
                lane.ending.clear()
                if lane.is_suspect and lane.is_gpu:
                    lane.move_to(LaneState.PROVING)
                else:
                    yield from self._open_problem(lane)
            case LaneState.PROVING, None:
                lane.is_suspect = False
                lane.health.record_success()
                yield from self._open_problem(lane)
            case LaneState.PROVING, WorkerError():
                yield from self._end_worker_of(lane)
                yield from self._fall_sick(lane, LaneSick(f"the canary failed: {outcome.message}"))
            case LaneState.OPENING, None:
                lane.move_to(LaneState.OPEN)
                lane.health.record_success()
                # Spares are ordered after the opening, which their starts would slow by 0.2 s on 16 cores. Only after a
                # recent failure are they ordered before it (see _open_problem).
                yield from self._order_spares_of(lane)
            case ((LaneState.TAKING | LaneState.OPENING), WorkerError()):
                yield from self._judge_failed_opening(lane, outcome)
            case LaneState.OPEN, RequestFailed(code=code) if code == OUTDATED and not lane.has_retried:
                lane.has_retried = True
                yield from self._end_worker_of(lane)
                lane.move_to(LaneState.TAKING)
            case LaneState.OPEN, WorkerError():
                yield from self._lose_worker(lane)
                yield self._fail_lane(lane, outcome)
            case _:
                raise IllegalMove(f"lane {lane.device.name} is {lane.state}, and has nothing to do with {outcome!r}")

    def record_measurement(self, lane: LaneRecord, last: replies.Measurement) -> Iterator[Instruction]:
        """A lane's request is over; ``last`` is the measurement of its last config."""
        lane.require_state(LaneState.OPEN)
        failed_in_doubt = lane.trust is Trust.DOUBTFUL and last.result.outcome is Outcome.MISMATCH
        if last.is_unsound or failed_in_doubt or last.result.outcome is Outcome.LAUNCH_ERROR:
            yield from self._lose_worker(lane)
            lane.move_to(LaneState.VACANT)
        elif last.leftover:
            lane.trust = Trust.SPENT
        elif lane.trust is not Trust.SPENT:
            lane.trust = Trust.DOUBTFUL if last.is_guilty else Trust.SOUND

    def stop_lane(self, lane: LaneRecord) -> Iterator[Instruction]:
        """A lane's step or request was cancelled, or failed in the daemon."""
        yield from self._lose_worker(lane)
        if lane.state is not LaneState.VACANT:
            lane.move_to(LaneState.VACANT)

    def release_lane(self, lane: LaneRecord, *, is_shared: bool = False) -> Iterator[Instruction]:
        """No job needs the lane any more.

        If an application shares the device (``is_shared``), idle workers there also give up its memory: they close
        their data now, and end after LINGER_S, which frees their contexts.
        """
        lane.require_state(LaneState.VACANT, LaneState.OPEN)
        if lane.worker is not None:
            yield from self._part_with_worker(lane)
            lane.move_to(LaneState.VACANT)
        if is_shared:
            for worker in self._list_opened_on(lane.device.name):
                worker.idle_until = min(worker.idle_until, self._clock() + LINGER_S)
            yield CloseData(self._take_data_holders(lane.device.name))

    def _judge_trust(self, lane: LaneRecord) -> Trust:
        assert lane.worker is not None
        return lane.trust if lane.worker.is_alive and not self.is_worn(lane.worker) else Trust.SPENT

    def _part_with_worker(self, lane: LaneRecord) -> Iterator[Instruction]:
        """Release a lane's worker if it is sound; otherwise end it."""
        yield from (
            self._release_worker_of(lane) if self._judge_trust(lane) is Trust.SOUND else self._end_worker_of(lane)
        )

    def _open_problem(self, lane: LaneRecord) -> Iterator[Instruction]:
        """Have a lane's worker open the problem; idle workers on the device make room for it."""
        assert lane.worker is not None
        assert lane.bench is not None
        lane.move_to(LaneState.OPENING)
        yield from self._end_surplus_opened(lane.device.name, kept=KEPT_OPEN - 1)
        lane.closing = self._take_data_holders(lane.device.name)
        lane.was_used = lane.worker.code is not None
        lane.worker.code, lane.worker.holds_data = lane.bench.code, True
        if self._is_in_trouble(lane):
            yield from self._order_spares_of(lane)

    def _judge_failed_opening(self, lane: LaneRecord, error: WorkerError) -> Iterator[Instruction]:
        """Decide whether a failed opening is the problem's fault, or should be tried once more."""
        if isinstance(error, ReferenceUnusable):
            # The worker is sound; it can open the problem with another reference.
            lane.health.record_success()
            yield from self._release_worker_of(lane)
            yield self._fail_lane(lane, error)
            return
        is_refused = isinstance(error, RequestFailed) and error.code != SOURCE_CHANGED
        ended: list[Worker] = []
        if is_refused and lane.is_gpu and not lane.has_retried:
            # Idle workers of the device may hold the memory that was missing. Spares hold less, so they end only if
            # the error says that memory ran out.
            ends_spares = _NO_MEMORY in error.message
            ended = self._take_idle(
                lambda one: one.device == lane.device.name and (ends_spares or one.code is not None)
            )
            lane.ending += ended
            yield from map(EndWorker, ended)
        # A used worker may be the reason: some modules cannot be imported twice.
        may_be_worker = is_refused and bool(ended or lane.was_used)
        may_be_device = lane.is_gpu and lane.has_stand_in and error.code not in (SOURCE_CHANGED, CROWDED)
        if isinstance(error, HostLost):
            # A lost host says nothing about the problem: the lane waits for the host, or another lane stands in. If
            # the worker was not even started, the device is not suspect.
            has_started = lane.worker is None or error.phase is not Phase.SPAWN
            yield from (self._lose_worker(lane) if has_started else self._end_worker_of(lane))
            yield from self._fall_sick(lane, LaneSick(error.message), error)
        elif (may_be_worker or may_be_device) and not lane.has_retried:
            lane.has_retried = True
            yield from self._lose_worker(lane)
            lane.move_to(LaneState.TAKING)
        elif is_refused and error.code == CROWDED:
            yield from self._end_worker_of(lane)
            yield from self._fall_sick(lane, LaneCrowded(error.message), error)
        else:
            yield from self._lose_worker(lane)
            if error.code == SOURCE_CHANGED:
                yield self._fail_lane(lane, error)
            else:
                yield self._fail_lane(lane, CannotOpen(error.message, hint=error.hint), error)

    def _release_worker_of(self, lane: LaneRecord) -> Iterator[Instruction]:
        yield from self.release_worker(self._detach_worker(lane))

    def _end_worker_of(self, lane: LaneRecord) -> Iterator[Instruction]:
        worker = self._detach_worker(lane)
        lane.ending.append(worker)
        yield EndWorker(worker)

    def _detach_worker(self, lane: LaneRecord) -> Worker:
        worker, lane.worker, lane.trust = lane.worker, None, Trust.SOUND
        assert worker is not None
        return worker

    def _lose_worker(self, lane: LaneRecord) -> Iterator[Instruction]:
        """End a lane's worker after a failure that may have left it, or its device, in an unknown state."""
        if lane.worker is not None:
            lane.is_suspect, lane.lost_at = True, self._clock()
            yield from self._end_worker_of(lane)

    def _fall_sick(self, lane: LaneRecord, error: LaneSick, cause: WorkerError | None = None) -> Iterator[Instruction]:
        lane.health.record_failure(error.message)
        if lane.waits and not isinstance(error, LaneCrowded):
            lane.move_to(LaneState.RESTING)
        else:
            yield self._fail_lane(lane, error, cause)

    def _fail_lane(self, lane: LaneRecord, error: WorkerError, cause: WorkerError | None = None) -> Fail:
        lane.move_to(LaneState.VACANT)
        if cause is not None:
            error.__cause__ = cause
        return Fail(error)

    # Workers that are lent

    def lend_worker(
        self,
        role: Role,
        environment: Environment,
        device: str = "",
        code: KernelCode | None = None,
        *,
        waits: bool = True,
    ) -> Iterator[Instruction]:
        """Someone needs a worker. If no instruction is for the caller (lend, await a spare, fail), it starts a new one.

        Idle workers are tried in this order: one that has opened ``code`` on ``device``, one that has opened nothing
        and has its context on ``device``, one that has opened nothing and belongs to no device. If none fits and a
        spare is still starting, the caller waits for it, one caller for each spare; with ``waits`` false it does not.
        """
        kind = role, environment
        if code is not None:
            yield from self._end_idle(lambda worker: _is_outdated(worker, kind, code))
        # In the documented order; without code, or without a device, two of the three are the same.
        for its_device, its_code in dict.fromkeys(((device, code), (device, None), ("", None))):
            worker = self._take_newest(kind, its_device, its_code)
            if worker is not None:
                worker.device = device
                yield LendWorker(worker)
                return
        health = self._get_start_health(kind)
        if waits and self._awaited[kind] < self.spares_under_way[kind]:
            self._awaited[kind] += 1
            yield AwaitSpare(kind)
        elif health.pause_s:
            message = (
                f"{environment.python} failed to run a worker {health.failures} times in a row and is left alone "
                f"for {health.pause_s:.0f} s: {health.reason}"
            )
            yield Fail(WorkerError(message, hint="repair that interpreter; `ktuned doctor` says more"))

    def record_awaited_spare(self, kind: WorkerKind) -> None:
        """A caller no longer waits for a spare: the spare is ready, has failed, or took too long."""
        self._awaited[kind] -= 1

    def record_start(self, kind: WorkerKind, error: WorkerError | None = None) -> None:
        """A worker was started; if the start failed, ``error`` says why."""
        if error is None:
            self._get_start_health(kind).record_success()
        elif not is_outside_kill(error):
            self._get_start_health(kind).record_failure(error.message)

    def release_worker(self, worker: Worker) -> Iterator[Instruction]:
        """A worker is no longer needed. It idles if it may be lent again.

        If too many workers idle then, those that have idled longest end.
        """
        if not worker.is_alive or self.is_worn(worker):
            yield EndWorker(worker)
            return
        worker.idle_until = self._clock() + IDLE_S_OF.get(worker.role, self.limits.idle_s)
        self.idle.append(worker)
        yield from self._end_excess(worker)
        if worker.code is not None:
            yield from self._end_surplus_opened(worker.device, kept=KEPT_OPEN)

    def record_closed_data(self, worker: Worker, error: WorkerError | None = None) -> Iterator[Instruction]:
        """An idle worker has closed its problem's data; if that failed, ``error`` says why."""
        if error is not None:
            yield EndWorker(worker)
        else:
            self.idle.append(worker)

    def outdate_workers(self, environment: Environment | None = None) -> Iterator[Instruction]:
        """Something that workers of an environment were started with, or have imported, has changed.

        ``environment`` is None if this holds for the workers of all environments.
        """
        self._outdated_at[environment] = self._clock()
        yield from self._end_idle(lambda worker: environment in (None, worker.environment))

    def review_idle(self) -> Iterator[Instruction]:
        """Time has passed: end the workers that have idled for too long."""
        now = self._clock()
        yield from self._end_idle(lambda worker: now >= worker.idle_until)

    def is_worn(self, worker: Worker, most_requests: int | None = None) -> bool:
        """Return whether a worker must be replaced before its next request: it is outdated, old, or has grown."""
        outdated_at = max(self._outdated_at.get(key, -math.inf) for key in (None, worker.environment))
        is_old = worker.requests >= (most_requests or self.limits.max_requests)
        grown = worker.memory_bytes - worker.settled_bytes
        is_large = grown > WORN_SHARE * self.memory_limits.get(worker.role, math.inf)
        return worker.started <= outdated_at or is_old or is_large

    def _end_excess(self, newest: Worker) -> Iterator[EndWorker]:
        """End the workers that have idled longest until the rest is within the limits; ``newest`` always stays."""
        # The extra one is the worker that translates functions for the compile workers.
        most, most_bytes = self.limits.max_idle + self._compilers_of("") + 1, self.limits.max_idle_bytes
        # _idle_bytes is an upper bound: workers that left the list are not subtracted. The exact sum is taken only when
        # the bound exceeds the limit, because it would be too slow after each request.
        self._idle_bytes += _count_bytes_here(newest)
        if len(self.idle) <= most and self._idle_bytes <= most_bytes:
            return
        excess, held = 0, sum(map(_count_bytes_here, self.idle))
        while excess < len(self.idle) - 1 and (len(self.idle) - excess > most or held > most_bytes):
            held -= _count_bytes_here(self.idle[excess])
            excess += 1
        self._idle_bytes = held
        yield from map(EndWorker, self.idle[:excess])
        del self.idle[:excess]

    def _list_opened_on(self, device: str) -> list[Worker]:
        """Return the idle workers that have opened a kernel file on a device, longest idle first."""
        return [worker for worker in self.idle if worker.device == device and worker.code is not None]

    def _end_surplus_opened(self, device: str, kept: int) -> Iterator[EndWorker]:
        """End the idle workers that have opened a kernel file on a device, except the ``kept`` newest."""
        opened = self._list_opened_on(device)
        surplus = opened[: max(0, len(opened) - kept)]
        yield from self._end_idle(lambda worker: worker in surplus)

    def _take_data_holders(self, device: str) -> list[Worker]:
        """Take out the idle workers that hold a problem's data on a device, so that none is lent while it closes
        them.
        """
        holders = self._take_idle(lambda worker: worker.device == device and worker.holds_data)
        for worker in holders:
            worker.holds_data = False
        return holders

    def _take_newest(self, kind: WorkerKind, device: str, code: KernelCode | None) -> Worker | None:
        # Newest first. The search is short even with thousands of compile slots, as nearly all idle workers are alike.
        for place in range(len(self.idle) - 1, -1, -1):
            worker = self.idle[place]
            if (worker.device, worker.code) == (device, code) and worker_kind(worker) == kind and worker.is_alive:
                return self.idle.pop(place)
        return None

    def _take_idle(self, is_taken: Callable[[Worker], bool]) -> list[Worker]:
        taken = [worker for worker in self.idle if is_taken(worker)]
        if taken:
            found = set(taken)
            self.idle = [worker for worker in self.idle if worker not in found]
        return taken

    def _end_idle(self, is_ended: Callable[[Worker], bool]) -> Iterator[EndWorker]:
        yield from map(EndWorker, self._take_idle(is_ended))

    def _count_unused(self, kind: WorkerKind, device: str) -> int:
        """Return how many live idle workers of a kind have opened no kernel file and belong to a device.

        An empty ``device`` counts those that belong to no device.
        """
        state = device, None
        return sum((one.device, one.code) == state and worker_kind(one) == kind and one.is_alive for one in self.idle)

    # Spares

    def order_spares(
        self,
        role: Role,
        environment: Environment,
        backend: str,
        count: int,
        device: Device | None = None,
        *,
        with_context: bool = False,
    ) -> Iterator[Instruction]:
        """Make spares until ``count`` are ready; with a ``device``, each also makes its context there."""
        kind = role, environment
        if not self.keeps_spares or self._get_start_health(kind).pause_s:
            return
        if device is not None:
            warming = self._warming.setdefault((environment, device.name), _Warming(device))
            warming.missing = max(warming.missing, count - self._count_unused(kind, device.name))
            places = [one for place, one in self._warming.items() if place[0] == environment]
            count = sum(one.missing - one.is_at_work for one in places)
        # A warm spare belongs to its device, so it is not counted among the spares without a device.
        for number in range(self._count_unused(kind, "") + self.spares_under_way[kind], count):
            self.spares_under_way[kind] += 1
            yield MakeSpare(role, environment, backend, with_context and number == 0)
        yield from self._warm_next(environment)

    def order_compilers(self, environment: Environment, backend: str, besides: int = 0) -> Iterator[Instruction]:
        """Make compile workers until as many are ready as can have work at once (at most EARLY_COMPILERS), plus
        ``besides`` more.

        While the backend is unknown, one is enough. None is made on another host before there is something to compile,
        because others may need its cores.
        """
        if not environment.host:
            count = min(self._compilers_of(""), EARLY_COMPILERS) if backend else 1
            yield from self.order_spares(Role.COMPILE, environment, backend, count + besides)

    def record_spare(self, kind: WorkerKind, worker: Worker | None) -> Iterator[Instruction]:
        """A spare was made; ``worker`` is None if making it failed."""
        self.spares_under_way[kind] -= 1
        if worker is not None:
            yield from self.release_worker(worker)
        yield from self._warm_next(kind[1])

    def take_spare_to_warm(self, environment: Environment, device: Device) -> Iterator[Instruction]:
        """A spare may now take its turn on a device to make its context, if a lane has not taken the last spare."""
        warming = self._warming[environment, device.name]
        warming.waits = False
        worker = self._take_newest((Role.BENCH, environment), "", None)
        if worker is not None:
            warming.is_at_work = True
            yield LendWorker(worker)
        else:
            yield from self._warm_next(environment)

    def record_warm_up(self, worker: Worker, device: Device, error: WorkerError | None = None) -> Iterator[Instruction]:
        """A spare has made its context on a device; if that failed, ``error`` says why."""
        warming = self._warming[worker.environment, device.name]
        warming.missing, warming.is_at_work = warming.missing - 1, False
        if error is None or isinstance(error, RequestFailed):
            # A spare that the GPU refused belongs to the device, too: it counts as one, and is not tried again.
            self._cold.pop(device.name, None)
            if error is not None:
                self._cold[device.name] = error.message
            worker.device = device.name
            yield from self.release_worker(worker)
        else:
            yield EndWorker(worker)
        yield from self._warm_next(worker.environment)

    def _warm_next(self, environment: Environment) -> Iterator[Instruction]:
        """Have one spare for each device wait for a turn there, if contexts are still missing."""
        kind = Role.BENCH, environment
        for place, warming in list(self._warming.items()):
            if place[0] != environment or warming.waits or warming.is_at_work:
                continue
            if warming.missing and self._count_unused(kind, ""):
                warming.waits = True
                yield WarmSpare(environment, warming.device)
            elif not warming.missing or not self.spares_under_way[kind]:
                # All contexts are made, or no spare is left to make one. The next opening orders new spares.
                del self._warming[place]

    def _order_spares_of(self, lane: LaneRecord) -> Iterator[Instruction]:
        assert lane.bench is not None
        if lane.device.host:
            # A worker on another host is started by the request that names its device.
            return
        count_by_kind = SPARES_IN_TROUBLE if self._is_in_trouble(lane) else SPARES
        # No spare makes a context beside an application: it would take memory that the application may need.
        device = lane.device if lane.is_gpu and not lane.is_shared else None
        count, bench = count_by_kind.get(lane.device.kind, 1), lane.bench
        yield from self.order_spares(Role.BENCH, bench.environment, bench.backend, count, device)

    def _is_in_trouble(self, lane: LaneRecord) -> bool:
        return self._clock() - lane.lost_at < TROUBLE_S

    # Applications, and notices for people

    def record_device_use(self, device: Device, began: float, ended: float, *, is_shared: bool) -> None:
        """A lane has used a device from ``began`` to ``ended``, in seconds of the machine's clock.

        Beside an application each use is followed by a pause of nine times its length (:data:`DUTY`).
        """
        free_at = max(self._free_at.pop(device.name, 0.0), began) + (ended - began) / DUTY
        if is_shared:
            self._free_at[device.name] = free_at

    def pause_s(self, device: Device) -> float:
        """Return for how many more seconds a lane should leave a device to its application."""
        return max(0.0, self._free_at.get(device.name, 0.0) - self._clock())

    @property
    def notices(self) -> list[str]:
        """Why some spares are not warm and some workers cannot be started, one line for each reason."""
        return [
            f"no warm spare on {device}: after a failure its lane takes longer to come back: {reason}"
            for device, reason in self._cold.items()
        ] + [
            f"{environment.python} runs no {role} worker, tried again in {health.pause_s:.0f} s: {health.reason}"
            for (role, environment), health in self._starts.items()
            if health.is_sick
        ]

    def _get_start_health(self, kind: WorkerKind) -> Health:
        return self._starts.setdefault(
            kind, Health(tolerated=TOLERATED_FAILURES, first_pause_s=self.limits.first_pause_s, clock=self._clock)
        )


def worker_kind(worker: Worker) -> WorkerKind:
    """Return a worker's role and environment."""
    return worker.role, worker.environment


def _is_outdated(worker: Worker, kind: WorkerKind, code: KernelCode) -> bool:
    """Return whether a worker has opened an earlier state of a kernel file."""
    has_file = worker.code is not None and worker.code.file == code.file
    return has_file and worker.code != code and worker_kind(worker) == kind


def _count_bytes_here(worker: Worker) -> int:
    return 0 if worker.environment.host else worker.memory_bytes
