"""Lane machine: events in, instructions out. Decides which worker may use a device next; does no IO.

*Theory.* A lane is one device's measuring position. It has at most one worker, which has at most one problem open. A
worker that measures has imported torch and made a context on the GPU, which takes two seconds, so workers are kept. But
any config may leave its worker, or the device, in an unknown state that cannot be seen from outside the process. Two
questions follow: *may this worker do the next thing?* and *does this device still work?* This module answers them, for
all devices and all roles of workers.

*One way in, one way out.* Everything that happens is an event, which :meth:`LaneMachine.handle` answers with
instructions, in the order in which they are carried out. Most are carried out at once or in the background. The others
are *steps*: the caller that gave the event carries out the step, and passes its outcome on as the next event. A list of
instructions has at most one step, and it is the last.

*A lane's steps.* Each :class:`LaneState` on the way to an open problem has one step. Its outcome is
:class:`WorkerTaken`, :class:`StepDone` or :class:`StepFailed`. :data:`MOVES` lists every legal move.

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
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, StrEnum, auto
from time import monotonic
from typing import Any, assert_never

import msgspec

from ktuned.fleet.device_share import DeviceShare
from ktuned.fleet.executor import Environment, KernelCode, Worker
from ktuned.fleet.failures import (
    FIRST_PAUSE_S,
    CannotOpen,
    Health,
    HostLost,
    LaneCrowded,
    LaneSick,
    ReferenceUnusable,
    RequestFailed,
    is_outside_kill,
)
from ktuned.ipc import replies, requests
from ktuned.model import Device, DeviceName, FrozenStruct, IllegalMove, Observation, Outcome, Phase, Role, WorkerError

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

CROWDED = "device_crowded"
"""Code of a worker's error: an application leaves too little memory for the problem."""

OUTDATED = "outdated_worker"
"""Code of a worker's error: a file that the worker has mapped has changed on the disk."""

SOURCE_CHANGED = "source_changed"
"""Code of an error: the sources have changed since they were inspected. The save that changed them starts over."""

_NO_MEMORY = "out of memory"
"""Part of the messages of CUDA and torch when memory ran out."""


class FleetLimits(FrozenStruct):
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


class Bench(FrozenStruct):
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
    """Where a lane is on its way to an open problem."""

    VACANT = "vacant"
    """The lane has no worker and nothing to do."""
    RESTING = "resting"
    """The lane is sick, and waits until its pause is over."""
    TAKING = "taking"
    """The lane borrows a worker."""
    PROVING = "proving"
    """The lane's worker runs the canary."""
    OPENING = "opening"
    """The lane's worker opens the problem."""
    OPEN = "open"
    """The lane can measure. A request that fails is a step that fails."""


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
        need: The problem that is open, or is being opened, and what the job said about it.
        trust: How far the worker is trusted.
        ending: Killed workers that may still hold the device.
        is_suspect: Whether the lane lost its last worker to a failure; on a GPU the next one must pass the canary.
        lost_at: When the lane last lost a worker to a failure, by the machine's clock.
        has_retried: Whether the one retry of this need, of its opening or of a request, is used up.
        was_used: Whether the worker had opened a kernel file before this opening.
    """

    device: Device
    health: Health = msgspec.field(default_factory=Health)
    state: LaneState = LaneState.VACANT
    worker: Worker | None = None
    need: ProblemNeeded | None = None
    trust: Trust = Trust.SOUND
    ending: list[Worker] = []
    is_suspect: bool = False
    lost_at: float = -math.inf
    has_retried: bool = False
    was_used: bool = False

    @property
    def needed(self) -> ProblemNeeded:
        """The ``need`` of a lane that has one."""
        assert self.need is not None
        return self.need

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


# Events of one lane


class _OfLane(FrozenStruct):
    """An event or a step of one lane."""

    lane: LaneRecord


class ProblemNeeded(_OfLane):
    """A job that holds a lane, vacant or open, needs a problem open there.

    Attributes:
        bench: The problem.
        waits: Whether the job waits while the lane is sick.
        has_stand_in: Whether the job has another lane that works.
        is_shared: Whether an application may be at work on the device.
    """

    bench: Bench
    waits: bool = True
    has_stand_in: bool = False
    is_shared: bool = False


class WorkerTaken(_OfLane):
    """The lane has borrowed a worker."""

    worker: Worker


class StepDone(_OfLane):
    """Any other step of the lane is done."""


class StepFailed(_OfLane):
    """The lane's step has failed, or a request to its worker."""

    error: WorkerError


class Measured(_OfLane):
    """A lane's request is over; ``last`` is the measurement of its last config."""

    last: replies.Measurement


class Stopped(_OfLane):
    """A lane's step or request was cancelled, or failed in the daemon."""


class Released(_OfLane):
    """No job needs the lane any more; ``is_shared`` if an application may be at work on the device."""

    is_shared: bool = False


LaneEvent = ProblemNeeded | WorkerTaken | StepDone | StepFailed | Measured | Stopped | Released


# Events of workers


class WorkerNeeded(FrozenStruct):
    """Someone needs a worker.

    Attributes:
        role: The worker's role.
        environment: The environment that it runs in.
        device: The device that it will use, if any.
        code: The kernel file that it should have open, if any.
        waits: Whether a spare that is still starting may be waited for.
    """

    role: Role
    environment: Environment
    device: str = ""
    code: KernelCode | None = None
    waits: bool = True


class WorkerStarted(FrozenStruct):
    """A worker was started; if the start failed, ``error`` says why."""

    kind: WorkerKind
    error: WorkerError | None = None


class WorkerReleased(FrozenStruct):
    """A worker is no longer needed."""

    worker: Worker


class DataClosed(FrozenStruct):
    """An idle worker has closed its problem's data; if that failed, ``error`` says why."""

    worker: Worker
    error: WorkerError | None = None


class WorkersOutdated(FrozenStruct):
    """Something that an environment's workers were started with, or have imported, has changed."""

    environment: Environment


class TimePassed(FrozenStruct):
    """Time has passed, and some workers may have idled for too long."""


class SparesNeeded(FrozenStruct):
    """Until ``count`` are ready, spares are to be made; with a ``device``, each also makes its context there.

    With ``with_context``, one may make its context while it imports, if no worker has a context yet.
    """

    role: Role
    environment: Environment
    backend: str
    count: int
    device: Device | None = None
    with_context: bool = False


class SpareMade(FrozenStruct):
    """A spare was made; ``worker`` is None if making it failed."""

    kind: WorkerKind
    worker: Worker | None


class TurnCame(FrozenStruct):
    """A spare may now take its turn on a device to make its context, if a lane has not taken the last spare."""

    environment: Environment
    device: Device


class SpareWarmed(FrozenStruct):
    """A spare has made its context on a device; if that failed, ``error`` says why."""

    worker: Worker
    device: Device
    error: WorkerError | None = None


class DeviceUsed(FrozenStruct):
    """A lane has used a device. If ``is_shared``, it has taken ``taken_s`` seconds from an application."""

    device: Device
    taken_s: float
    is_shared: bool


Event = (
    LaneEvent
    | WorkerNeeded
    | WorkerStarted
    | WorkerReleased
    | DataClosed
    | WorkersOutdated
    | TimePassed
    | SparesNeeded
    | SpareMade
    | TurnCame
    | SpareWarmed
    | DeviceUsed
)

# Instructions that are carried out at once, or in the background


class EndWorker(FrozenStruct):
    """Kill a worker."""

    worker: Worker


class CloseData(FrozenStruct):
    """Have idle workers close their problems' data, in the background; report each as :class:`DataClosed`."""

    workers: Sequence[Worker]


class MakeSpare(FrozenStruct):
    """Make a spare in the background, and report it as :class:`SpareMade`.

    The spare imports ``backend``, and belongs to a ``device`` of another host, if given. With ``may_make_context`` it
    also makes its context, but only if no worker has one yet: otherwise a lane may be timing by then, and making a
    context would stretch that timing.
    """

    kind: WorkerKind
    backend: str
    may_make_context: bool
    device: str = ""


class AwaitTurn(FrozenStruct):
    """Wait in the background for a turn on a device, behind all jobs, and report it as :class:`TurnCame`."""

    environment: Environment
    device: Device


# Steps of the caller that gave the event


class LendWorker(FrozenStruct):
    """Use this worker."""

    worker: Worker


class StartWorker(FrozenStruct):
    """Start a worker, report :class:`WorkerStarted`, and use it."""

    kind: WorkerKind
    device: str


class AwaitSpare(FrozenStruct):
    """Wait until a spare of this kind is ready or has failed, and ask again."""

    kind: WorkerKind


class WarmSpare(FrozenStruct):
    """Have this spare make its context on the device that has its turn, and report :class:`SpareWarmed`."""

    worker: Worker


class Fail(FrozenStruct):
    """Raise this error."""

    error: WorkerError


# Steps of a lane; their outcome is WorkerTaken, StepDone or StepFailed


class Rest(_OfLane):
    """Wait until the lane's pause is over."""


class TakeWorker(_OfLane):
    """Borrow a worker for the lane's problem, and give the workers in the lane's ``ending`` a moment to end."""


class RunCanary(_OfLane):
    """Have the lane's worker run the canary."""


class OpenProblem(_OfLane):
    """Have the workers in ``closing`` close their data, and then the lane's worker open the lane's problem."""

    closing: Sequence[Worker]


_STEP_OF: dict[LaneState, Callable[[LaneRecord], Instruction]] = {
    LaneState.RESTING: Rest,
    LaneState.TAKING: TakeWorker,
    LaneState.PROVING: RunCanary,
}
"""The step of each state of a lane that has one; that of ``OPENING`` also names the workers that make room."""

LaneStep = Rest | TakeWorker | RunCanary | OpenProblem
Step = LaneStep | LendWorker | StartWorker | AwaitSpare | WarmSpare | Fail
Instruction = Step | EndWorker | CloseData | MakeSpare | AwaitTurn


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
    """The rules for all lanes and workers of a fleet.

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
        self._outdated_at: dict[Environment, float] = {}
        """When something changed that an environment's workers had imported; None stands for all environments."""
        self._shares: dict[str, DeviceShare] = {}
        """Of the devices that applications use, by name."""
        self._idle_bytes = 0
        self._instructions: list[Instruction] = []
        """What follows from the event that is being handled."""
        self._compilers_of = compilers_of
        self._clock = clock

    def handle(self, event: Event) -> list[Instruction]:
        """Handle an event; return the instructions that follow from it, in order.

        Raises:
            IllegalMove: the event is illegal for its lane now; nothing has changed.
        """
        self._instructions = []
        match event:
            case ProblemNeeded():
                self._need_problem(event)
            case WorkerTaken(lane, worker):
                self._take_worker(lane, worker)
            case StepDone(lane):
                self._advance_lane(lane)
            case StepFailed(lane, error):
                self._judge_failure(lane, error)
            case Measured(lane, last):
                self._judge_worker(lane, last)
            case Stopped(lane):
                self._lose_worker(lane)
                if lane.state is not LaneState.VACANT:
                    lane.move_to(LaneState.VACANT)
            case Released(lane, is_shared):
                self._release_lane(lane, is_shared=is_shared)
            case WorkerNeeded():
                self._find_worker(event)
            case WorkerStarted(kind, error):
                if error is None:
                    self._get_start_health(kind).record_success()
                elif not is_outside_kill(error):
                    self._get_start_health(kind).record_failure(error.message)
            case WorkerReleased(worker):
                self._release_worker(worker)
            case DataClosed(worker, error):
                if error is None:
                    self.idle.append(worker)
                else:
                    self._add(EndWorker(worker))
            case WorkersOutdated(environment):
                self._outdated_at[environment] = self._clock()
                self._end_idle(lambda worker: environment == worker.environment)
            case TimePassed():
                now = self._clock()
                self._end_idle(lambda worker: now >= worker.idle_until)
            case SparesNeeded():
                self._order_spares(event)
            case SpareMade(kind, worker):
                self.spares_under_way[kind] -= 1
                # All callers that wait for a spare of this kind ask again now.
                del self._awaited[kind]
                if worker is not None:
                    self._release_worker(worker)
                self._warm_next(kind[1])
            case TurnCame(environment, device):
                self._take_spare_to_warm(self._warming[environment, device.name], environment)
            case SpareWarmed():
                self._keep_warmed_spare(event)
            case DeviceUsed(device, taken_s, is_shared=True):
                self._shares.setdefault(device.name, DeviceShare(self._clock)).record_use(taken_s)
            case DeviceUsed(device):
                self._shares.pop(device.name, None)
            case _:
                assert_never(event)
        return self._instructions

    def _add(self, instruction: Instruction) -> None:
        self._instructions.append(instruction)

    # A lane's way to an open problem

    def _need_problem(self, need: ProblemNeeded) -> None:
        lane, bench = need.lane, need.bench
        lane.require_state(LaneState.VACANT, LaneState.OPEN)
        before, lane.need, lane.has_retried = lane.need, need, False
        if lane.worker is not None and before is not None:
            trust = self._judge_trust(lane)
            has_same_code = (before.bench.environment, before.bench.code) == (bench.environment, bench.code)
            if has_same_code and before.bench.identity == bench.identity and trust is not Trust.SPENT:
                return
            # A doubtful worker opens nothing: its last config may have damaged the memory that the reference is
            # computed from. And a worker opens only one file: the file may have changed the process (torch's default
            # dtype, threads, flags), which would affect another file's results.
            if has_same_code and trust is Trust.SOUND:
                self._open_problem(lane)
                return
            self._part_with_worker(lane)
        self._go_to(lane, LaneState.RESTING if need.waits and lane.health.pause_s else LaneState.TAKING)

    def _take_worker(self, lane: LaneRecord, worker: Worker) -> None:
        lane.require_state(LaneState.TAKING)
        if stuck := [killed for killed in lane.ending if killed.is_alive]:
            self._release_worker(worker)
            message = f"worker {stuck[0].pid} was killed but does not end: it is stuck in the driver"
            self._fall_sick(lane, LaneSick(message))
            return
        lane.worker = worker
        lane.ending.clear()
        if lane.is_suspect and lane.is_gpu:
            self._go_to(lane, LaneState.PROVING)
        else:
            self._open_problem(lane)

    def _advance_lane(self, lane: LaneRecord) -> None:
        lane.require_state(LaneState.RESTING, LaneState.PROVING, LaneState.OPENING)
        if lane.state is LaneState.RESTING:
            self._go_to(lane, LaneState.TAKING)
            return
        lane.health.record_success()
        if lane.state is LaneState.PROVING:
            lane.is_suspect = False
            self._open_problem(lane)
        else:
            lane.move_to(LaneState.OPEN)
            # Spares are ordered after the opening, which their starts would slow by 0.2 s on 16 cores. Only after a
            # recent failure are they ordered before it (see _open_problem).
            self._order_spares_of(lane)

    def _judge_failure(self, lane: LaneRecord, error: WorkerError) -> None:
        lane.require_state(LaneState.TAKING, LaneState.PROVING, LaneState.OPENING, LaneState.OPEN)
        if lane.state is LaneState.PROVING:
            self._end_worker_of(lane)
            self._fall_sick(lane, LaneSick(f"the canary failed: {error.message}"))
        elif lane.state is not LaneState.OPEN:
            self._judge_failed_opening(lane, error)
        elif isinstance(error, RequestFailed) and error.code == OUTDATED and not lane.has_retried:
            lane.has_retried = True
            self._end_worker_of(lane)
            self._go_to(lane, LaneState.TAKING)
        else:
            self._lose_worker(lane)
            self._fail_lane(lane, error)

    def _judge_worker(self, lane: LaneRecord, last: replies.Measurement) -> None:
        """Decide how far a worker is trusted after its request."""
        lane.require_state(LaneState.OPEN)
        failed_in_doubt = lane.trust is Trust.DOUBTFUL and last.result.outcome is Outcome.MISMATCH
        if last.is_unsound or failed_in_doubt or last.result.outcome is Outcome.LAUNCH_ERROR:
            self._lose_worker(lane)
            lane.move_to(LaneState.VACANT)
        elif last.leftover:
            lane.trust = Trust.SPENT
        elif lane.trust is not Trust.SPENT:
            lane.trust = Trust.DOUBTFUL if last.is_guilty else Trust.SOUND

    def _release_lane(self, lane: LaneRecord, *, is_shared: bool) -> None:
        lane.require_state(LaneState.VACANT, LaneState.OPEN)
        if lane.worker is not None:
            self._part_with_worker(lane)
            lane.move_to(LaneState.VACANT)
        if is_shared:
            # Idle workers there also give up the application's memory: they close their data now, and end after
            # LINGER_S, which frees their contexts.
            for worker in self._list_opened_on(lane.device.name):
                worker.idle_until = min(worker.idle_until, self._clock() + LINGER_S)
            self._add(CloseData(self._take_data_holders(lane.device.name)))

    def _judge_trust(self, lane: LaneRecord) -> Trust:
        assert lane.worker is not None
        return lane.trust if lane.worker.is_alive and not self.is_worn(lane.worker) else Trust.SPENT

    def _part_with_worker(self, lane: LaneRecord) -> None:
        """Release a lane's worker if it is sound; otherwise end it."""
        if self._judge_trust(lane) is Trust.SOUND:
            self._release_worker(self._detach_worker(lane))
        else:
            self._end_worker_of(lane)

    def _open_problem(self, lane: LaneRecord) -> None:
        """Have a lane's worker open the problem; idle workers on the device make room for it."""
        worker = lane.worker
        assert worker is not None
        lane.move_to(LaneState.OPENING)
        self._end_surplus_opened(lane.device.name, kept=KEPT_OPEN - 1)
        closing = self._take_data_holders(lane.device.name)
        lane.was_used = worker.code is not None
        worker.code, worker.holds_data = lane.needed.bench.code, True
        if self._is_in_trouble(lane):
            self._order_spares_of(lane)
        self._add(OpenProblem(lane, closing))

    def _judge_failed_opening(self, lane: LaneRecord, error: WorkerError) -> None:
        """Decide whether a failed opening is the problem's fault, or should be tried once more."""
        if isinstance(error, ReferenceUnusable):
            # The worker is sound; it can open the problem with another reference.
            lane.health.record_success()
            self._release_worker(self._detach_worker(lane))
            self._fail_lane(lane, error)
            return
        is_refused = isinstance(error, RequestFailed) and error.code != SOURCE_CHANGED
        ended: list[Worker] = []
        if is_refused and lane.is_gpu and not lane.has_retried:
            # Idle workers of the device may hold the memory that was missing. Spares hold less, so they end only if
            # the error says that memory ran out.
            ends_spares = _NO_MEMORY in error.message
            ended = self._end_idle(lambda one: one.device == lane.device.name and (ends_spares or one.code is not None))
            lane.ending += ended
        # A used worker may be the reason: some modules cannot be imported twice.
        may_be_worker = is_refused and bool(ended or lane.was_used)
        may_be_device = lane.is_gpu and lane.needed.has_stand_in and error.code not in (SOURCE_CHANGED, CROWDED)
        if isinstance(error, HostLost):
            # A lost host says nothing about the problem: the lane waits for the host, or another lane stands in. If
            # the worker was not even started, the device is not suspect.
            if lane.worker is None or error.phase is not Phase.SPAWN:
                self._lose_worker(lane)
            else:
                self._end_worker_of(lane)
            self._fall_sick(lane, LaneSick(error.message), error)
        elif (may_be_worker or may_be_device) and not lane.has_retried:
            lane.has_retried = True
            self._lose_worker(lane)
            self._go_to(lane, LaneState.TAKING)
        elif is_refused and error.code == CROWDED:
            self._end_worker_of(lane)
            self._fall_sick(lane, LaneCrowded(error.message), error)
        else:
            self._lose_worker(lane)
            if error.code == SOURCE_CHANGED:
                self._fail_lane(lane, error)
            else:
                self._fail_lane(lane, CannotOpen(error.message, hint=error.hint), error)

    def _go_to(self, lane: LaneRecord, state: LaneState) -> None:
        """Move a lane to a state, and have its step carried out."""
        lane.move_to(state)
        self._add(_STEP_OF[state](lane))

    def _end_worker_of(self, lane: LaneRecord) -> None:
        worker = self._detach_worker(lane)
        lane.ending.append(worker)
        self._add(EndWorker(worker))

    def _detach_worker(self, lane: LaneRecord) -> Worker:
        worker, lane.worker, lane.trust = lane.worker, None, Trust.SOUND
        assert worker is not None
        return worker

    def _lose_worker(self, lane: LaneRecord) -> None:
        """End a lane's worker after a failure that may have left it, or its device, in an unknown state."""
        if lane.worker is not None:
            lane.is_suspect, lane.lost_at = True, self._clock()
            self._end_worker_of(lane)

    def _fall_sick(self, lane: LaneRecord, error: LaneSick, cause: WorkerError | None = None) -> None:
        lane.health.record_failure(error.message)
        if lane.needed.waits and not isinstance(error, LaneCrowded):
            self._go_to(lane, LaneState.RESTING)
        else:
            self._fail_lane(lane, error, cause)

    def _fail_lane(self, lane: LaneRecord, error: WorkerError, cause: WorkerError | None = None) -> None:
        lane.move_to(LaneState.VACANT)
        if cause is not None:
            error.__cause__ = cause
        self._add(Fail(error))

    # Workers that are lent

    def _find_worker(self, need: WorkerNeeded) -> None:
        """Lend an idle worker, or have the caller wait for a spare or start a worker.

        Idle workers are tried in this order: one that has opened ``code`` on ``device``, one that has opened nothing
        and has its context on ``device``, one that has opened nothing and belongs to no device. If none fits and a
        spare is still starting, the caller waits for it, one caller for each spare.
        """
        environment, device, code = need.environment, need.device, need.code
        kind = need.role, environment
        if code is not None:
            self._end_idle(lambda worker: _is_outdated(worker, kind, code))
        # In the documented order; without code, or without a device, two of the three are the same.
        for its_device, its_code in dict.fromkeys(((device, code), (device, None), ("", None))):
            worker = self._take_newest(kind, its_device, its_code)
            if worker is not None:
                worker.device = device
                self._add(LendWorker(worker))
                return
        health = self._get_start_health(kind)
        # On another host, a spare that is being made may be for another lane.
        if need.waits and not environment.host and self._awaited[kind] < self.spares_under_way[kind]:
            self._awaited[kind] += 1
            self._add(AwaitSpare(kind))
        elif health.pause_s:
            message = (
                f"{environment.python} failed to run a worker {health.failures} times in a row and is not used "
                f"for {health.pause_s:.0f} s: {health.reason}"
            )
            self._add(Fail(WorkerError(message, hint="repair that interpreter; `ktuned doctor` says more")))
        else:
            self._add(StartWorker(kind, device))

    def _release_worker(self, worker: Worker) -> None:
        """Let a worker idle if it may be lent again; if too many idle then, those that have idled longest end."""
        if not worker.is_alive or self.is_worn(worker):
            self._add(EndWorker(worker))
            return
        worker.idle_until = self._clock() + IDLE_S_OF.get(worker.role, self.limits.idle_s)
        self.idle.append(worker)
        self._end_excess(worker)
        if worker.code is not None:
            self._end_surplus_opened(worker.device, kept=KEPT_OPEN)

    def is_worn(self, worker: Worker, most_requests: int | None = None) -> bool:
        """Return whether a worker must be replaced before its next request: it is outdated, old, or has grown."""
        outdated_at = self._outdated_at.get(worker.environment, -math.inf)
        is_old = worker.requests >= (most_requests or self.limits.max_requests)
        grown = worker.memory_bytes - worker.settled_bytes
        is_large = grown > WORN_SHARE * self.memory_limits.get(worker.role, math.inf)
        return worker.started <= outdated_at or is_old or is_large

    def _end_excess(self, newest: Worker) -> None:
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
        self._instructions += map(EndWorker, self.idle[:excess])
        del self.idle[:excess]

    def _list_opened_on(self, device: str) -> list[Worker]:
        """Return the idle workers that have opened a kernel file on a device, longest idle first."""
        return [worker for worker in self.idle if worker.device == device and worker.code is not None]

    def _end_surplus_opened(self, device: str, kept: int) -> None:
        """End the idle workers that have opened a kernel file on a device, except the ``kept`` newest."""
        opened = self._list_opened_on(device)
        surplus = opened[: max(0, len(opened) - kept)]
        self._end_idle(lambda worker: worker in surplus)

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

    def _end_idle(self, is_ended: Callable[[Worker], bool]) -> list[Worker]:
        ended = self._take_idle(is_ended)
        self._instructions += map(EndWorker, ended)
        return ended

    def _count_unused(self, kind: WorkerKind, device: str) -> int:
        """Return how many live idle workers of a kind have opened no kernel file and belong to a device.

        An empty ``device`` counts those that belong to no device.
        """
        state = device, None
        return sum((one.device, one.code) == state and worker_kind(one) == kind and one.is_alive for one in self.idle)

    # Spares

    def _order_spares(self, need: SparesNeeded) -> None:
        environment, device, count = need.environment, need.device, need.count
        kind = need.role, environment
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
            self._add(MakeSpare(kind, need.backend, need.with_context and number == 0))
        self._warm_next(environment)

    def _take_spare_to_warm(self, warming: _Warming, environment: Environment) -> None:
        warming.waits = False
        worker = self._take_newest((Role.BENCH, environment), "", None)
        if worker is not None:
            warming.is_at_work = True
            self._add(WarmSpare(worker))
        else:
            self._warm_next(environment)

    def _keep_warmed_spare(self, warmed: SpareWarmed) -> None:
        worker, device, error = warmed.worker, warmed.device, warmed.error
        warming = self._warming[worker.environment, device.name]
        warming.missing, warming.is_at_work = warming.missing - 1, False
        if error is None or isinstance(error, RequestFailed):
            # A spare that the GPU refused belongs to the device, too: it counts as one, and is not tried again.
            self._cold.pop(device.name, None)
            if error is not None:
                self._cold[device.name] = error.message
            worker.device = device.name
            self._release_worker(worker)
        else:
            self._add(EndWorker(worker))
        self._warm_next(worker.environment)

    def _warm_next(self, environment: Environment) -> None:
        """Have one spare for each device wait for a turn there, if contexts are still missing."""
        kind = Role.BENCH, environment
        for place, warming in list(self._warming.items()):
            if place[0] != environment or warming.waits or warming.is_at_work:
                continue
            if warming.missing and self._count_unused(kind, ""):
                warming.waits = True
                self._add(AwaitTurn(environment, warming.device))
            elif not warming.missing or not self.spares_under_way[kind]:
                # All contexts are made, or no spare is left to make one. The next opening orders new spares.
                del self._warming[place]

    def _order_spares_of(self, lane: LaneRecord) -> None:
        bench, device = lane.needed.bench, lane.device
        if not device.host:
            counts = SPARES_IN_TROUBLE if self._is_in_trouble(lane) else SPARES
            # No spare makes a context beside an application: it would take memory that the application may need.
            warmed_on = device if lane.is_gpu and not lane.needed.is_shared else None
            count = counts.get(device.kind, 1)
            self._order_spares(SparesNeeded(Role.BENCH, bench.environment, bench.backend, count, warmed_on))
            return
        # On another host, one spare belongs to the lane's device from its start.
        kind = Role.BENCH, bench.environment
        is_wanted = not self.spares_under_way[kind] and not self._count_unused(kind, device.name)
        if is_wanted and self.keeps_spares and not self._get_start_health(kind).pause_s:
            self.spares_under_way[kind] += 1
            self._add(MakeSpare(kind, bench.backend, False, device.name))

    def _is_in_trouble(self, lane: LaneRecord) -> bool:
        return self._clock() - lane.lost_at < TROUBLE_S

    # Applications, and notices for people

    def pause_s(self, device: Device) -> float:
        """Return for how many seconds a lane should leave a device to its application."""
        share = self._shares.get(device.name)
        return 0.0 if share is None else share.pause_s

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
