"""What becomes of trials when something fails: each report in each state, random sequences, and twenty stories."""

from __future__ import annotations

import errno
import signal
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import assert_never

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ktuned.fleet import DeadlineExpired, HostLost, Output, RequestFailed, WorkerDied
from ktuned.ipc.replies import Failure, Proposal
from ktuned.ipc.requests import UnitRef
from ktuned.model import IllegalMove, Outcome, Phase, TrialResult
from ktuned.protocol import Trial
from ktuned.tuning.trial_machine import (
    CONTENDED_TRIES,
    EXCUSES,
    ArtifactFound,
    ArtifactGone,
    Attempt,
    Compile,
    CompilerLeft,
    CompilerTook,
    ConfigCompiled,
    ConfigMeasured,
    DeviceTried,
    End,
    EndJob,
    Event,
    Instruction,
    LaneFacts,
    LaneLeft,
    LaneTook,
    Measure,
    NotBuilt,
    Place,
    Stopped,
    TrialEvent,
    TrialMachine,
    TrialState,
    TryDevice,
    TwinFound,
    Verdict,
)
from tests.stories import check_story
from tests.trials import make_detail, make_result

Error = WorkerDied | DeadlineExpired | RequestFailed

CPU, ONLY_GPU, GPU = LaneFacts(True), LaneFacts(False), LaneFacts(False, has_stand_in=True)
DOUBTFUL = LaneFacts(False, is_doubtful=True)

FINE = make_result(Outcome.MEASURED, latency_us=5.0, spread_us=0.1)
SLOWER = make_result(Outcome.SLOWER)
WRONG = make_result(Outcome.MISMATCH, "y is wrong", Phase.CHECK)
RAISED = make_result(Outcome.LAUNCH_ERROR, "refused", Phase.FIRST_LAUNCH)
NO_MEMORY = make_result(Outcome.LAUNCH_ERROR, "CUDA error: out of memory", Phase.FIRST_LAUNCH)
UNSUPPORTED = make_result(Outcome.UNSUPPORTED, "no such instruction")
CONTENDED = make_result(Outcome.CONTENDED, "others used it")
DAMAGED = make_result(None, "its digest is another one")
NEEDS_CORES = make_result(None, phase=Phase.TIMING, cores=4)


def make_crash(phase: Phase = Phase.TIMING) -> WorkerDied:
    return WorkerDied(-signal.SIGSEGV, phase, Output("", "what it said"))


def make_kill(phase: Phase = Phase.TIMING) -> WorkerDied:
    """Return a kill from outside."""
    return WorkerDied(-signal.SIGKILL, phase, Output())


def make_timeout(phase: Phase = Phase.TIMING) -> DeadlineExpired:
    """Return a deadline that has passed."""
    return DeadlineExpired(phase, 2.0, Output())


def make_refusal(code: str = "usage", phase: Phase = Phase.COMPILE, number: int | None = None) -> RequestFailed:
    """Return the error of a worker that stays alive."""
    return RequestFailed(Failure(code, "it cannot", errno=number), phase, Output())


def make_trials(count: int, place: Place = TrialState.COMPILED) -> list[Attempt]:
    """Return trials of different configs at a place."""
    return [Attempt(number, {"x": number}, UnitRef(f"{number}", {}), place) for number in range(1, count + 1)]


TWIN = Trial(
    id=7,
    job=1,
    kernel="p:k",  # type: ignore[arg-type]
    problem={},
    device="x",  # type: ignore[arg-type]
    config={},
    outcome=Outcome.MEASURED,
    latency_us=3.0,
    spread_us=0.1,
    compile_s=1.0,
    lane_s=1.0,
    message="",
    artifact="a",
    digest="d",
    updated=0.0,
    detail=make_detail(count=5),
)

MEASUREMENTS = [FINE, SLOWER, WRONG, RAISED, NO_MEMORY, UNSUPPORTED, CONTENDED, DAMAGED, NEEDS_CORES]
ERRORS: list[Error] = [
    make_crash(),
    make_kill(),
    make_timeout(),
    make_refusal("usage", Phase.TIMING),
    HostLost("n", "gone", Phase.TIMING),
]
REPORTS: list[Callable[[Attempt], Event]] = [
    lambda instruction: NotBuilt(instruction, Proposal({}, outcome=Outcome.COMPILE_ERROR, message="no")),
    lambda instruction: NotBuilt(instruction, Proposal({}, outcome=Outcome.UNSUPPORTED, message="not here")),
    ArtifactFound,
    lambda instruction: TwinFound(instruction, TWIN),
    lambda instruction: CompilerTook([instruction]),
    ConfigCompiled,
    *(
        lambda instruction, outcome=outcome: ConfigCompiled(instruction, outcome)
        for outcome in (Outcome.COMPILE_ERROR, Outcome.UNSUPPORTED)
    ),
    lambda instruction: CompilerLeft([instruction]),
    *(lambda instruction, error=error: CompilerLeft([instruction], error) for error in ERRORS),
    lambda instruction: LaneTook([instruction]),
    *(
        lambda instruction, measure_on_lane=measure_on_lane, lane=lane: ConfigMeasured(
            instruction, measure_on_lane, Output(), lane
        )
        for measure_on_lane in MEASUREMENTS
        for lane in (CPU, ONLY_GPU, GPU, DOUBTFUL)
    ),
    lambda instruction: LaneLeft([instruction], GPU),
    *(
        lambda instruction, error=error, lane=lane: LaneLeft([instruction], lane, error)
        for error in ERRORS
        for lane in (CPU, GPU)
    ),
    ArtifactGone,
    Stopped,
]
WAITING: dict[type[Instruction], set[Place]] = {
    Compile: {TrialState.ASKED},
    Measure: {TrialState.COMPILED, TrialState.FINALIST},
    TryDevice: {TrialState.MEASURING, TrialState.REFINING},
}


@pytest.mark.parametrize("place", [*TrialState, *Outcome], ids=str)
def test_each_report_in_each_state_is_illegal_or_leaves_one_instruction(place: Place) -> None:
    """An illegal report changes nothing. After a legal one, the trial has ended or waits for its instruction."""
    for make in REPORTS:
        (attempt,) = make_trials(1, place)
        try:
            instructions = TrialMachine().handle(make(attempt))
        except IllegalMove:
            assert (attempt.state, attempt.story) == (place, [])
            continue
        if attempt.outcome is not None and attempt.story:
            assert [type(instruction) for instruction in instructions] == [End]
        elif instructions:
            (instruction,) = instructions
            assert attempt.state in WAITING[type(instruction)]


class RandomJob:
    """A job's trials, its compiler and a lane, which fail at random; and what the machine made of it."""

    def __init__(
        self, rng: Random, count: int, lane: LaneFacts, *, one_by_one: bool, never_fails: bool = False
    ) -> None:
        self.machine = TrialMachine({"x": 1}, compiles_one_by_one=one_by_one)
        self.trials = make_trials(count, TrialState.ASKED)
        self.ends: Counter[Attempt] = Counter()
        self.requests = 0
        self._rng = rng
        self._lane = lane
        self._never_fails = never_fails
        self._corrections = 10
        self._to_compile: deque[list[Attempt]] = deque([list(self.trials)])
        self._to_measure: deque[Attempt] = deque()
        self._later: deque[Attempt] = deque()

    def run_to_end(self) -> None:
        """Continue until nothing waits."""
        while self._to_compile or self._to_measure or self._later:
            self.requests += 1
            assert self.requests < 40 * len(self.trials) + 100, "it goes on for ever"
            if self._to_compile and (self._rng.random() < 0.5 or not (self._to_measure or self._later)):
                self._compile_batch(self._to_compile.popleft())
            else:
                self._measure_batch()

    def _compile_batch(self, batch: list[Attempt]) -> None:
        self.machine.handle(CompilerTook(batch))
        reported = self._choose_reported(batch, is_prefix=self.machine.compiles_one_by_one)
        for attempt in reported:
            outcome = None if self._never_fails else self._rng.choice([None, None, Outcome.COMPILE_ERROR])
            instructions = self.machine.handle(ConfigCompiled(attempt, outcome))
            self._carry_out(instructions)
            if outcome is None:
                assert instructions == []
                self._to_measure.append(attempt)
        unreported = [attempt for attempt in batch if attempt not in reported]
        failures: list[Error] = [
            make_crash(Phase.COMPILE),
            make_kill(Phase.COMPILE),
            make_timeout(Phase.COMPILE),
            make_refusal(),
        ]
        error = self._rng.choice(failures)
        if not unreported:
            return
        suspects = unreported[:1] if self.machine.compiles_one_by_one else unreported
        self._leave_batch(CompilerLeft(unreported, error), suspects, error)

    def _measure_batch(self) -> None:
        if not self._to_measure:
            self._to_measure, self._later = self._later, self._to_measure
        plan = self.machine.plan_request(self._to_measure, self._lane)
        batch = [self._to_measure.popleft() for _ in range(plan.count)]
        assert len(batch) == 1 or all(attempt.config != {"x": 1} for attempt in batch)
        assert not any(TrialEvent.SET_APART in attempt.story for attempt in batch[1:])
        self.machine.handle(LaneTook(batch))
        reported = self._choose_reported(batch, is_prefix=True)
        for attempt in reported:
            self._carry_out(self.machine.handle(ConfigMeasured(attempt, self._choose_result(), Output(), self._lane)))
        unreported = batch[len(reported) :]
        if not unreported:
            return
        errors: list[Error] = [
            make_crash(),
            make_kill(),
            make_timeout(),
            make_crash(Phase.LOAD_NEXT),
            make_timeout(Phase.LOAD_NEXT),
        ]
        error = self._rng.choice(errors)
        suspects = unreported[:1]
        if error.phase is Phase.LOAD_NEXT and len(unreported) > 1:
            suspects = [] if isinstance(error, DeadlineExpired) else unreported[1:2]
        self._leave_batch(LaneLeft(unreported, self._lane, error), suspects, error)

    def _choose_reported(self, batch: list[Attempt], *, is_prefix: bool) -> list[Attempt]:
        if self._never_fails:
            return batch
        count = self._rng.randint(0, len(batch))
        return batch[:count] if is_prefix else self._rng.sample(batch, count)

    def _choose_result(self) -> TrialResult:
        if self._never_fails:
            return FINE
        measure_on_lane = self._rng.choice(MEASUREMENTS)
        if measure_on_lane.outcome is None:
            # The machine does not count these, so here their number is limited.
            self._corrections -= 1
        return measure_on_lane if self._corrections > 0 or measure_on_lane.outcome is not None else FINE

    def _leave_batch(self, report: CompilerLeft | LaneLeft, suspects: Sequence[Attempt], error: Error) -> None:
        before = {attempt: attempt.story.count(TrialEvent.KILLED) for attempt in report.attempts}
        size = len(report.attempts)
        instructions = self.machine.handle(report)
        ended = [instruction.attempt for instruction in instructions if isinstance(instruction, End)]
        assert set(ended) <= set(suspects), "blamed without evidence"
        assert not ended or len(suspects) == 1, "blamed for what others may have done"
        if error.message == make_kill().message:
            assert all(before[attempt] == EXCUSES[TrialEvent.KILLED] for attempt in ended)
        said = [attempt for instruction in instructions for attempt in self._attempts_of(instruction)]
        assert sorted(map(id, said)) == sorted(map(id, report.attempts)), "each is told where it goes, once"
        largest = max(
            (len(instruction.attempts) for instruction in instructions if isinstance(instruction, Compile)), default=0
        )
        has_excuse = any(attempt.story.count(TrialEvent.KILLED) > before[attempt] for attempt in report.attempts)
        assert largest < size or has_excuse or isinstance(report, LaneLeft), "a request shrinks"
        self._carry_out(instructions)

    def _attempts_of(self, instruction: Instruction) -> Iterable[Attempt]:
        match instruction:
            case Compile(attempts) | Measure(attempts):
                return attempts
            case End(attempt) | TryDevice(attempt):
                return [attempt]
            case EndJob():
                raise AssertionError("the job goes on")
            case _:
                assert_never(instruction)

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case Compile(attempts):
                    self._to_compile.append(list(attempts))
                case Measure(attempts, at_once=True):
                    self._to_measure.extendleft(reversed(attempts))
                case Measure(attempts):
                    self._later.extend(attempts)
                case TryDevice(attempt):
                    is_sick = self._rng.random() < 0.5
                    self._carry_out(self.machine.handle(DeviceTried(attempt, is_sick)))
                case End(attempt, result):
                    self.ends[attempt] += 1
                    assert attempt.outcome is result.outcome
                case EndJob():
                    raise AssertionError("the job goes on")


@given(
    st.randoms(use_true_random=False), st.integers(1, 9), st.sampled_from([CPU, ONLY_GPU, GPU, DOUBTFUL]), st.booleans()
)
def test_whatever_happens_each_trial_ends_once_and_its_excuses_are_bounded(
    rng: Random, count: int, lane: LaneFacts, one_by_one: bool
) -> None:
    """Nothing goes on for ever, no config is blamed without evidence, and each request shrinks or ends."""
    job = RandomJob(rng, count, lane, one_by_one=one_by_one)
    job.run_to_end()
    assert job.ends == Counter(dict.fromkeys(job.trials, 1))
    for attempt in job.trials:
        for event, most in EXCUSES.items():
            assert attempt.story.count(event) <= most
        assert attempt.accused is None


def test_where_nothing_fails_a_trial_is_compiled_and_measured_once() -> None:
    """The number of requests is minimal: the default has one of its own."""
    job = RandomJob(Random(1), 9, GPU, one_by_one=True, never_fails=True)
    job.run_to_end()
    assert job.requests == 3
    plain_story = [TrialEvent.COMPILE_STARTED, TrialEvent.COMPILE_DONE, TrialEvent.LANE_TAKEN, TrialEvent.TIMED]
    assert all(attempt.story == plain_story for attempt in job.trials)


# Stories

MACHINE = TrialMachine()


def leave_lane(attempts: Sequence[Attempt], error: Error | None, lane: LaneFacts = ONLY_GPU) -> list[Instruction]:
    """Let a lane take trials and leave without a report on them."""
    MACHINE.handle(LaneTook(attempts))
    return MACHINE.handle(LaneLeft(attempts, lane, error))


def measure_on_lane(attempt: Attempt, result: TrialResult, lane: LaneFacts = ONLY_GPU) -> list[Instruction]:
    """Let a lane take one trial and report on it."""
    MACHINE.handle(LaneTook([attempt]))
    return MACHINE.handle(ConfigMeasured(attempt, result, Output(), lane))


def leave_compiler(
    attempts: Sequence[Attempt], error: Error | None, machine: TrialMachine = MACHINE
) -> list[Instruction]:
    """Let a compiler take trials and leave without a report on them."""
    machine.handle(CompilerTook(attempts))
    return machine.handle(CompilerLeft(attempts, error))


STORIES = {
    "a config that crashes in a batch is blamed alone; those after it continue in their order": """
        lane 1 2 3 crash: measure 2 3 at once, 1 crashed""",
    "kills while compiling and while measuring count together": """
        asked 1; compiler 1 kill: compile 1; found 1:; lane 1 kill: measure 1 later; lane 1 kill: 1 interrupted""",
    "a batch whose compiler is killed is compiled again whole; only the current config used up an excuse": """
        asked 1 2; compiler 1 2 kill: compile 1 2; last 1 2: killed spared""",
    "a group that crashes the compiler is halved until one is alone": """
        asked 1 2 3 4; group 1 2 3 4 crash: compile 1 2, compile 3 4; group 3 4 crash: compile 3, compile 4
        group 3 crash: 3 crashed""",
    "a group without excuses is halved and not blamed": """
        asked 1 2; group 1 2 kill: compile 1 2; group 1 2 kill: compile 1 2; group 1 2 kill: compile 1, compile 2""",
    "a compile that hangs costs its deadline": """
        asked 1 2; compiler 1 2 hang: 1 compile_timeout, compile 2; seconds 1: 2.0""",
    "a config that the backend says nothing about does not compile": "asked 1; compiler 1 leaves: 1 compile_error",
    "a changed source stops the job": "asked 1 2; compiler 1 2 changed: end job",
    "a backend that cannot be imported stops the job": "asked 1 2; compiler 1 2 load_refused: end job",
    "a full disk stops the job": "asked 1 2; compiler 1 2 disk_full: end job",
    "a worker that is killed while it imports says nothing about the backend": """
        asked 1; compiler 1 load_kill: compile 1""",
    "a library that cannot be loaded on a lane is the config's fault": "lane 1 load_refused: 1 launch_error",
    "a wrong result in a worker that may be damaged is tried once more": """
        measured 1 wrong doubtful: measure 1 later; measured 1 wrong doubtful: 1 mismatch""",
    "a launch that raises in a worker that may be damaged is tried once more": """
        measured 1 raised doubtful: measure 1 later; measured 1 raised doubtful: 1 launch_error""",
    "a crash in a worker that may be damaged is tried once more": """
        lane 1 crash doubtful: measure 1 later; lane 1 crash doubtful: 1 crashed""",
    "a hang in a worker that may be damaged counts": "lane 1 hang doubtful: 1 hung",
    "a doubtful worker gets one config": "plan 1 2 3 4 doubtful: 1; plan 1 2 3 4: 4",
    "a trial that crashes on a GPU that turns out sick is measured on another one, once": """
        lane 1 crash gpu: try 1; sick 1: measure 1 later; lane 1 crash gpu: 1 crashed""",
    "a trial that hangs on a GPU that turns out sick is measured on another one, once": """
        lane 1 hang gpu: try 1; sick 1: measure 1 later; lane 1 hang gpu: 1 hung""",
    "a trial that a sick GPU refuses is measured on another one, once": """
        lane 1 refused gpu: try 1; sick 1: measure 1 later; lane 1 refused gpu: 1 launch_error""",
    "a launch without memory on a GPU is retried twice": """
        measured 1 no_memory: measure 1 later; measured 1 no_memory: measure 1 later
        measured 1 no_memory: 1 launch_error""",
    "a launch without memory on a CPU is a launch error": "measured 1 no_memory cpu: 1 launch_error",
    "where no device can stand in the config is blamed": "lane 1 crash cpu: 1 crashed; lane 2 crash: 2 crashed",
    "a wrong result is no sign of a sick GPU": "measured 1 wrong gpu: 1 mismatch",
    "a worker that dies while it loads ahead died of what it loaded": """
        lane 1 2 3 load_next_crash: measure 1 later, measure 3 at once, 2 crashed""",
    "of two configs that may hang each is measured alone": """
        lane 1 2 3 load_next_hang: measure 2 3 at once, measure 1 later; plan 2 3: 1; plan 3 1: 1""",
    "a config that needs more cores is measured again at once, and shares no request with others": """
        measured 1 needs_cores cpu: measure 1 at once; plan 1 2 cpu: 1 of 4 cores""",
    "configs after one that left something behind are spared": "lane 1 2 leaves: measure 1 2 at once",
    "a damaged or removed artifact is compiled again": "measured 1 damaged: compile 1; gone 2: compile 2",
    "a trial of a lost node is tried again however often": """
        lane 1 lost: measure 1 later; lane 1 lost: measure 1 later; lane 1 lost: measure 1 later
        lane 1 lost: measure 1 later; lane 1 kill: measure 1 later""",
    "a finalist keeps its figure in a disturbed round": "finalist 1; measured 1 contended: 1 measured",
    "a finalist keeps its figure if its artifact is damaged": "finalist 1; measured 1 damaged: 1 measured",
    "a finalist that is wrong is no winner any more": "finalist 1; measured 1 wrong: 1 mismatch",
    "a finalist that is killed is launched again": """
        finalist 1; lane 1 kill: measure 1 later; lane 1 kill: measure 1 later; measured 1 fine: 1 measured""",
}
"""Steps of ``report: the machine's instructions``. Trials are compiled; a lane is that of the only GPU."""

LANES = {"cpu": CPU, "gpu": GPU, "doubtful": DOUBTFUL}
RESULTS = {
    "fine": FINE,
    "wrong": WRONG,
    "raised": RAISED,
    "no_memory": NO_MEMORY,
    "contended": CONTENDED,
    "damaged": DAMAGED,
    "needs_cores": NEEDS_CORES,
}
FAILED: dict[str, Error | None] = {
    "leaves": None,
    "crash": make_crash(),
    "kill": make_kill(),
    "hang": make_timeout(),
    "refused": make_refusal("usage", Phase.TIMING),
    "lost": HostLost("n", "gone", Phase.TIMING),
    "changed": make_refusal("source_changed"),
    "load_refused": make_refusal("usage", Phase.LOAD),
    "load_kill": make_kill(Phase.LOAD),
    "load_next_crash": make_crash(Phase.LOAD_NEXT),
    "load_next_hang": make_timeout(Phase.LOAD_NEXT),
    "disk_full": make_refusal("disk", number=errno.ENOSPC),
}


def name_attempts(attempts: Iterable[Attempt]) -> str:
    return " ".join(str(attempt.trial) for attempt in attempts)


def describe_instruction(instruction: Instruction) -> str:
    match instruction:
        case Compile(attempts):
            return f"compile {name_attempts(attempts)}"
        case Measure(attempts, at_once):
            return f"measure {name_attempts(attempts)} {'at once' if at_once else 'later'}"
        case TryDevice(attempt):
            return f"try {attempt.trial}"
        case End(attempt, result):
            return f"{attempt.trial} {result.outcome}"
        case EndJob():
            return "end job"
        case _:
            assert_never(instruction)


class Story:
    """The trials of a story by their numbers."""

    def __init__(self) -> None:
        self._trials = dict(enumerate(make_trials(4), 1))

    def take_step(self, text: str) -> str:
        """Report something; return what came of it."""
        name, *words = text.split()
        numbers = [int(word) for word in words if word.isdigit()]
        attempts = [self._trials[number] for number in numbers]
        lane = next((LANES[word] for word in words if word in LANES), ONLY_GPU)
        failed = next((FAILED[word] for word in words if word in FAILED), None)
        instructions: list[Instruction] = []
        match name:
            case "asked":
                asked = dict(enumerate(make_trials(4, TrialState.ASKED), 1))
                self._trials |= {number: asked[number] for number in numbers}
            case "finalist":
                self._trials[1] = Attempt.from_finalist(msgspec.structs.replace(TWIN, id=1), UnitRef("a", {}))
            case "last":
                return " ".join(attempt.story[-1] for attempt in attempts)
            case "seconds":
                return str(attempts[0].compile_s)
            case "plan":
                plan = MACHINE.plan_request(attempts, lane)
                return f"{plan.count}" + (f" of {plan.cores} cores" if plan.finds_cores and plan.cores else "")
            case "compiler":
                instructions = leave_compiler(attempts, failed)
            case "group":
                instructions = leave_compiler(attempts, failed, TrialMachine(compiles_one_by_one=False))
            case "lane":
                instructions = leave_lane(attempts, failed, lane)
            case "measured":
                instructions = measure_on_lane(attempts[0], RESULTS[words[1]], lane)
            case "found":
                instructions = MACHINE.handle(ArtifactFound(attempts[0]))
            case "gone":
                instructions = MACHINE.handle(ArtifactGone(attempts[0]))
            case _:
                instructions = MACHINE.handle(DeviceTried(attempts[0], is_sick=True))
        return ", ".join(map(describe_instruction, instructions))


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_story_goes_as_it_is_told(story: str) -> None:
    check_story(story, Story().take_step)


def list_outcomes(instructions: Sequence[Instruction]) -> list[Outcome | None]:
    """Return the outcomes that the instructions record."""
    return [instruction.result.outcome for instruction in instructions if isinstance(instruction, End)]


def test_a_config_at_which_the_worker_is_killed_each_time_is_the_cause() -> None:
    """In each job two kills are excused, and the third leaves it untried; in the third job that is evidence."""
    for tries, outcome in enumerate((Outcome.INTERRUPTED, Outcome.INTERRUPTED, Outcome.CRASHED)):
        (attempt,) = make_trials(1)
        attempt.tries = tries
        for _ in range(2):
            assert leave_lane([attempt], make_kill()) == [Measure([attempt], at_once=False)]
        assert list_outcomes(leave_lane([attempt], make_kill())) == [outcome]


@pytest.mark.parametrize(
    "message",
    [
        "c++: fatal error: Killed signal terminated program cc1plus",
        "clang: error: unable to execute command: Killed",
        "nvcc error   : 'cicc' died due to signal 9 (Kill signal)",
        "`g++ -O3 sort.cc` was killed by SIGKILL",
    ],
)
def test_a_compiler_below_the_worker_that_is_killed_says_nothing_about_the_config(message: str) -> None:
    """Its config is compiled again; then it stays untried until the next job. In the third job it is the cause."""
    machine = TrialMachine()
    for tries, outcome in enumerate((Outcome.INTERRUPTED, Outcome.INTERRUPTED, Outcome.COMPILE_ERROR)):
        (attempt,) = make_trials(1, TrialState.ASKED)
        attempt.tries = tries
        end = _compile_until_excuses_end(machine, attempt, message)
        assert (end.result.outcome, end.result.message) == (outcome, message)
        assert end.result.detail.failure.tries == (tries + 1 if outcome is Outcome.INTERRUPTED else 0)


def _compile_until_excuses_end(machine: TrialMachine, attempt: Attempt, message: str) -> End:
    report = ConfigCompiled(attempt, Outcome.COMPILE_ERROR, message)
    for _ in range(EXCUSES[TrialEvent.KILLED]):
        machine.handle(CompilerTook([attempt]))
        assert machine.handle(report) == [Compile([attempt])]
    machine.handle(CompilerTook([attempt]))
    (end,) = machine.handle(report)
    assert isinstance(end, End)
    return end


@pytest.mark.parametrize(
    "message",
    [
        "fatal error: error writing to /tmp/x.s: No space left on device",
        "libnvrtc.so.12: cannot open shared object file",
    ],
)
def test_what_the_machine_lacked_says_nothing_about_the_config(message: str) -> None:
    """A full disk or a missing library leaves it untried, in a compile and in a load; a launch's own error stands."""
    (attempt,) = make_trials(1, TrialState.ASKED)
    TrialMachine().handle(CompilerTook([attempt]))
    (end,) = TrialMachine().handle(ConfigCompiled(attempt, Outcome.COMPILE_ERROR, message))
    assert isinstance(end, End)
    assert end.result.outcome is Outcome.INTERRUPTED
    for phase, outcome in ((Phase.LOAD, Outcome.INTERRUPTED), (Phase.FIRST_LAUNCH, Outcome.LAUNCH_ERROR)):
        failed = TrialResult(Outcome.LAUNCH_ERROR, message=message, detail=make_detail(phase=phase))
        assert list_outcomes(measure_on_lane(make_trials(1)[0], failed)) == [outcome]


def test_a_trial_of_a_gpu_that_works_has_its_outcome() -> None:
    """The outcome is that of before the device was tried."""
    (attempt,) = make_trials(1)
    measure_on_lane(attempt, RAISED, GPU)
    (end,) = MACHINE.handle(DeviceTried(attempt, is_sick=False))
    assert isinstance(end, End)
    assert (end.result.outcome, end.result.message) == (Outcome.LAUNCH_ERROR, "refused")


def test_a_disturbed_trial_is_left_to_the_next_job_after_three_tries() -> None:
    """From the second try on it runs alone; beside an application, the last try is not judged."""
    attempt, other = make_trials(2)
    for _ in range(CONTENDED_TRIES - 1):
        assert MACHINE.may_be_disturbed(attempt, has_application=True)
        assert measure_on_lane(attempt, CONTENDED) == [Measure([attempt], at_once=False)]
        assert MACHINE.plan_request([attempt, other], ONLY_GPU).count == 1
    assert not MACHINE.may_be_disturbed(attempt, has_application=True)
    assert MACHINE.may_be_disturbed(attempt, has_application=False)
    assert list_outcomes(measure_on_lane(attempt, CONTENDED)) == [Outcome.CONTENDED]


def test_a_twins_outcome_is_taken_over_with_its_trial() -> None:
    """The trial needs no lane."""
    (attempt,) = make_trials(1)
    (end,) = MACHINE.handle(TwinFound(attempt, TWIN))
    assert isinstance(end, End)
    assert (end.result.latency_us, end.result.detail.timing.carried_from, end.result.detail.timing.count) == (3.0, 7, 5)


def test_a_story_is_kept_of_failed_and_retried_trials() -> None:
    """A plain trial needs none."""
    plain, retried = make_trials(2)
    (end,) = measure_on_lane(plain, FINE)
    assert isinstance(end, End)
    assert end.result.detail.failure.story == ()
    leave_lane([retried], make_kill())
    (end,) = measure_on_lane(retried, FINE)
    assert isinstance(end, End)
    assert list(end.result.detail.failure.story) == ["lane_taken", "killed", "lane_taken", "timed"]


def test_a_verdict_that_ends_nothing_is_refused() -> None:
    """An end must lead to an outcome."""
    with pytest.raises(IllegalMove):
        make_trials(1)[0].end_trial(Verdict(TrialEvent.TIMED))
