"""Which worker uses a device next, and whether it may: each event in each state, random sequences, and stories."""

from __future__ import annotations

import re
import signal
from collections import deque
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ktuned.fleet import (
    DeadlineExpired,
    Environment,
    HostLost,
    KernelCode,
    LaneSick,
    Output,
    ReferenceUnusable,
    RequestFailed,
    Worker,
    WorkerDied,
)
from ktuned.fleet.failures import Health
from ktuned.fleet.lane_machine import (
    CROWDED,
    KEPT_OPEN,
    LINGER_S,
    MOVES,
    OUTDATED,
    SOURCE_CHANGED,
    SPARES,
    SPARES_IN_TROUBLE,
    TOLERATED_FAILURES,
    AwaitSpare,
    AwaitTurn,
    Bench,
    CloseData,
    DataClosed,
    DeviceUsed,
    EndWorker,
    Event,
    Fail,
    FleetLimits,
    Instruction,
    LaneEvent,
    LaneMachine,
    LaneRecord,
    LaneState,
    LendWorker,
    MakeSpare,
    Measured,
    OpenProblem,
    ProblemNeeded,
    Released,
    Rest,
    RunCanary,
    SpareMade,
    SparesNeeded,
    SpareWarmed,
    StartWorker,
    Step,
    StepDone,
    StepFailed,
    Stopped,
    TakeWorker,
    TimePassed,
    Trust,
    TurnCame,
    WarmSpare,
    WorkerNeeded,
    WorkerReleased,
    WorkersOutdated,
    WorkerStarted,
    WorkerTaken,
)
from ktuned.ipc import requests
from ktuned.ipc.replies import Failure, Measurement
from ktuned.model import (
    Device,
    DeviceModel,
    DeviceName,
    IllegalMove,
    Outcome,
    Phase,
    Role,
    Target,
    WorkerError,
)
from tests.clocks import SettableClock
from tests.trials import make_measurement

GPU, OTHER_GPU, CPU = (
    Device(DeviceName(name), DeviceModel("m"), Target("t")) for name in ("cuda:0", "cuda:1", "cpu:0")
)
HERE = Environment("/usr/bin/python3", "/")
BENCH = Role.BENCH, HERE
A, B = KernelCode("a.py", "1"), KernelCode("b.py", "1")
EDITED = KernelCode("a.py", "2")
PROBLEM = Bench(HERE, "fake", A, "one", requests.Canary(GPU))
NEXT_PROBLEM = replace(PROBLEM, identity="two")
OTHER_FILE = replace(PROBLEM, code=B, identity="b")

FINE = make_measurement(Outcome.MEASURED, latency_us=5.0)
GUILTY = make_measurement(Outcome.MISMATCH, "wrote behind y", is_guilty=True)
WRONG = make_measurement(Outcome.MISMATCH, "y is wrong")
RAISED = make_measurement(Outcome.LAUNCH_ERROR, "refused")
UNSOUND = make_measurement(Outcome.MEASURED, is_unsound=True)
LEFT_A_THREAD = make_measurement(Outcome.MEASURED, leftover="a thread")

DIED = WorkerDied(-signal.SIGSEGV, Phase.FIRST_LAUNCH, Output())
HUNG = DeadlineExpired(Phase.TIMING, 10.0, Output())
LOST = HostLost("rack7", "it is gone", Phase.LOAD)
UNUSABLE = ReferenceUnusable("its digest is another one", "key", is_damaged=True)
NO_START = WorkerError("cannot start a worker")


def refused(message: str, code: str = "invalid") -> RequestFailed:
    """Return a worker's answer that it cannot."""
    return RequestFailed(Failure(code, message), Phase.REFERENCE, Output())


BROKEN, NO_MEMORY = refused("1 / 0"), refused("CUDA out of memory")
NO_ROOM, CHANGED = refused("4096 MiB free", CROWDED), refused("edited", SOURCE_CHANGED)
MAPPED = refused("a library has changed", OUTDATED)
ERRORS = [DIED, HUNG, LOST, UNUSABLE, NO_START, BROKEN, NO_MEMORY, NO_ROOM, CHANGED, MAPPED]
START_ERRORS = [DIED, HUNG, LOST, NO_START]
MEASUREMENTS = [FINE, GUILTY, WRONG, RAISED, UNSOUND, LEFT_A_THREAD]


class Played(Worker):
    """A worker that only is."""

    def __init__(self, pid: int, role: Role = Role.BENCH, device: str = "", code: KernelCode | None = None) -> None:
        super().__init__(role, HERE, pid)
        self.device, self.code = device, code
        self.is_killed = False

    @property
    def is_alive(self) -> bool:
        return not self.gone.is_set()

    def kill(self, why: str = "") -> None:
        self.is_killed = True

    async def send_request(self, request: Any, deadlines: Mapping[str, float], **callbacks: Any) -> Any:
        raise NotImplementedError

    def measure_memory(self) -> None: ...

    def take_output(self) -> Output:
        return Output()

    def read_phase_durations(self) -> Mapping[str, float]:
        return {}


class World:
    """Carries instructions out, as :class:`~ktuned.fleet.fleet.Fleet` and :class:`~ktuned.fleet.lanes.Lane` do.

    A killed worker has ended when the next one is there, unless it is stuck. ``said`` is what the lane's worker is to
    answer next, ``told`` what has happened.
    """

    def __init__(self, *lanes: Device, limits: FleetLimits | None = None) -> None:
        self.clock = SettableClock(1000.0)
        self.machine = LaneMachine(limits, keeps_spares=False, clock=self.clock)
        self.lanes = [LaneRecord(device, Health(clock=self.clock)) for device in lanes or (GPU,)]
        self.workers: list[Played] = []
        self.stuck: set[Worker] = set()
        self.told: list[str] = []
        self.making: list[MakeSpare] = []
        self.waiting: list[AwaitTurn] = []
        self.closing: list[Worker] = []
        self.steps: dict[str, Instruction | None] = {}

    def start(self, role: Role = Role.BENCH, device: str = "", code: KernelCode | None = None) -> Played:
        """Start a worker."""
        self.workers.append(Played(len(self.workers) + 1, role, device, code))
        self.workers[-1].started = self.clock.now
        return self.workers[-1]

    def handle(self, event: Event) -> Instruction | None:
        """Do what the machine answers to an event; return the step, if there is one."""
        instructions = self.machine.handle(event)
        steps = [place for place, instruction in enumerate(instructions) if isinstance(instruction, Step)]
        assert steps in ([], [len(instructions) - 1]), "a step is the last instruction, and the only one"
        for instruction in instructions:
            match instruction:
                case EndWorker(worker):
                    worker.kill()
                case CloseData(workers):
                    self.closing += workers
                case MakeSpare():
                    self.making.append(instruction)
                case AwaitTurn():
                    self.waiting.append(instruction)
        return instructions[-1] if steps else None

    def reap(self) -> None:
        """Have those end that were killed."""
        for worker in self.workers:
            if worker.is_killed and worker not in self.stuck:
                worker.gone.set()

    def acquire(self, device: str = "", code: KernelCode | None = None) -> Worker:
        """Have a worker lent, or started."""
        match self.handle(WorkerNeeded(*BENCH, device, code, waits=False)):
            case LendWorker(worker):
                return worker
            case Fail(error):
                raise error
            case step:
                assert step == StartWorker(BENCH, device)
        self.handle(WorkerStarted(BENCH))
        return self.start(device=device)

    def open(
        self, bench: Bench = PROBLEM, said: Iterable[WorkerError | None] = (), lane: int = 0, **facts: bool
    ) -> None:
        """Have a lane open a problem, where the canary and the openings end as ``said``, and then well.

        Raises:
            WorkerError: it cannot.
        """
        self.drive(ProblemNeeded(self.lanes[lane], bench, **facts), deque(said))

    def drive(self, event: LaneEvent, answers: deque[WorkerError | None]) -> None:
        """Carry out a lane's steps until it is open."""
        lane, step = event.lane, self.handle(event)
        for _ in range(50):
            if step is None:
                assert lane.state is LaneState.OPEN
                return
            step = self.handle(self.carry_out_step(step, answers))
        raise AssertionError("it goes on for ever")

    def carry_out_step(self, step: Instruction, answers: deque[WorkerError | None]) -> Event:
        """Carry out a step of a lane; return its outcome.

        Raises:
            WorkerError: the lane has failed.
        """
        match step:
            case Fail(error):
                raise error
            case Rest(lane):
                self.told.append(f"rests {lane.health.pause_s:.0f}")
                self.clock.now += lane.health.pause_s
                return StepDone(lane)
            case TakeWorker(lane):
                worker = self.acquire(lane.device.name, lane.needed.bench.code)
                self.told.append(f"takes {worker.pid}")
                self.reap()
                return WorkerTaken(lane, worker)
            case OpenProblem(lane, closing):
                for worker in closing:
                    self.handle(DataClosed(worker))
            case _:
                assert isinstance(step, RunCanary)
                lane = step.lane
        assert lane.worker is not None
        assert not lane.worker.gone.is_set()
        failure = answers.popleft() if answers else None
        self.told.append(f"{lane.state} {lane.worker.pid}" + (f": {failure.message}" if failure else ""))
        return StepDone(lane) if failure is None else StepFailed(lane, failure)

    def measure(self, measured: Measurement, lane: int = 0) -> None:
        """Have a lane measure something."""
        self.handle(Measured(self.lanes[lane], measured))

    def fail(self, error: WorkerError, said: Iterable[WorkerError | None] = (), lane: int = 0) -> None:
        """Have a request fail."""
        self.drive(StepFailed(self.lanes[lane], error), deque(said))

    @property
    def pid(self) -> int | None:
        """The first lane's worker."""
        worker = self.lanes[0].worker
        return None if worker is None else worker.pid

    @property
    def idle(self) -> list[int]:
        """The idle workers."""
        return [worker.pid for worker in self.machine.idle]

    def check(self) -> None:
        """Assert what always holds."""
        busy = [lane.worker for lane in self.lanes if lane.worker is not None]
        places = [*busy, *self.machine.idle]
        assert len(set(places)) == len(places), "a worker is in two places"
        assert not any(worker.is_killed for worker in self.workers if worker in places), "an ended worker is used"
        for lane in self.lanes:
            has_worker = lane.state in (LaneState.PROVING, LaneState.OPENING, LaneState.OPEN)
            assert has_worker == (lane.worker is not None)
            opened = [worker for worker in self.machine.idle if worker.device == lane.device.name and worker.code]
            assert len(opened) <= KEPT_OPEN
            if lane.state is LaneState.OPENING:
                assert len(opened) <= KEPT_OPEN - 1
                assert not any(worker.holds_data for worker in opened), "two problems' data are on the device"


# Each event in each state


def lane_in(world: World, state: LaneState) -> LaneRecord:
    """Return the world's lane after it has come to a state."""
    lane = world.lanes[0]
    if state is LaneState.VACANT:
        return lane
    if state in (LaneState.RESTING, LaneState.PROVING):
        world.open()
        with pytest.raises(WorkerDied):
            world.fail(DIED)
    if state is LaneState.RESTING:
        lane.health.record_failure("the canary failed")
    step = world.handle(ProblemNeeded(lane, PROBLEM))
    while lane.state is not state:
        assert step is not None
        step = world.handle(world.carry_out_step(step, deque()))
    return lane


LEGAL = {
    "nothing": {LaneState.RESTING, LaneState.PROVING, LaneState.OPENING},
    "a worker": {LaneState.TAKING},
    "an error": {LaneState.TAKING, LaneState.PROVING, LaneState.OPENING, LaneState.OPEN},
    "needed": {LaneState.VACANT, LaneState.OPEN},
    "measured": {LaneState.OPEN},
    "released": {LaneState.VACANT, LaneState.OPEN},
    "stopped": set(LaneState),
}
"""The states in which each kind of event makes sense."""


def events(world: World, lane: LaneRecord, kind: str) -> list[LaneEvent]:
    """Return each event of a kind."""
    match kind:
        case "nothing":
            return [StepDone(lane)]
        case "a worker":
            return [WorkerTaken(lane, world.start())]
        case "an error":
            return [StepFailed(lane, error) for error in (START_ERRORS if lane.state is LaneState.TAKING else ERRORS)]
        case "needed":
            needs = [PROBLEM, NEXT_PROBLEM, OTHER_FILE]
            return [ProblemNeeded(lane, need, waits) for need in needs for waits in (True, False)]
        case "measured":
            return [Measured(lane, measured) for measured in MEASUREMENTS]
        case "released":
            return [Released(lane, is_shared) for is_shared in (True, False)]
    return [Stopped(lane)]


STEPS = {
    LaneState.RESTING: Rest,
    LaneState.TAKING: TakeWorker,
    LaneState.PROVING: RunCanary,
    LaneState.OPENING: OpenProblem,
}
"""The step that a lane in each state waits for."""


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("state", list(LaneState))
@pytest.mark.parametrize("kind", list(LEGAL))
def test_each_event_in_each_state_is_refused_or_leads_on(device: Device, state: LaneState, kind: str) -> None:
    """What is refused changes nothing; else the lane has one next thing to do, is open, or its job has an error."""
    if device is CPU and state is LaneState.PROVING:
        # No canary is asked of a CPU.
        return
    for place in range(len(events(probe := World(device), lane_in(probe, state), kind))):
        world = World(device)
        lane = lane_in(world, state)
        before = lane.state, lane.worker, world.idle
        event = events(world, lane, kind)[place]
        if state not in LEGAL[kind]:
            with pytest.raises(IllegalMove):
                world.machine.handle(event)
            assert (lane.state, lane.worker, world.idle) == before
            continue
        step = world.handle(event)
        assert lane.state is state or lane.state in MOVES[state]
        if step is None:
            assert lane.state in (LaneState.VACANT, LaneState.OPEN)
        else:
            assert type(step) is STEPS.get(lane.state, Fail)
        if lane.worker is not before[1] and before[1] is not None:
            is_kept = before[1] in world.machine.idle or before[1] in world.closing
            assert is_kept != world.workers[before[1].pid - 1].is_killed
        world.check()


@pytest.mark.parametrize("state", list(LaneState))
def test_each_way_out_of_a_state_is_in_the_table(state: LaneState) -> None:
    """And no other: the table has no move that nothing makes."""
    found = set()
    for device, kind in ((device, kind) for device in (GPU, CPU) for kind in LEGAL if state in LEGAL[kind]):
        if device is CPU and state is LaneState.PROVING:
            continue
        for prepared in range(4):
            for place in range(len(events(probe := World(device), lane_in(probe, state), kind))):
                world = World(device)
                lane = lane_in(world, state)
                if prepared == 1 and state is LaneState.VACANT:
                    lane.health.record_failure("sick")
                if lane.need is not None:
                    lane.need = replace(lane.need, has_stand_in=prepared == 2, waits=prepared != 2)
                if prepared == 3:
                    lane.is_suspect = True
                    stuck = world.start()
                    world.stuck.add(stuck)
                    lane.ending += [stuck] * (state is LaneState.TAKING and device is CPU)
                world.handle(events(world, lane, kind)[place])
                found.add(lane.state)
    assert found - {state} == MOVES[state] - {state}


# Random sequences


def play(random: Random, world: World) -> None:
    """Let one thing happen anywhere."""
    lane = random.choice(world.lanes)
    match random.randrange(12):
        case 0 if world.making:
            order = world.making.pop(random.randrange(len(world.making)))
            spare = world.start(order.kind[0]) if random.random() < 0.8 else None
            world.handle(SpareMade(order.kind, spare))
        case 1 if world.waiting:
            turn = world.waiting.pop(random.randrange(len(world.waiting)))
            step = world.handle(TurnCame(turn.environment, turn.device))
            if isinstance(step, WarmSpare):
                warmed: WorkerError | None = random.choice([None, None, BROKEN, DIED])
                world.handle(SpareWarmed(step.worker, turn.device, warmed))
        case 2 if world.closing:
            closed: WorkerError | None = random.choice([None, None, HUNG])
            world.handle(DataClosed(world.closing.pop(), closed))
        case 3:
            world.clock.now += random.choice([0.1, 5.0, 100.0])
            world.handle(TimePassed())
        case 4 if random.random() < 0.2:
            world.handle(WorkersOutdated(HERE))
        case 5 if lane.state in LEGAL["released"]:
            world.handle(Released(lane, random.random() < 0.5))
        case 6 if random.random() < 0.3:
            world.handle(Stopped(lane))
        case 7 if lane.state is LaneState.OPEN:
            world.handle(Measured(lane, random.choice(MEASUREMENTS)))
        case 8 if lane.state in LEGAL["needed"]:
            bench = random.choice([PROBLEM, NEXT_PROBLEM, OTHER_FILE, replace(PROBLEM, code=EDITED)])
            facts = {name: random.random() < 0.5 for name in ("waits", "has_stand_in", "is_shared")}
            world.steps[lane.device.name] = world.handle(ProblemNeeded(lane, bench, **facts))
        case 9:
            world.stuck = {one for one in world.workers if random.random() < 0.1}
            world.reap()
        case _ if lane.state is not LaneState.VACANT and lane.need is not None:
            take_step(random, world, lane)
    world.check()


def take_step(random: Random, world: World, lane: LaneRecord) -> None:
    """Have a lane take its step, with any outcome that may come of it."""
    event: Event = StepDone(lane)
    errors: list[WorkerError | None] = [None, None, None, *ERRORS]
    if lane.state is LaneState.OPEN:
        event = StepFailed(lane, random.choice([DIED, HUNG, BROKEN, MAPPED]))
    else:
        step = world.steps[lane.device.name]
        assert step is not None
        answer = random.choice(errors if lane.state is LaneState.OPENING else [None, None, DIED])
        try:
            event = world.carry_out_step(step, deque([answer]))
        except WorkerError as error:
            event = StepFailed(lane, error)
    world.steps[lane.device.name] = world.handle(event)


@given(st.integers(0, 1 << 32))
def test_whatever_happens_no_worker_is_in_two_places_and_each_lane_opens_in_the_end(seed: int) -> None:
    """Two GPUs and a CPU: what is well again opens a problem in a bounded number of steps."""
    random = Random(seed)
    world = World(GPU, OTHER_GPU, CPU, limits=FleetLimits(max_idle=4))
    world.machine.keeps_spares = True
    for _ in range(random.randrange(120)):
        play(random, world)
    world.stuck.clear()
    for place, lane in enumerate(world.lanes):
        world.handle(Stopped(lane))
        world.open(lane=place)
        assert (lane.state, lane.trust, lane.health.failures) == (LaneState.OPEN, Trust.SOUND, 0)
        world.check()


# Stories


STORIES = {
    "the same problem costs nothing": """
        open a; measure fine; open a; measure fine; open a; told: takes 1, opening 1""",
    "a worker opens other problems of its file, and no other file": """
        open a; open next; open b; on: 2; idle: 1; open a; on: 1; idle: 2""",
    "an edit ends the worker of the file before it, and leaves the other file's alone": """
        open a; open b; open edited; on: 3; idle: 2; ended: 1""",
    "a device keeps two workers that have opened a file; the one in use holds data": """
        open a; open b; open c; on: 3; idle: 2; data: 3""",
    "the next worker after a crash must pass a canary on a GPU": """
        open a; fail died: WorkerDied; told: takes 1, opening 1; open a; told: takes 2, proving 2, opening 2""",
    "a CPU has no canary: all other processes run on it meanwhile": """
        on a CPU; open a; fail died: WorkerDied; told: takes 1, opening 1; open a; told: takes 2, opening 2""",
    "a sick GPU is tried after longer and longer pauses where no other one can stand in": """
        open a; fail hung: DeadlineExpired; open a died died died; lane: sound; rests: 1 2 4""",
    "a job with another GPU does not wait for a sick one": """
        open a; fail died: WorkerDied; open a hung no_wait stand_in: LaneSick the canary failed; lane: sick suspect""",
    "a killed worker that does not end keeps the device from the next one": """
        open a; fail hung: DeadlineExpired; told: takes 1, opening 1; stuck 1
        open a no_wait: LaneSick worker 1 was killed but does not end; idle: 2; told: takes 2; freed; open a; on: 2
        told: rests 1, takes 2, proving 2, opening 2""",
    "a config that raised ends its worker": "open a; measure raised; on: None; lane: suspect",
    "a config whose figure is unsound ends its worker": "open a; measure unsound; on: None; lane: suspect",
    "a config that wrote outside its tensors makes the worker doubtful, and a wrong result ends it": """
        open a; measure guilty; open a; on: 1; lane: doubtful; measure wrong; ended: 1""",
    "a right result acquits a doubtful worker": "open a; measure guilty; open a; measure fine; ended:; lane: sound",
    "a doubtful worker opens no other problem": """
        open a; measure guilty; open next; ended: 1; told: takes 1, opening 1, takes 2, opening 2""",
    "a doubtful worker opens no other file": """
        open a; measure guilty; open b; ended: 1; told: takes 1, opening 1, takes 2, opening 2""",
    "a doubtful worker does not idle": "open a; measure guilty; release; idle:; ended: 1",
    "an opening that fails in a used worker is tried in another: some modules cannot be imported twice": """
        on a CPU; open a; open next broken; on: 2; ended: 1""",
    "an opening that fails in a new worker is the problem's fault": """
        on a CPU; open a broken: CannotOpen 1 / 0; told: takes 1, opening 1""",
    "an opening that fails on one of two GPUs is tried after a canary": """
        open a died well died no_wait stand_in: CannotOpen; told: takes 1, opening 1, takes 2, proving 2, opening 2""",
    "a device that is gone is told from a problem that cannot be opened": """
        open a died died no_wait stand_in: LaneSick""",
    "an edit during an opening is nobody's failure": "open a changed no_wait stand_in: RequestFailed edited",
    "a reference that cannot be used costs no worker": "open a unusable: ReferenceUnusable; idle: 1; open a; on: 1",
    "a lost host says nothing about the problem: the lane waits for it, or another one stands in": """
        open a lost; told: takes 1, opening 1, rests 1, takes 2, proving 2, opening 2
        open b lost no_wait stand_in: LaneSick""",
    "a problem without room beside an application leaves the lane to others, even if it would wait": """
        open a no_room: LaneCrowded 4096 MiB; lane: sick""",
    "a worker that has mapped an old file is replaced once, without a canary": """
        open a; fail mapped; on: 2; told: takes 1, opening 1, takes 2, opening 2
        fail mapped: RequestFailed; on: None""",
}
"""Steps of ``event: what is seen of it``. An opening has its failures in their order; an error is told by its type and
the beginning of its message.
"""

BENCHES = {
    "a": PROBLEM,
    "next": NEXT_PROBLEM,
    "b": OTHER_FILE,
    "c": replace(PROBLEM, code=KernelCode("c.py", "1"), identity="c"),
    "edited": replace(PROBLEM, code=EDITED),
}
SAID = {
    "died": DIED,
    "hung": HUNG,
    "lost": LOST,
    "unusable": UNUSABLE,
    "broken": BROKEN,
    "no_room": NO_ROOM,
    "changed": CHANGED,
    "mapped": MAPPED,
    "well": None,
}
MEASURED = {"fine": FINE, "guilty": GUILTY, "wrong": WRONG, "raised": RAISED, "unsound": UNSOUND}


class Story:
    """A world with one lane, on a GPU unless the story says otherwise."""

    def __init__(self) -> None:
        self._world = World()

    def take_step(self, text: str) -> str:
        """Let something happen, or look; return what is seen."""
        name, *words = text.split()
        world, said = self._world, [SAID[word] for word in words if word in SAID]
        lane = world.lanes[0]
        match name:
            case "on" if words:
                self._world = World(CPU)
            case "open":
                world.open(BENCHES[words[0]], said, waits="no_wait" not in words, has_stand_in="stand_in" in words)
            case "fail":
                error = SAID[words[0]]
                assert error is not None
                world.fail(error)
            case "measure":
                world.measure(MEASURED[words[0]])
            case "release":
                world.handle(Released(lane))
            case "stuck":
                world.stuck.add(world.workers[int(words[0]) - 1])
            case "freed":
                world.stuck.clear()
            case "on":
                return str(world.pid)
            case "idle":
                return " ".join(map(str, world.idle))
            case "ended":
                return " ".join(str(worker.pid) for worker in world.workers if worker.is_killed)
            case "data":
                return " ".join(str(one.pid) for one in world.workers if one.holds_data and not one.is_killed)
            case "rests":
                return " ".join(line.split()[1] for line in world.told if line.startswith("rests"))
            case "told":
                told = [line.partition(":")[0] for line in world.told]
                world.told.clear()
                return ", ".join(told)
            case _:
                facts = {"sick": lane.health.is_sick, "suspect": lane.is_suspect}
                facts["doubtful"] = lane.trust is Trust.DOUBTFUL
                return " ".join(fact for fact, is_true in facts.items() if is_true) or "sound"
        return ""


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_story_goes_as_it_is_told(story: str) -> None:
    told = Story()
    for step in re.split(r";|\n", story.strip()):
        event, *expected = re.split(": |:$", step.strip(), maxsplit=1)
        try:
            seen = told.take_step(event)
        except WorkerError as error:
            seen = f"{type(error).__name__} {error.message}"[: len(expected[0])]
        assert [seen] == expected or not expected, step


def test_a_worker_of_another_device_keeps_its_data() -> None:
    """It is not in the way."""
    world = World(GPU, OTHER_GPU)
    world.open(lane=1)
    world.handle(Released(world.lanes[1]))
    world.open()
    assert [worker.holds_data for worker in world.workers] == [True, True]


@pytest.mark.parametrize("reason", ["leftover", "requests", "grown", "outdated", "dead"])
def test_a_spent_worker_does_nothing_more(reason: str) -> None:
    """Not even the same problem."""
    world = World()
    world.machine.memory_limits[Role.BENCH] = 1000
    world.open()
    worker = world.workers[0]
    world.measure(LEFT_A_THREAD if reason == "leftover" else FINE)
    world.measure(FINE)
    worker.requests += 500 * (reason == "requests")
    worker.memory_bytes += 300 * (reason == "grown")
    if reason == "outdated":
        world.handle(WorkersOutdated(HERE))
    elif reason == "dead":
        worker.gone.set()
    world.clock.now += 1.0
    world.open()
    assert (world.pid, worker.is_killed) == (2, True)


@pytest.mark.parametrize(("error", "ended"), [(NO_MEMORY, [1, 2, 3]), (BROKEN, [1, 3])])
def test_idle_workers_end_where_a_problem_may_lack_their_memory(error: RequestFailed, ended: list[int]) -> None:
    """Those that have opened a file; warm spares, too, where the error says that memory is short."""
    world = World()
    for code in (B, None, None):
        world.handle(WorkerReleased(world.start(device=GPU.name, code=code)))
    world.open(said=[error])
    assert [worker.pid for worker in world.workers if worker.is_killed] == ended
    assert world.told[0] == "takes 3"


def test_a_problem_waits_for_the_memory_of_idle_workers_that_were_ended_for_it() -> None:
    """One that does not end still holds it."""
    world = World()
    world.handle(WorkerReleased(world.start(device=GPU.name, code=B)))
    world.stuck.add(world.workers[0])
    with pytest.raises(LaneSick, match="worker 1 was killed but does not end"):
        world.open(said=[NO_MEMORY], waits=False)


def test_a_job_that_is_stopped_in_an_opening_leaves_no_worker() -> None:
    """Its state cannot be known."""
    world = World()
    lane = lane_in(world, LaneState.OPENING)
    world.handle(Stopped(lane))
    assert (lane.state, world.workers[0].is_killed, lane.is_suspect) == (LaneState.VACANT, True, True)


def test_beside_an_application_memory_is_given_up() -> None:
    """Data when no job needs the lane, contexts some seconds later."""
    world = World()
    world.open()
    world.handle(Released(world.lanes[0], True))
    assert (world.closing, world.idle) == ([world.workers[0]], []), "none is lent while it closes its data"
    world.handle(DataClosed(world.workers[0]))
    world.clock.now += LINGER_S
    world.handle(TimePassed())
    assert world.workers[0].is_killed


def test_a_device_has_a_share_as_long_as_an_application_uses_it() -> None:
    """Uses add up; where no application is, there is no pause."""
    world = World()
    for _ in range(2):
        assert world.machine.pause_s(GPU) == 0.0
        world.handle(DeviceUsed(GPU, 0.5, True))
    assert world.machine.pause_s(GPU) > 0.0
    world.handle(DeviceUsed(GPU, 0.5, False))
    assert world.machine.pause_s(GPU) == 0.0


# Workers that idle, and spares


def test_the_newest_worker_of_the_best_state_is_lent() -> None:
    """The one that has opened the file comes first, then one with a context, then one that has nothing."""
    world = World()
    cold, warm = world.start(), world.start(device=GPU.name)
    older, newer = (world.start(device=GPU.name, code=A) for _ in range(2))
    elsewhere = world.start(device=OTHER_GPU.name, code=A)
    for worker in (cold, warm, older, newer, elsewhere):
        world.handle(WorkerReleased(worker))
    assert [world.acquire(GPU.name, A) for _ in range(4)] == [newer, older, warm, cold]
    assert world.acquire(GPU.name, A).pid == 6, "started"


def test_idle_workers_end_when_they_are_too_many_too_large_or_too_old() -> None:
    """The longest idle first, and never the newest because of its size."""
    world = World(limits=FleetLimits(max_idle=2, max_idle_bytes=100))
    for _ in range(5):
        world.handle(WorkerReleased(world.start(Role.INSPECT)))
    assert world.idle == [2, 3, 4, 5], "two, and two of the compilers"
    large = world.start(Role.INSPECT)
    large.memory_bytes = 1000
    world.handle(WorkerReleased(large))
    assert world.idle == [large.pid]
    world.clock.now += 60.0
    world.handle(TimePassed())
    assert world.idle == [large.pid], "inspecting is cheap to keep ready"
    world.clock.now += 1000.0
    world.handle(TimePassed())
    assert world.idle == []


def test_what_cannot_start_is_left_alone_for_a_while() -> None:
    """And says so; a kill from outside is no reason."""
    world = World()
    killed = WorkerDied(-signal.SIGKILL, Phase.SPAWN, Output())
    for error in [killed] * 10 + [NO_START] * TOLERATED_FAILURES:
        world.handle(WorkerStarted(BENCH, error))
    world.acquire()
    for _ in range(TOLERATED_FAILURES + 1):
        world.handle(WorkerStarted(BENCH, NO_START))
    with pytest.raises(WorkerError, match="failed to run a worker 4 times in a row and is not used for 1 s"):
        world.acquire()
    assert "runs no bench worker, tried again in 1 s" in world.machine.notices[0]
    world.machine.keeps_spares = True
    world.handle(SparesNeeded(*BENCH, "fake", 2))
    assert world.making == []
    world.clock.now += 1.0
    world.acquire()
    assert world.machine.notices == []


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
def test_an_opening_orders_spares_and_a_loss_more(device: Device) -> None:
    """Bad configs come in rows. After the loss they start before the opening, which may fail, too."""
    world = World(device)
    world.machine.keeps_spares = True
    world.open()
    assert len(world.making) == SPARES[device.kind]
    with pytest.raises(WorkerDied):
        world.fail(DIED)
    lane = world.lanes[0]
    world.handle(ProblemNeeded(lane, PROBLEM))
    world.reap()
    world.handle(WorkerTaken(lane, world.start()))
    if lane.state is LaneState.PROVING:
        world.handle(StepDone(lane))
    assert (lane.state, len(world.making)) == (LaneState.OPENING, SPARES_IN_TROUBLE[device.kind])


def made(world: World, count: int) -> None:
    """Have spares be there that were ordered."""
    for _ in range(count):
        order = world.making.pop()
        world.handle(SpareMade(order.kind, world.start(order.kind[0])))


def test_spares_of_a_gpu_are_warmed_one_after_the_other() -> None:
    """Each waits for the device; one that the device refuses stays cold, and a notice says so."""
    world = World()
    world.machine.keeps_spares = True
    world.handle(SparesNeeded(*BENCH, "fake", 2, GPU))
    made(world, 2)
    assert len(world.waiting) == 1
    for error in (None, NO_MEMORY):
        world.waiting.clear()
        lent = world.handle(TurnCame(HERE, GPU))
        assert isinstance(lent, WarmSpare)
        world.handle(SpareWarmed(lent.worker, GPU, error))
    assert (world.waiting, [worker.device for worker in world.machine.idle]) == ([], [GPU.name] * 2)
    assert world.machine.notices[0].startswith("no warm spare on cuda:0")


def test_a_lane_may_take_a_spare_that_waits_for_its_device() -> None:
    """The turn then has nothing to do, and no other is made for it."""
    world = World()
    world.machine.keeps_spares = True
    world.handle(SparesNeeded(*BENCH, "fake", 1, GPU))
    made(world, 1)
    assert world.acquire(GPU.name).pid == 1
    assert world.handle(TurnCame(HERE, GPU)) is None
    assert (world.making, len(world.waiting)) == ([], 1)


def test_what_one_gpu_has_under_way_is_not_the_other_s() -> None:
    """Nor what works on it for the first time."""
    world = World()
    world.machine.keeps_spares = True
    for device in (GPU, OTHER_GPU, GPU):
        world.handle(SparesNeeded(*BENCH, "fake", 2, device))
    assert len(world.making) == 4
    made(world, 4)
    assert isinstance(world.handle(TurnCame(HERE, GPU)), WarmSpare)
    world.handle(SparesNeeded(*BENCH, "fake", 3, GPU))
    assert len(world.making) == 1


def test_a_spare_under_way_is_waited_for_by_one() -> None:
    """The second who comes starts a worker at once."""
    world = World()
    world.machine.keeps_spares = True
    world.handle(SparesNeeded(*BENCH, "fake", 1))
    assert world.handle(WorkerNeeded(*BENCH)) == AwaitSpare(BENCH)
    assert world.handle(WorkerNeeded(*BENCH)) == StartWorker(BENCH, "")
    made(world, 1)
    assert world.handle(WorkerNeeded(*BENCH)) == LendWorker(world.workers[0])


def test_only_the_first_spare_of_all_may_make_its_context_early() -> None:
    """A lane may take a warm one at any moment, and time beside the others."""
    world = World()
    world.machine.keeps_spares = True
    world.handle(SparesNeeded(*BENCH, "fake", 2, with_context=True))
    assert [order.may_make_context for order in world.making] == [True, False]


def test_beside_an_application_spares_make_no_context() -> None:
    """It would take memory that the application may need."""
    world = World()
    world.machine.keeps_spares = True
    world.open(is_shared=True)
    made(world, len(world.making))
    assert world.waiting == []
