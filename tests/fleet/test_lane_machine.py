"""Which worker uses a device next, and whether it may: each event in each state, random sequences, and stories."""

from __future__ import annotations

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
    CannotOpen,
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
from ktuned.fleet.failures import LaneCrowded
from ktuned.fleet.health import Health
from ktuned.fleet.lane_machine import (
    CROWDED,
    DUTY,
    KEPT_OPEN,
    LINGER_S,
    MOVES,
    OUTDATED,
    SOURCE_CHANGED,
    SPARES,
    SPARES_IN_TROUBLE,
    TOLERATED_FAILURES,
    AwaitSpare,
    Bench,
    CloseData,
    EndWorker,
    Fail,
    FleetLimits,
    Instruction,
    LaneMachine,
    LaneRecord,
    LaneState,
    LendWorker,
    MakeSpare,
    Trust,
    WarmSpare,
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
from tests.fleet.playground import FakeClock
from tests.trials import make_measurement

GPU, OTHER_GPU, CPU = (
    Device(DeviceName(name), DeviceModel("m"), Target("t")) for name in ("cuda:0", "cuda:1", "cpu:0")
)
ENVIRONMENT = Environment("/usr/bin/python3", "/")
BENCH_KIND = Role.BENCH, ENVIRONMENT
A, B = KernelCode("a.py", "1"), KernelCode("b.py", "1")
EDITED = KernelCode("a.py", "2")
PROBLEM = Bench(ENVIRONMENT, "fake", A, "one", requests.Canary(GPU))
NEXT_PROBLEM = replace(PROBLEM, identity="two")
OTHER_FILE = replace(PROBLEM, code=B, identity="b")

FINE = make_measurement(Outcome.MEASURED, latency_us=5.0)
WROTE_OUTSIDE = make_measurement(Outcome.MISMATCH, "wrote behind y", is_guilty=True)
WRONG = make_measurement(Outcome.MISMATCH, "y is wrong")
RAISED = make_measurement(Outcome.LAUNCH_ERROR, "refused")
UNSOUND = make_measurement(Outcome.MEASURED, is_unsound=True)
LEFT_A_THREAD = make_measurement(Outcome.MEASURED, leftover="a thread")

DIED = WorkerDied(-signal.SIGSEGV, Phase.FIRST_LAUNCH, Output())
HUNG = DeadlineExpired(Phase.TIMING, 10.0, Output())
LOST = HostLost("rack7", "it is gone", Phase.LOAD)
UNUSABLE = ReferenceUnusable("its digest is another one", "key", is_damaged=True)
NO_START = WorkerError("cannot start a worker")


def make_refusal(message: str, code: str = "invalid") -> RequestFailed:
    """Return a worker's refusal."""
    return RequestFailed(Failure(code, message), Phase.REFERENCE, Output())


BROKEN, NO_MEMORY = make_refusal("1 / 0"), make_refusal("CUDA out of memory")
NO_ROOM, CHANGED = make_refusal("4096 MiB free", CROWDED), make_refusal("edited", SOURCE_CHANGED)
MAPPED = make_refusal("a library has changed", OUTDATED)
ERRORS = [DIED, HUNG, LOST, UNUSABLE, NO_START, BROKEN, NO_MEMORY, NO_ROOM, CHANGED, MAPPED]
START_ERRORS = [DIED, HUNG, LOST, NO_START]
MEASUREMENTS = [FINE, WROTE_OUTSIDE, WRONG, RAISED, UNSOUND, LEFT_A_THREAD]


class FakeWorker(Worker):
    """A worker that does nothing."""

    def __init__(self, pid: int, role: Role = Role.BENCH, device: str = "", code: KernelCode | None = None) -> None:
        super().__init__(role, ENVIRONMENT, pid)
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


class FakeFleet:
    """Carries out instructions as :class:`~ktuned.fleet.fleet.Fleet` and :class:`~ktuned.fleet.lanes.Lane` do.

    A killed worker has ended when the next one starts, unless it is stuck. ``log`` is what has happened.
    """

    def __init__(self, *lanes: Device, limits: FleetLimits | None = None) -> None:
        self.clock = FakeClock(now=1000.0)
        self.machine = LaneMachine(limits, keeps_spares=False, clock=self.clock)
        self.lanes = [LaneRecord(device, Health(clock=self.clock)) for device in lanes or (GPU,)]
        self.workers: list[FakeWorker] = []
        self.stuck: set[Worker] = set()
        self.log: list[str] = []
        self.ordered_spares: list[MakeSpare] = []
        self.waiting_spares: list[WarmSpare] = []
        self.closing: list[Worker] = []

    def start_worker(self, role: Role = Role.BENCH, device: str = "", code: KernelCode | None = None) -> FakeWorker:
        """Start a worker."""
        self.workers.append(FakeWorker(len(self.workers) + 1, role, device, code))
        self.workers[-1].started = self.clock.now
        return self.workers[-1]

    def carry_out(self, instructions: Iterable[Instruction]) -> Instruction | None:
        """Carry out instructions; return the one that is for the caller."""
        for_caller = []
        for instruction in instructions:
            match instruction:
                case EndWorker(worker):
                    worker.kill()
                case CloseData(workers):
                    self.closing += workers
                case MakeSpare():
                    self.ordered_spares.append(instruction)
                case WarmSpare():
                    self.waiting_spares.append(instruction)
                case _:
                    for_caller.append(instruction)
        assert len(for_caller) <= 1
        return for_caller[0] if for_caller else None

    def reap_killed(self) -> None:
        """Let killed workers end."""
        for worker in self.workers:
            if worker.is_killed and worker not in self.stuck:
                worker.gone.set()

    def acquire_worker(self, device: str = "", code: KernelCode | None = None) -> Worker:
        """Lend or start a worker."""
        match self.carry_out(self.machine.lend_worker(*BENCH_KIND, device, code, waits=False)):
            case LendWorker(worker):
                return worker
            case Fail(error):
                raise error
        worker = self.start_worker(device=device)
        self.machine.record_start(BENCH_KIND)
        return worker

    def open_problem(
        self, bench: Bench = PROBLEM, answers: Iterable[WorkerError | None] = (), lane: int = 0, **facts: bool
    ) -> None:
        """Let a lane open a problem; the canary and the openings end with ``answers``, then succeed.

        Raises:
            WorkerError: the problem cannot be opened.
        """
        record, answers = self.lanes[lane], deque(answers)
        self.follow_lane(record, self.machine.need_problem(record, bench, **facts), answers)

    def follow_lane(
        self, lane: LaneRecord, instructions: Iterable[Instruction], answers: deque[WorkerError | None]
    ) -> None:
        """Do what a lane's state requires, until it is open."""
        for _ in range(50):
            failed = self.carry_out(instructions)
            if isinstance(failed, Fail):
                raise failed.error
            outcome: Worker | WorkerError | None = None
            match lane.state:
                case LaneState.OPEN:
                    return
                case LaneState.RESTING:
                    self.log.append(f"rests {lane.health.pause_s:.0f}")
                    self.clock.now += lane.health.pause_s
                case LaneState.TAKING:
                    assert lane.bench is not None
                    outcome = self.acquire_worker(lane.device.name, lane.bench.code)
                    self.log.append(f"takes {outcome.pid}")
                    self.reap_killed()
                case state:
                    assert lane.worker is not None
                    assert not lane.worker.gone.is_set()
                    for worker in lane.closing:
                        self.carry_out(self.machine.record_closed_data(worker))
                    outcome = answers.popleft() if answers else None
                    self.log.append(f"{state} {lane.worker.pid}" + (f": {outcome.message}" if outcome else ""))
            instructions = self.machine.advance_lane(lane, outcome)
        raise AssertionError("it goes on for ever")

    def record_measurement(self, measured: Measurement, lane: int = 0) -> None:
        """Record a measurement on a lane."""
        self.carry_out(self.machine.record_measurement(self.lanes[lane], measured))

    def fail_request(self, error: WorkerError, answers: Iterable[WorkerError | None] = (), lane: int = 0) -> None:
        """Let a lane's request fail."""
        self.follow_lane(self.lanes[lane], self.machine.advance_lane(self.lanes[lane], error), deque(answers))

    @property
    def lane_pid(self) -> int | None:
        """Return the process id of the first lane's worker."""
        worker = self.lanes[0].worker
        return None if worker is None else worker.pid

    @property
    def idle_pids(self) -> list[int]:
        """Return the process ids of the idle workers."""
        return [worker.pid for worker in self.machine.idle]

    def check_invariants(self) -> None:
        """Assert the invariants."""
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


def bring_lane_to(fleet: FakeFleet, state: LaneState) -> LaneRecord:
    """Return the fleet's lane after it has reached a state."""
    lane = fleet.lanes[0]
    if state is LaneState.VACANT:
        return lane
    if state in (LaneState.RESTING, LaneState.PROVING):
        fleet.open_problem()
        with pytest.raises(WorkerDied):
            fleet.fail_request(DIED)
    if state is LaneState.RESTING:
        lane.health.record_failure("the canary failed")
    fleet.carry_out(fleet.machine.need_problem(lane, PROBLEM))
    while lane.state is not state:
        outcome = fleet.acquire_worker(lane.device.name, A) if lane.state is LaneState.TAKING else None
        fleet.reap_killed()
        fleet.carry_out(fleet.machine.advance_lane(lane, outcome))
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
"""The states in which each kind of event is legal."""


def list_events(fleet: FakeFleet, lane: LaneRecord, kind: str) -> list[Iterable[Instruction]]:
    """Return the machine's instructions for each event of a kind; they are lazy, and only one is to be read."""
    machine = fleet.machine
    match kind:
        case "nothing":
            return [machine.advance_lane(lane)]
        case "a worker":
            return [machine.advance_lane(lane, fleet.start_worker())]
        case "an error":
            errors = START_ERRORS if lane.state is LaneState.TAKING else ERRORS
            return [machine.advance_lane(lane, error) for error in errors]
        case "needed":
            benches = [PROBLEM, NEXT_PROBLEM, OTHER_FILE]
            return [machine.need_problem(lane, bench, waits=waits) for bench in benches for waits in (True, False)]
        case "measured":
            return [machine.record_measurement(lane, measured) for measured in MEASUREMENTS]
        case "released":
            return [machine.release_lane(lane, is_shared=is_shared) for is_shared in (True, False)]
    return [machine.stop_lane(lane)]


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
@pytest.mark.parametrize("state", list(LaneState))
@pytest.mark.parametrize("kind", list(LEGAL))
def test_each_event_in_each_state_is_refused_or_leads_on(device: Device, state: LaneState, kind: str) -> None:
    """A refused event changes nothing; otherwise the lane has one next step, is open, or its job has an error."""
    if device is CPU and state is LaneState.PROVING:
        # A CPU has no canary.
        return
    for index in range(len(list_events(probe_fleet := FakeFleet(device), bring_lane_to(probe_fleet, state), kind))):
        fleet = FakeFleet(device)
        lane = bring_lane_to(fleet, state)
        before_event = lane.state, lane.worker, fleet.idle_pids
        instructions = list_events(fleet, lane, kind)[index]
        if state not in LEGAL[kind]:
            with pytest.raises(IllegalMove):
                list(instructions)
            assert (lane.state, lane.worker, fleet.idle_pids) == before_event
            continue
        instruction = fleet.carry_out(instructions)
        assert lane.state is state or lane.state in MOVES[state]
        assert instruction is None or (isinstance(instruction, Fail) and lane.state is LaneState.VACANT)
        if lane.worker is not before_event[1] and before_event[1] is not None:
            is_kept = before_event[1] in fleet.machine.idle or before_event[1] in fleet.closing
            assert is_kept != fleet.workers[before_event[1].pid - 1].is_killed
        fleet.check_invariants()


@pytest.mark.parametrize("state", list(LaneState))
def test_each_way_out_of_a_state_is_in_the_table(state: LaneState) -> None:
    """The table has no unused move."""
    reached_states = set()
    for device, kind in ((device, kind) for device in (GPU, CPU) for kind in LEGAL if state in LEGAL[kind]):
        if device is CPU and state is LaneState.PROVING:
            continue
        for variant in range(4):
            for index in range(
                len(list_events(probe_fleet := FakeFleet(device), bring_lane_to(probe_fleet, state), kind))
            ):
                fleet = FakeFleet(device)
                lane = bring_lane_to(fleet, state)
                if variant == 1 and state is LaneState.VACANT:
                    lane.health.record_failure("sick")
                lane.has_stand_in = variant == 2
                lane.waits = variant != 2
                if variant == 3:
                    lane.is_suspect = True
                    stuck = fleet.start_worker()
                    fleet.stuck.add(stuck)
                    lane.ending += [stuck] * (state is LaneState.TAKING and device is CPU)
                fleet.carry_out(list_events(fleet, lane, kind)[index])
                reached_states.add(lane.state)
    assert reached_states - {state} == MOVES[state] - {state}


# Random sequences


def play_random_event(random: Random, fleet: FakeFleet) -> None:
    """Let one random event happen."""
    machine = fleet.machine
    lane = random.choice(fleet.lanes)
    match random.randrange(12):
        case 0 if fleet.ordered_spares:
            order = fleet.ordered_spares.pop(random.randrange(len(fleet.ordered_spares)))
            spare = fleet.start_worker(order.role) if random.random() < 0.8 else None
            fleet.carry_out(machine.record_spare(order.kind, spare))
        case 1 if fleet.waiting_spares:
            warm_up = fleet.waiting_spares.pop(random.randrange(len(fleet.waiting_spares)))
            lent_instruction = fleet.carry_out(machine.take_spare_to_warm(warm_up.environment, warm_up.device))
            if isinstance(lent_instruction, LendWorker):
                warmed: WorkerError | None = random.choice([None, None, BROKEN, DIED])
                fleet.carry_out(machine.record_warm_up(lent_instruction.worker, warm_up.device, warmed))
        case 2 if fleet.closing:
            closed: WorkerError | None = random.choice([None, None, HUNG])
            fleet.carry_out(machine.record_closed_data(fleet.closing.pop(), closed))
        case 3:
            fleet.clock.now += random.choice([0.1, 5.0, 100.0])
            fleet.carry_out(machine.review_idle())
        case 4 if random.random() < 0.2:
            fleet.carry_out(machine.outdate_workers(random.choice([ENVIRONMENT, None])))
        case 5 if lane.state in LEGAL["released"]:
            fleet.carry_out(machine.release_lane(lane, is_shared=random.random() < 0.5))
        case 6 if random.random() < 0.3:
            fleet.carry_out(machine.stop_lane(lane))
        case 7 if lane.state is LaneState.OPEN:
            fleet.carry_out(machine.record_measurement(lane, random.choice(MEASUREMENTS)))
        case 8 if lane.state in LEGAL["needed"]:
            bench = random.choice([PROBLEM, NEXT_PROBLEM, OTHER_FILE, replace(PROBLEM, code=EDITED)])
            facts = {name: random.random() < 0.5 for name in ("waits", "has_stand_in", "is_shared")}
            fleet.carry_out(machine.need_problem(lane, bench, **facts))
        case 9:
            fleet.stuck = {worker for worker in fleet.workers if random.random() < 0.1}
            fleet.reap_killed()
        case _ if lane.state is not LaneState.VACANT and lane.bench is not None:
            take_step(random, fleet, lane)
    fleet.check_invariants()


def take_step(random: Random, fleet: FakeFleet, lane: LaneRecord) -> None:
    """Let a lane do what its state requires, with a random outcome."""
    outcome: Worker | WorkerError | None = None
    if lane.state is LaneState.OPEN:
        outcome = random.choice([DIED, HUNG, BROKEN, MAPPED])
    elif lane.state is LaneState.TAKING:
        assert lane.bench is not None
        try:
            outcome = fleet.acquire_worker(lane.device.name, lane.bench.code)
        except WorkerError as error:
            outcome = error
    elif lane.state is not LaneState.RESTING:
        for worker in lane.closing:
            fleet.carry_out(fleet.machine.record_closed_data(worker))
        lane.closing = []
        outcome = random.choice([None, None, None, *ERRORS]) if lane.state is LaneState.OPENING else None
        if lane.state is LaneState.PROVING and random.random() < 0.3:
            outcome = DIED
    fleet.carry_out(fleet.machine.advance_lane(lane, outcome))


@given(st.integers(0, 1 << 32))
def test_whatever_happens_no_worker_is_in_two_places_and_each_lane_opens_in_the_end(seed: int) -> None:
    """On two GPUs and a CPU, a recovered lane opens a problem in a bounded number of steps."""
    random = Random(seed)
    fleet = FakeFleet(GPU, OTHER_GPU, CPU, limits=FleetLimits(max_idle=4))
    fleet.machine.keeps_spares = True
    for _ in range(random.randrange(120)):
        play_random_event(random, fleet)
    fleet.stuck.clear()
    for index, lane in enumerate(fleet.lanes):
        fleet.carry_out(fleet.machine.stop_lane(lane))
        fleet.open_problem(lane=index)
        assert (lane.state, lane.trust, lane.health.failures) == (LaneState.OPEN, Trust.SOUND, 0)
        fleet.check_invariants()


# Stories


def test_the_same_problem_costs_nothing() -> None:
    fleet = FakeFleet()
    for _ in range(3):
        fleet.open_problem()
        fleet.record_measurement(FINE)
    assert fleet.log == ["takes 1", "opening 1"]


def test_a_worker_opens_other_problems_of_its_file_and_no_other_file() -> None:
    """One file's effects on its process must not reach another file, which gets its own worker."""
    fleet = FakeFleet()
    fleet.open_problem()
    fleet.open_problem(NEXT_PROBLEM)
    fleet.open_problem(OTHER_FILE)
    assert (fleet.lane_pid, fleet.idle_pids) == (2, [1])
    fleet.open_problem()
    assert (fleet.lane_pid, fleet.idle_pids) == (1, [2]), "it has that very file open"


def test_an_edit_ends_the_worker_of_the_file_before_it() -> None:
    """Another file's worker stays."""
    fleet = FakeFleet()
    fleet.open_problem()
    fleet.open_problem(OTHER_FILE)
    fleet.open_problem(replace(PROBLEM, code=EDITED))
    assert (fleet.lane_pid, fleet.idle_pids) == (3, [2])
    assert fleet.workers[0].is_killed


def test_a_device_keeps_two_workers_that_have_opened_a_file() -> None:
    """The worker in use is one of them, and only it holds data."""
    fleet = FakeFleet()
    for code in (A, B, KernelCode("c.py", "1")):
        fleet.open_problem(replace(PROBLEM, code=code, identity=code.file))
    assert (fleet.lane_pid, fleet.idle_pids) == (3, [2])
    assert [worker.holds_data for worker in fleet.workers[1:]] == [False, True]


def test_a_worker_of_another_device_keeps_its_data() -> None:
    fleet = FakeFleet(GPU, OTHER_GPU)
    fleet.open_problem(lane=1)
    fleet.carry_out(fleet.machine.release_lane(fleet.lanes[1]))
    fleet.open_problem()
    assert [worker.holds_data for worker in fleet.workers] == [True, True]


def test_the_next_worker_after_a_crash_must_pass_a_canary_on_a_gpu_alone() -> None:
    """A CPU has no canary, because all other processes run on it."""
    for device, log in ((GPU, ["takes 2", "proving 2", "opening 2"]), (CPU, ["takes 2", "opening 2"])):
        fleet = FakeFleet(device)
        fleet.open_problem()
        with pytest.raises(WorkerDied):
            fleet.fail_request(DIED)
        fleet.log.clear()
        fleet.open_problem()
        assert fleet.log == log


def test_a_sick_gpu_is_tried_after_longer_and_longer_pauses() -> None:
    """Without another GPU the job waits; one success makes the GPU healthy."""
    fleet = FakeFleet()
    fleet.open_problem()
    with pytest.raises(DeadlineExpired):
        fleet.fail_request(HUNG)
    fleet.open_problem(answers=[DIED, DIED, DIED])
    assert [log for log in fleet.log if "rests" in log] == ["rests 1", "rests 2", "rests 4"]
    assert (fleet.lanes[0].health.is_sick, fleet.lanes[0].is_suspect) == (False, False)


def test_a_job_with_another_gpu_does_not_wait_for_a_sick_one() -> None:
    """The job gets the error at once, and the lane its reason."""
    fleet = FakeFleet()
    fleet.open_problem()
    with pytest.raises(WorkerDied):
        fleet.fail_request(DIED)
    with pytest.raises(LaneSick, match="the canary failed"):
        fleet.open_problem(answers=[HUNG], waits=False, has_stand_in=True)
    assert fleet.lanes[0].health.is_sick


def test_a_killed_worker_that_does_not_end_keeps_the_device() -> None:
    """The next worker stays idle until the driver releases the device."""
    fleet = FakeFleet()
    fleet.open_problem()
    with pytest.raises(DeadlineExpired):
        fleet.fail_request(HUNG)
    fleet.stuck.add(fleet.workers[0])
    with pytest.raises(LaneSick, match="worker 1 was killed but does not end"):
        fleet.open_problem(waits=False)
    assert fleet.idle_pids == [2]
    fleet.stuck.clear()
    fleet.open_problem()
    assert (fleet.lane_pid, fleet.log[-3:]) == (2, ["takes 2", "proving 2", "opening 2"])


@pytest.mark.parametrize("measured", [RAISED, UNSOUND])
def test_a_config_that_raised_ends_its_worker(measured: Measurement) -> None:
    """The device's context may be in any state."""
    fleet = FakeFleet()
    fleet.open_problem()
    fleet.record_measurement(measured)
    assert (fleet.lane_pid, fleet.lanes[0].is_suspect) == (None, True)


def test_a_config_that_wrote_outside_its_tensors_makes_the_worker_doubtful() -> None:
    """It may continue with the problem: a wrong result ends it, a right one clears it, another problem gets another
    worker.
    """
    for after, is_ended in ((WRONG, True), (FINE, False)):
        fleet = FakeFleet()
        fleet.open_problem()
        fleet.record_measurement(WROTE_OUTSIDE)
        fleet.open_problem()
        assert (fleet.lane_pid, fleet.lanes[0].trust) == (1, Trust.DOUBTFUL)
        fleet.record_measurement(after)
        assert fleet.workers[0].is_killed == is_ended
    for bench in (NEXT_PROBLEM, OTHER_FILE):
        fleet = FakeFleet()
        fleet.open_problem()
        fleet.record_measurement(WROTE_OUTSIDE)
        fleet.open_problem(bench)
        assert (fleet.lane_pid, fleet.workers[0].is_killed, fleet.log[-1]) == (2, True, "opening 2"), "no canary"


def test_a_doubtful_worker_does_not_idle() -> None:
    """The next job's results would be doubtful, too."""
    fleet = FakeFleet()
    fleet.open_problem()
    fleet.record_measurement(WROTE_OUTSIDE)
    fleet.carry_out(fleet.machine.release_lane(fleet.lanes[0]))
    assert (fleet.idle_pids, fleet.workers[0].is_killed) == ([], True)


@pytest.mark.parametrize("reason", ["leftover", "requests", "grown", "outdated", "dead"])
def test_a_spent_worker_does_nothing_more(reason: str) -> None:
    """It does not even continue with the same problem."""
    fleet = FakeFleet()
    fleet.machine.memory_limits[Role.BENCH] = 1000
    fleet.open_problem()
    worker = fleet.workers[0]
    fleet.record_measurement(LEFT_A_THREAD if reason == "leftover" else FINE)
    fleet.record_measurement(FINE)
    worker.requests += 500 * (reason == "requests")
    worker.memory_bytes += 300 * (reason == "grown")
    if reason == "outdated":
        fleet.carry_out(fleet.machine.outdate_workers(ENVIRONMENT))
    elif reason == "dead":
        worker.gone.set()
    fleet.clock.now += 1.0
    fleet.open_problem()
    assert (fleet.lane_pid, worker.is_killed) == (2, True)


def test_an_opening_that_fails_in_a_used_worker_is_tried_in_another() -> None:
    """Some modules cannot be imported twice. In a new worker, the same error is the problem's."""
    fleet = FakeFleet(CPU)
    fleet.open_problem()
    fleet.open_problem(NEXT_PROBLEM, answers=[BROKEN])
    assert (fleet.lane_pid, fleet.workers[0].is_killed) == (2, True)
    fleet = FakeFleet(CPU)
    with pytest.raises(CannotOpen, match="1 / 0"):
        fleet.open_problem(answers=[BROKEN])
    assert fleet.log == ["takes 1", "opening 1: 1 / 0"]


@pytest.mark.parametrize(("error", "ended"), [(NO_MEMORY, [1, 2, 3]), (BROKEN, [1, 3])])
def test_idle_workers_end_where_a_problem_may_lack_their_memory(error: RequestFailed, ended: list[int]) -> None:
    """Workers that have opened a file end; warm spares end, too, if the error says that memory is short."""
    fleet = FakeFleet()
    for code in (B, None, None):
        fleet.carry_out(fleet.machine.release_worker(fleet.start_worker(device=GPU.name, code=code)))
    fleet.open_problem(answers=[error])
    assert [worker.pid for worker in fleet.workers if worker.is_killed] == ended
    assert fleet.log[0] == "takes 3"


def test_a_problem_waits_for_the_memory_of_idle_workers_that_were_ended_for_it() -> None:
    """A worker that does not end still holds it."""
    fleet = FakeFleet()
    fleet.carry_out(fleet.machine.release_worker(fleet.start_worker(device=GPU.name, code=B)))
    fleet.stuck.add(fleet.workers[0])
    with pytest.raises(LaneSick, match="worker 1 was killed but does not end"):
        fleet.open_problem(answers=[NO_MEMORY], waits=False)


def test_an_opening_that_fails_on_one_of_two_gpus_is_tried_after_a_canary() -> None:
    """The canary tells a lost device from a problem that cannot be opened."""
    fleet = FakeFleet()
    with pytest.raises(CannotOpen):
        fleet.open_problem(answers=[DIED, None, DIED], waits=False, has_stand_in=True)
    assert [log.partition(":")[0] for log in fleet.log] == [
        "takes 1",
        "opening 1",
        "takes 2",
        "proving 2",
        "opening 2",
    ]
    fleet = FakeFleet()
    with pytest.raises(LaneSick):
        fleet.open_problem(answers=[DIED, DIED], waits=False, has_stand_in=True)


def test_an_edit_during_an_opening_is_nobody_s_failure() -> None:
    """The job learns about it and restarts with the new file."""
    fleet = FakeFleet()
    with pytest.raises(RequestFailed) as caught:
        fleet.open_problem(answers=[CHANGED], waits=False, has_stand_in=True)
    assert caught.value.code == SOURCE_CHANGED


def test_a_reference_that_cannot_be_used_costs_no_worker() -> None:
    """The worker opens the problem with another reference."""
    fleet = FakeFleet()
    with pytest.raises(ReferenceUnusable):
        fleet.open_problem(answers=[UNUSABLE])
    assert fleet.idle_pids == [1]
    fleet.open_problem()
    assert fleet.lane_pid == 1


def test_a_lost_host_says_nothing_about_the_problem() -> None:
    """The lane waits for the host, or another lane stands in."""
    fleet = FakeFleet()
    fleet.open_problem(answers=[LOST])
    assert "rests 1" in fleet.log
    with pytest.raises(LaneSick):
        fleet.open_problem(OTHER_FILE, answers=[LOST], waits=False, has_stand_in=True)


def test_a_problem_without_room_beside_an_application_leaves_the_lane_to_others() -> None:
    """Even a job that would wait for a sick device gets the error, because another problem may be smaller."""
    fleet = FakeFleet()
    with pytest.raises(LaneCrowded, match="4096 MiB"):
        fleet.open_problem(answers=[NO_ROOM])
    assert (fleet.lanes[0].health.is_sick, fleet.lanes[0].is_suspect) == (True, False)


def test_a_worker_that_has_mapped_an_old_file_is_replaced_once() -> None:
    """The next worker gets the request without a canary, because nothing has failed."""
    fleet = FakeFleet()
    fleet.open_problem()
    fleet.fail_request(MAPPED)
    assert (fleet.lane_pid, fleet.log[-2:]) == (2, ["takes 2", "opening 2"])
    with pytest.raises(RequestFailed):
        fleet.fail_request(MAPPED)
    assert fleet.lane_pid is None


def test_a_job_that_is_stopped_in_an_opening_leaves_no_worker() -> None:
    """The worker's state is unknown."""
    fleet = FakeFleet()
    lane = bring_lane_to(fleet, LaneState.OPENING)
    fleet.carry_out(fleet.machine.stop_lane(lane))
    assert (lane.state, fleet.workers[0].is_killed, lane.is_suspect) == (LaneState.VACANT, True, True)


def test_beside_an_application_memory_is_given_up() -> None:
    """Data are freed when no job needs the lane, contexts some seconds later."""
    fleet = FakeFleet()
    fleet.open_problem()
    fleet.carry_out(fleet.machine.release_lane(fleet.lanes[0], is_shared=True))
    assert (fleet.closing, fleet.idle_pids) == ([fleet.workers[0]], []), "none is lent while it closes its data"
    fleet.carry_out(fleet.machine.record_closed_data(fleet.workers[0]))
    fleet.clock.now += LINGER_S
    fleet.carry_out(fleet.machine.review_idle())
    assert fleet.workers[0].is_killed


def test_a_use_beside_an_application_is_followed_by_nine_times_as_long() -> None:
    """Uses in a row add up, and pauses count; without an application there is no wait."""
    fleet = FakeFleet()
    machine, now = fleet.machine, fleet.clock.now
    machine.record_device_use(GPU, now - 0.5, now, is_shared=True)
    assert machine.pause_s(GPU) == pytest.approx(0.5 / DUTY - 0.5)
    fleet.clock.now = now + 2.0
    machine.record_device_use(GPU, now + 1.9, now + 2.0, is_shared=True)
    assert machine.pause_s(GPU) == pytest.approx(3.5)
    machine.record_device_use(GPU, now + 1.9, now + 2.0, is_shared=False)
    assert machine.pause_s(GPU) == 0.0


# Workers that idle, and spares


def test_the_newest_worker_of_the_best_state_is_lent() -> None:
    """First a worker that has opened the file, then one with a context, then any other."""
    fleet = FakeFleet()
    cold, warm = fleet.start_worker(), fleet.start_worker(device=GPU.name)
    older, newer = (fleet.start_worker(device=GPU.name, code=A) for _ in range(2))
    elsewhere = fleet.start_worker(device=OTHER_GPU.name, code=A)
    for worker in (cold, warm, older, newer, elsewhere):
        fleet.carry_out(fleet.machine.release_worker(worker))
    assert [fleet.acquire_worker(GPU.name, A) for _ in range(4)] == [newer, older, warm, cold]
    assert fleet.acquire_worker(GPU.name, A).pid == 6, "started"


def test_idle_workers_end_when_they_are_too_many_too_large_or_too_old() -> None:
    """The longest idle ends first, and the newest never because of its size."""
    fleet = FakeFleet(limits=FleetLimits(max_idle=2, max_idle_bytes=100))
    for _ in range(5):
        fleet.carry_out(fleet.machine.release_worker(fleet.start_worker(Role.INSPECT)))
    assert fleet.idle_pids == [2, 3, 4, 5], "two, and two of the compilers"
    large = fleet.start_worker(Role.INSPECT)
    large.memory_bytes = 1000
    fleet.carry_out(fleet.machine.release_worker(large))
    assert fleet.idle_pids == [large.pid]
    fleet.clock.now += 60.0
    fleet.carry_out(fleet.machine.review_idle())
    assert fleet.idle_pids == [large.pid], "inspecting is cheap to keep ready"
    fleet.clock.now += 1000.0
    fleet.carry_out(fleet.machine.review_idle())
    assert fleet.idle_pids == []


def test_what_cannot_start_is_left_alone_for_a_while() -> None:
    """A notice says so; a kill from outside does not count."""
    fleet = FakeFleet()
    killed = WorkerDied(-signal.SIGKILL, Phase.SPAWN, Output())
    for error in [killed] * 10 + [NO_START] * TOLERATED_FAILURES:
        fleet.machine.record_start(BENCH_KIND, error)
    fleet.acquire_worker()
    for _ in range(TOLERATED_FAILURES + 1):
        fleet.machine.record_start(BENCH_KIND, NO_START)
    with pytest.raises(WorkerError, match="failed to run a worker 4 times in a row and is left alone for 1 s"):
        fleet.acquire_worker()
    assert "runs no bench worker, tried again in 1 s" in fleet.machine.notices[0]
    fleet.machine.keeps_spares = True
    fleet.carry_out(fleet.machine.order_spares(*BENCH_KIND, "fake", 2))
    assert fleet.ordered_spares == []
    fleet.clock.now += 1.0
    fleet.acquire_worker()
    assert fleet.machine.notices == []


@pytest.mark.parametrize("device", [GPU, CPU], ids=["gpu", "cpu"])
def test_an_opening_orders_spares_and_a_loss_more(device: Device) -> None:
    """Bad configs come in rows. After a loss, spares start before the opening, which may fail, too."""
    fleet = FakeFleet(device)
    fleet.machine.keeps_spares = True
    fleet.open_problem()
    assert len(fleet.ordered_spares) == SPARES[device.kind]
    with pytest.raises(WorkerDied):
        fleet.fail_request(DIED)
    lane = fleet.lanes[0]
    fleet.carry_out(fleet.machine.need_problem(lane, PROBLEM))
    fleet.reap_killed()
    fleet.carry_out(fleet.machine.advance_lane(lane, fleet.start_worker()))
    if lane.state is LaneState.PROVING:
        fleet.carry_out(fleet.machine.advance_lane(lane))
    assert (lane.state, len(fleet.ordered_spares)) == (LaneState.OPENING, SPARES_IN_TROUBLE[device.kind])


def add_ordered_spares(fleet: FakeFleet, count: int) -> None:
    """Let ordered spares start."""
    for _ in range(count):
        order = fleet.ordered_spares.pop()
        fleet.carry_out(fleet.machine.record_spare(order.kind, fleet.start_worker(order.role)))


def test_spares_of_a_gpu_are_warmed_one_after_the_other() -> None:
    """Each waits for the device; a spare that the device refuses stays cold, and a notice says so."""
    fleet = FakeFleet()
    fleet.machine.keeps_spares = True
    fleet.carry_out(fleet.machine.order_spares(*BENCH_KIND, "fake", 2, GPU))
    add_ordered_spares(fleet, 2)
    assert len(fleet.waiting_spares) == 1
    for error in (None, NO_MEMORY):
        fleet.waiting_spares.clear()
        lent_instruction = fleet.carry_out(fleet.machine.take_spare_to_warm(ENVIRONMENT, GPU))
        assert isinstance(lent_instruction, LendWorker)
        fleet.carry_out(fleet.machine.record_warm_up(lent_instruction.worker, GPU, error))
    assert (fleet.waiting_spares, [worker.device for worker in fleet.machine.idle]) == ([], [GPU.name] * 2)
    assert fleet.machine.notices[0].startswith("no warm spare on cuda:0")


def test_a_lane_may_take_a_spare_that_waits_for_its_device() -> None:
    """The warm-up then does nothing, and no other spare is made."""
    fleet = FakeFleet()
    fleet.machine.keeps_spares = True
    fleet.carry_out(fleet.machine.order_spares(*BENCH_KIND, "fake", 1, GPU))
    add_ordered_spares(fleet, 1)
    assert fleet.acquire_worker(GPU.name).pid == 1
    assert fleet.carry_out(fleet.machine.take_spare_to_warm(ENVIRONMENT, GPU)) is None
    assert (fleet.ordered_spares, len(fleet.waiting_spares)) == ([], 1)


def test_what_one_gpu_has_under_way_is_not_the_other_s() -> None:
    """The same holds for a spare in its warm-up."""
    fleet = FakeFleet()
    fleet.machine.keeps_spares = True
    for device in (GPU, OTHER_GPU, GPU):
        fleet.carry_out(fleet.machine.order_spares(*BENCH_KIND, "fake", 2, device))
    assert len(fleet.ordered_spares) == 4
    add_ordered_spares(fleet, 4)
    assert isinstance(fleet.carry_out(fleet.machine.take_spare_to_warm(ENVIRONMENT, GPU)), LendWorker)
    fleet.carry_out(fleet.machine.order_spares(*BENCH_KIND, "fake", 3, GPU))
    assert len(fleet.ordered_spares) == 1


def test_a_spare_under_way_is_waited_for_by_one() -> None:
    """A second caller starts a worker at once."""
    fleet = FakeFleet()
    fleet.machine.keeps_spares = True
    fleet.carry_out(fleet.machine.order_spares(*BENCH_KIND, "fake", 1))
    assert fleet.carry_out(fleet.machine.lend_worker(*BENCH_KIND)) == AwaitSpare(BENCH_KIND)
    assert fleet.carry_out(fleet.machine.lend_worker(*BENCH_KIND)) is None
    fleet.machine.record_awaited_spare(BENCH_KIND)
    add_ordered_spares(fleet, 1)
    assert fleet.carry_out(fleet.machine.lend_worker(*BENCH_KIND)) == LendWorker(fleet.workers[0])


def test_only_the_first_spare_of_all_may_make_its_context_early() -> None:
    """A lane may take a warm spare at any moment and time beside the others."""
    fleet = FakeFleet()
    fleet.machine.keeps_spares = True
    fleet.carry_out(fleet.machine.order_spares(*BENCH_KIND, "fake", 2, with_context=True))
    assert [order.may_make_context for order in fleet.ordered_spares] == [True, False]


def test_beside_an_application_spares_make_no_context() -> None:
    """The application may need the memory."""
    fleet = FakeFleet()
    fleet.machine.keeps_spares = True
    fleet.open_problem(is_shared=True)
    add_ordered_spares(fleet, len(fleet.ordered_spares))
    assert fleet.waiting_spares == []
