"""The job machine: instructions for each event, every state with every event, and random sequences of events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from ktuned.fleet.failures import KILLS_EXCUSED
from ktuned.model.errors import IllegalMove
from ktuned.model.keys import DeviceModel, KernelName, WinnerKey, make_key_problem
from ktuned.model.plan import Plan
from ktuned.protocol import JobQueued
from ktuned.protocol.jobs import Job, JobState, Priority
from ktuned.scheduling.idle_policy import IdlePolicy, Reading
from ktuned.scheduling.job_machine import (
    CHANGES_EXCUSED,
    MOST_RUNNING,
    Advanced,
    Arrived,
    BeginAgainAsked,
    CancelAsked,
    Close,
    Ended,
    Ending,
    Event,
    GrantLanes,
    Inspected,
    Instruction,
    JobMachine,
    Joined,
    PauseAsked,
    Publish,
    Record,
    ResumeAsked,
    Reviewed,
    Start,
    Stop,
    StoreMended,
    TakenUp,
)
from ktuned.scheduling.queue import AGE_S, EVERYTHING, TURN_S
from ktuned.tuning import JobStage
from tests.scheduling.waiting_jobs import make_job
from tests.stories import check_story

NOW = 5000.0


def make_machine(*events: Event | Callable[[JobMachine], None], **options: Any) -> JobMachine:
    """Return a machine that has taken some events; a function tells its queue something in between."""
    machine = JobMachine(clock=lambda: 1000.0, now=lambda: NOW, **options)
    for event in events:
        if callable(event):
            event(machine)
        else:
            machine.handle(event)
    return machine


def pause_only(*devices: str) -> Callable[[JobMachine], None]:
    """Return what pauses these device models and no others."""
    return lambda machine: setattr(machine.queue, "pauses", {*devices})


def summarize(instructions: Sequence[Instruction]) -> list[str]:
    """Return what instructions are about, in brief."""
    return [
        f"{type(one).__name__} {one.job if isinstance(one, Stop | GrantLanes) else one.job.id}"
        + (f" {one.event.__struct_config__.tag}" if isinstance(one, Publish) else "")
        for one in instructions
    ]


def end_running_job(machine: JobMachine, ending: Ending, message: str = "", **options: Any) -> Ended:
    """Return the end of the pipeline of the one job that runs."""
    (running,) = machine.running
    return Ended(running, ending, message, **options)


ARRIVED = Arrived(make_job())
STARTED = (ARRIVED, Reviewed())
STARTS = ["Start 1", "GrantLanes 1"]

PLACES: dict[str, tuple[Event | Callable[[JobMachine], None], ...]] = {
    "unknown": (),
    "waiting": (ARRIVED,),
    "paused": (ARRIVED, PauseAsked(1)),
    "running": STARTED,
    "yielding": (*STARTED, pause_only("x"), Reviewed(), pause_only()),
    "pausing": (*STARTED, PauseAsked(1)),
    "cancelling": (*STARTED, CancelAsked(1)),
}
"""A way to each place of a live job."""

ASKED: dict[str, Callable[[], Event]] = {
    "join": lambda: Joined(1, Priority.ASKED, "looked up"),
    "tune": lambda: Joined(1, Priority.REQUESTED, "asked for", Plan(trials=10**6)),
    "again": lambda: BeginAgainAsked(1, "changed"),
    "cancel": lambda: CancelAsked(1),
    "pause": lambda: PauseAsked(1),
    "resume": lambda: ResumeAsked(1),
    "advance": lambda: Advanced(1, JobStage.COMPILING),
    "done": lambda: Ended(make_job(), Ending.DONE),
    "failed": lambda: Ended(make_job(), Ending.FAILED, "no"),
    "hopeless": lambda: Ended(make_job(), Ending.HOPELESS, "no"),
    "killed": lambda: Ended(make_job(), Ending.KILLED, "killed"),
    "full": lambda: Ended(make_job(), Ending.NOT_RECORDED, "full"),
    "changed": lambda: Ended(make_job(), Ending.SOURCE_CHANGED, "changed"),
    "stopped": lambda: Ended(make_job(), Ending.STOPPED),
    "daemon": lambda: Ended(make_job(), Ending.DAEMON_STOPPED),
}
_ENDS = ("done", "failed", "hopeless", "killed", "full", "changed", "stopped")
_REQUEUED = ["Record 1", "Publish 1 job_queued"]
_CLOSED = ["Close 1"]
_PAUSED = ["Record 1", "Publish 1 job_paused"]

EXPECTED: dict[str, dict[str, list[str]]] = {
    "unknown": {},
    "waiting": {
        "join": [],
        "tune": ["Record 1"],
        "again": [],
        "cancel": ["Close 1"],
        "pause": _PAUSED,
        "resume": [],
        "advance": [],
    },
    "paused": {
        "join": [],
        "tune": _REQUEUED,
        "again": [],
        "cancel": ["Close 1"],
        "pause": _PAUSED,
        "resume": _REQUEUED,
        "advance": [],
    },
    "running": {
        "join": [],
        "tune": [],
        "again": ["Stop 1"],
        "cancel": ["Stop 1"],
        "pause": ["Stop 1"],
        "resume": [],
        "advance": [],
        "done": ["Close 1"],
        "failed": ["Close 1"],
        "hopeless": ["Close 1"],
        "killed": _REQUEUED,
        "full": _REQUEUED,
        "changed": [*_REQUEUED, "Inspect 1"],
        "daemon": [],
    },
    "yielding": {
        "join": [],
        "tune": [],
        "again": [],
        "cancel": ["Stop 1"],
        "pause": ["Stop 1"],
        "resume": [],
        "advance": [],
        "daemon": [],
        **dict.fromkeys(_ENDS, _REQUEUED),
        "changed": [*_REQUEUED, "Inspect 1"],
    },
    "pausing": {
        "join": [],
        "tune": [],
        "again": [],
        "cancel": ["Stop 1"],
        "pause": [],
        "resume": [],
        "advance": [],
        "daemon": [],
        **dict.fromkeys(_ENDS, _PAUSED),
        "changed": [*_PAUSED, "Inspect 1"],
    },
    "cancelling": {
        "join": [],
        "tune": [],
        "again": [],
        "cancel": [],
        "resume": [],
        "advance": [],
        "daemon": [],
        **dict.fromkeys(_ENDS, _CLOSED),
    },
}
"""What each event instructs in each place; what is missing is illegal."""


def describe_machine(machine: JobMachine) -> Any:
    """Return all that can be seen of a machine."""
    lives = [(life.job, life.place, tuple(life.story), life.kills, life.changes) for life in machine._lives.values()]
    runs = [copy(run) for run in machine._runs.values()]
    return lives, runs, dict(machine._lane_holders), list(machine.queue), machine.stalled


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ASKED)
def test_every_event_in_every_place(place: str, name: str) -> None:
    """A legal event gives its instructions; an illegal one changes nothing and names the job."""
    machine = make_machine(*PLACES[place])
    before = describe_machine(machine)
    expected = EXPECTED[place].get(name)
    if expected is not None:
        assert summarize(machine.handle(ASKED[name]())) == expected
        return
    with pytest.raises(IllegalMove, match="job 1 is"):
        machine.handle(ASKED[name]())
    assert describe_machine(machine) == before


def test_a_job_lives_from_its_arrival_to_its_end() -> None:
    """It is published, started with the time of now, and closed with its figures."""
    machine = make_machine()
    assert machine.handle(ARRIVED) == [Publish(JobQueued, make_job())]
    assert machine.handle(Reviewed()) == [Start(make_job(state=JobState.RUNNING, started=NOW)), GrantLanes(1)]
    assert machine.handle(Reviewed()) == []
    (close,) = machine.handle(Ended(replace(machine.running[0], best_us=3.0), Ending.DONE))
    assert close == Close(make_job(state=JobState.DONE, started=NOW, finished=NOW, best_us=3.0))
    assert (machine.find_job(1), machine.running, len(machine.queue)) == (None, [], 0)


def test_a_running_job_makes_way_for_a_pause_and_a_policy() -> None:
    """With the reason in its message; it starts again when that is over."""
    policy = IdlePolicy("idle")
    machine = make_machine(*STARTED, idle_policy=policy)
    policy.take_reading(Reading(on_battery=True))
    assert summarize(machine.handle(Reviewed())) == ["Stop 1"]
    machine.handle(end_running_job(machine, Ending.STOPPED))
    assert machine.handle(Reviewed()) == []
    (waiting,) = machine.queue
    assert waiting.message == "made way: the machine runs on battery"
    policy.take_reading(Reading())
    machine.queue.pauses = {EVERYTHING}
    assert machine.handle(Reviewed()) == []
    machine.queue.pauses = set()
    assert summarize(machine.handle(Reviewed())) == STARTS


def test_what_is_outdated_begins_again() -> None:
    """A running job is stopped, waits with the reason, and is prepared again, even if it had just come to its end."""
    for ending in (Ending.STOPPED, Ending.DONE, Ending.SOURCE_CHANGED):
        machine = make_machine(*STARTED, BeginAgainAsked(1, "its files changed"), Inspected("p:k"))
        machine.handle(end_running_job(machine, ending))
        (waiting,) = machine.queue
        assert (waiting.state, waiting.message) == (JobState.QUEUED, "its files changed")
        assert summarize(machine.handle(Reviewed())) == STARTS


def test_work_is_found_where_it_is_done() -> None:
    """A running job serves who wants no more than it does; a larger budget needs one that waits; none is cancelled."""
    key = WinnerKey(KernelName("p:k"), make_key_problem({"M": 1}), DeviceModel("x"))
    machine = make_machine(Arrived(make_job(1, plan=Plan(trials=10))), Reviewed())
    assert machine.find_matching_job(key, Plan(trials=5)) == machine.find_matching_job(key, None) == machine.running[0]
    assert machine.find_matching_job(key, Plan(trials=50)) is None
    machine.handle(Arrived(make_job(2, problem={"M": 1}, plan=Plan(trials=50))))
    found = machine.find_matching_job(key, Plan(trials=60))
    assert found is not None
    assert found.id == 2
    (record,) = machine.handle(Joined(2, 200, "asked", Plan(trials=60)))
    assert isinstance(record, Record)
    assert record.job.plan.trials == 60
    machine.handle(CancelAsked(1))
    found = machine.find_matching_job(key, None)
    assert found is not None
    assert found.id == 2


def test_joining_raises_what_runs() -> None:
    """Priority and reason of a running job follow who wants it; a request by name takes back a pause."""
    machine = make_machine(*STARTED, PauseAsked(1), Joined(1, Priority.REQUESTED, "asked for"))
    assert (machine.running[0].priority, machine.running[0].reason) == (Priority.REQUESTED, "asked for")
    assert summarize(machine.handle(end_running_job(machine, Ending.STOPPED))) == _REQUEUED


@pytest.mark.parametrize("gets_on", [True, False])
def test_kills_from_outside_are_excused_while_the_job_gets_on(gets_on: bool) -> None:
    """A job without progress that is killed again and again has failed."""
    machine = make_machine(ARRIVED)
    for _ in range(KILLS_EXCUSED):
        machine.handle(Reviewed())
        machine.handle(end_running_job(machine, Ending.KILLED, "killed by SIGKILL", gets_on=gets_on))
        assert [one.message for one in machine.queue] == ["taken up again: killed by SIGKILL"]
    machine.handle(Reviewed())
    last = machine.handle(end_running_job(machine, Ending.KILLED, "killed by SIGKILL", gets_on=gets_on))
    assert summarize(last) == (_REQUEUED if gets_on else ["Close 1"])


@pytest.mark.parametrize("is_inspected", [True, False])
def test_a_changed_source_holds_its_job_until_it_is_inspected(is_inspected: bool) -> None:
    """An inspection that came while the job ran counts, too."""
    machine = make_machine(*STARTED)
    if is_inspected:
        machine.handle(Inspected("p:k"))
    machine.handle(end_running_job(machine, Ending.SOURCE_CHANGED, "changed"))
    assert summarize(machine.handle(Reviewed())) == (STARTS if is_inspected else [])
    machine.handle(Inspected("p:k"))
    assert summarize(machine.handle(Reviewed())) == ([] if is_inspected else STARTS)


@pytest.mark.parametrize("gets_on", [True, False])
def test_a_job_whose_files_change_all_the_while_fails_unless_it_gets_on(gets_on: bool) -> None:
    """Each time its files are inspected, also where the watcher sees no change; in the end it says so."""
    machine = make_machine(*STARTED)
    for _ in range(CHANGES_EXCUSED):
        assert "Inspect 1" in summarize(machine.handle(end_running_job(machine, Ending.SOURCE_CHANGED, "changed")))
        machine.handle(Inspected("p:k"))
        machine.handle(Reviewed())
    last = machine.handle(end_running_job(machine, Ending.SOURCE_CHANGED, "changed", gets_on=gets_on))
    assert ("Close 1" in summarize(last)) is not gets_on


def test_what_the_last_daemon_left_is_taken_up() -> None:
    """Its jobs keep their priorities and pauses."""
    machine = make_machine()
    machine.handle(TakenUp([make_job(1, priority=350), make_job(2, state=JobState.PAUSED), make_job(3, priority=100)]))
    assert [(one.id, one.priority, one.state) for one in machine.queue] == [
        (1, 350, JobState.QUEUED),
        (3, 100, JobState.QUEUED),
        (2, 200, JobState.PAUSED),
    ]


def make_starting_events(*numbers: int) -> list[Event]:
    """Return the events by which jobs start one after the other, as soon as the ones before leave slots idle."""
    events: list[Event] = []
    for number in numbers:
        events += [Reviewed(), Advanced(number, JobStage.COMPILING)]
    return events


def test_only_so_many_jobs_run_at_once() -> None:
    """The next one waits until one has ended."""
    numbers = range(1, MOST_RUNNING + 2)
    machine = make_machine(*(Arrived(make_job(number)) for number in numbers), *make_starting_events(*numbers[:-1]))
    assert [one.id for one in machine.list_running_on("x")] == list(numbers[:-1])
    assert machine.handle(Reviewed()) == []
    machine.handle(Ended(machine.running[3], Ending.DONE))
    assert summarize(machine.handle(Reviewed())) == [f"Start {numbers[-1]}"]


STORIES = {
    "a higher rank makes a running job yield; an equal one waits; another device is free": """
        arrive 1; review: Start 1, GrantLanes 1; arrive 2; arrive 3 device=y; review: Start 3, GrantLanes 3
        arrive 4 priority=300; review: Stop 1; review:
        end 1 stopped: Record 1, Publish 1 job_queued; queue: 4, 1 made way for a more important job, 2
        review: Start 4, GrantLanes 4""",
    "a full store stops every start until it is mended": """
        arrive 1; review: Start 1, GrantLanes 1; arrive 2 device=y; end 1 not_recorded: Record 1, Publish 1 job_queued
        queue: 1 why, 2; review:; mend; review: Start 1, GrantLanes 1, Start 2, GrantLanes 2""",
    "a client that waits lifts its job, which makes the other yield, until the client leaves": """
        arrive 1; review: Start 1, GrantLanes 1; arrive 2; wait 2; leave; review:; wait 2; review: Stop 1""",
    "the next job starts as soon as no config of the running ones waits for a slot": """
        arrive 1; arrive 2; arrive 3; review: Start 1, GrantLanes 1; review:; advance 1 compiling; review: Start 2
        review:; advance 2 compiling; review: Start 3; lanes: 1; end 1 done: Close 1; review: GrantLanes 2""",
    "a job keeps the lanes until it has decided, and another one may start meanwhile": """
        arrive 1; arrive 2; start 1; start 2; advance 1 deciding; arrive 3; review: Start 3; advance 3 compiling
        end 1 done: Close 1; review: GrantLanes 2; advance 2 deciding; review:; end 2 done: Close 2
        review: GrantLanes 3""",
    "jobs that do the same work run one after the other, by another objective too; others pass them": """
        arrive 1; arrive 2 problem=1 seed=1; arrive 3 problem=1 objective=min:energy; arrive 4; start 1; review: Start 4
        advance 4 compiling; wait 2; review: Stop 1, Stop 4; end 4 stopped; review:; end 1 stopped
        review: Start 2, GrantLanes 2""",
    "a higher rank stops all jobs that it outranks; those that rank as high go on, and have the lanes first": """
        arrive 1 priority=300; arrive 2; arrive 3; start 1; start 2; start 3; arrive 4 priority=300
        review: Stop 2, Stop 3; review:; end 2 stopped; end 3 stopped; review: Start 4; lanes: 1""",
    "the lanes go to the highest rank, but an equal or a waiting client takes none from who decides": """
        arrive 1; arrive 2; arrive 3; start 1; start 2; start 3; wait 3; review: GrantLanes 3; leave; review:
        advance 3 deciding; wait 2; review:; end 3 done: Close 3; review: GrantLanes 2""",
    "a job that is paused leaves the lanes at once": """
        arrive 1; arrive 2; start 1; start 2; pause 1; review: GrantLanes 2""",
    "a job that is cancelled leaves the lanes at once": """
        arrive 1; arrive 2; start 1; start 2; cancel 1; review: GrantLanes 2""",
    "a job that begins again leaves the lanes at once": """
        arrive 1; arrive 2; start 1; start 2; again 1; review: GrantLanes 2""",
    "a job that cannot be prepared leaves the lanes": """
        arrive 1; arrive 2; review: Start 1, GrantLanes 1; end 1 failed: Close 1; review: Start 2, GrantLanes 2""",
    "slots go to the job that has the lanes, then in the order of starts; of two devices neither is the first": """
        arrive 1; arrive 2; arrive 3; arrive 4 device=y; start 1; start 2; start 3; start 4
        slots: 200 199 198 200 0; wait 3; review: GrantLanes 3; leave; slots: 199 198 200 200 0""",
    "the age of a job without the lanes goes on until it has had them for a turn": f"""
        arrive 1; arrive 2; start 1; start 2; clock {AGE_S}; ranks: 200 300; review: GrantLanes 2; clock {TURN_S}
        ranks: 200 200""",
}
"""Steps of ``event: the machine's instructions``. ``start`` reviews, and has the job that starts compile all."""


class Story:
    """A machine, its clock, and the events of a story."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        self.machine = JobMachine(clock=lambda: self.now, now=lambda: NOW)

    def _make_event(self, name: str, number: int, words: Sequence[str]) -> Event:
        match name:
            case "arrive":
                return self._make_arrival(number, **dict(word.split("=") for word in words))
            case "review" | "start":
                return Reviewed()
            case "advance":
                return Advanced(number, JobStage[words[0].upper()])
            case "end":
                running = self.machine.find_running_job(number)
                assert running is not None
                return Ended(running, Ending[words[0].upper()], "why")
            case "mend":
                return StoreMended()
            case "again":
                return BeginAgainAsked(number, "changed")
            case "pause":
                return PauseAsked(number)
            case _:
                return CancelAsked(number)

    def _make_arrival(
        self, number: int, device: str = "x", priority: str = "200", problem: str = "", **plan: Any
    ) -> Arrived:
        self.count = number
        if "seed" in plan:
            plan["seed"] = int(plan["seed"])
        made = make_job(
            number, device=device, priority=int(priority), problem={"M": int(problem or number)}, plan=Plan(**plan)
        )
        return Arrived(made)

    def take_step(self, text: str) -> str:
        """Take the step of a story; return what came of it."""
        name, number, *words = text.split() if " " in text else (text, "0")
        # The last one is unknown.
        queue, jobs = self.machine.queue, range(1, self.count + 2)
        match name:
            case "clock":
                self.now += float(number)
            case "wait":
                queue.add_waiter("me", [int(number)])
            case "leave":
                queue.remove_waiter("me")
            case "queue":
                return ", ".join(f"{one.id} {one.message}".strip() for one in queue)
            case "lanes":
                holder = self.machine.find_lane_holder("x")
                return str(holder and holder.id)
            case "slots":
                return " ".join(str(self.machine.find_slot_rank(job)) for job in jobs)
            case "ranks":
                return " ".join(str(queue.find_rank(job)) for job in jobs[:-1])
            case _:
                told = summarize(self.machine.handle(self._make_event(name, int(number), words)))
                if name == "start":
                    self.machine.handle(Advanced(int(number), JobStage.COMPILING))
                return ", ".join(told)
        return ""


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_story_goes_as_it_is_told(story: str) -> None:
    check_story(story, Story().take_step)


DEVICES = st.sampled_from(["x", "y"])
IDS = st.integers(1, 12)


class RandomEvents(RuleBasedStateMachine):
    """Any events in any order, with instructions carried out as the jobs would."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = make_machine()
        self.count = 0
        self.pipelines: dict[int, bool] = {}
        self.stages: dict[int, JobStage] = {}
        self.closed: dict[int, Job] = {}
        self.rows: dict[int, JobState] = {}

    def handle(self, event: Event) -> None:
        before = describe_machine(self.machine)
        try:
            instructions = self.machine.handle(event)
        except IllegalMove:
            assert describe_machine(self.machine) == before
            return
        for one in instructions:
            if isinstance(one, Start):
                assert one.job.id not in self.pipelines
                beside = [other for other in self.machine.list_running_on(one.job.device) if other.id != one.job.id]
                assert all(self.stages[other.id] is not JobStage.EXPLORING for other in beside)
                assert all(self.pipelines[other.id] for other in beside)
                self.stages[one.job.id] = JobStage.EXPLORING
                self.pipelines[one.job.id] = True
                self.rows[one.job.id] = one.job.state
            elif isinstance(one, Stop):
                assert one.job in self.pipelines
                self.pipelines[one.job] = False
            elif isinstance(one, GrantLanes):
                assert self.pipelines[one.job]
            elif isinstance(one, Record):
                self.rows[one.job.id] = one.job.state
            elif isinstance(one, Close):
                assert one.job.id not in self.closed
                self.closed[one.job.id] = one.job
                self.rows[one.job.id] = one.job.state
            else:
                assert self.rows[one.job.id] is one.job.state, "published before it was recorded"

    @rule(device=DEVICES, priority=st.sampled_from([50, 200, 300, 400]), is_fixed=st.booleans())
    def add_job(self, device: str, priority: int, is_fixed: bool) -> None:
        self.count += 1
        self.rows[self.count] = JobState.QUEUED
        problem = {"M": self.count // 2}
        self.handle(Arrived(make_job(self.count, device=device, priority=priority, problem=problem), is_fixed))

    @rule(number=IDS, priority=st.sampled_from([200, 350]), trials=st.sampled_from([None, 10**6]))
    def join_job(self, number: int, priority: int, trials: int | None) -> None:
        self.handle(Joined(number, priority, "joined", None if trials is None else Plan(trials=trials)))

    @rule(number=IDS, kind=st.sampled_from([CancelAsked, PauseAsked, ResumeAsked]))
    def send_request(self, number: int, kind: Callable[[int], Event]) -> None:
        self.handle(kind(number))

    @rule(number=IDS)
    def begin_again(self, number: int) -> None:
        self.handle(BeginAgainAsked(number, "changed"))

    @rule(devices=st.sets(st.sampled_from(["x", "y", EVERYTHING]), max_size=1))
    def pause_devices(self, devices: set[str]) -> None:
        self.machine.queue.pauses = devices

    @rule(number=IDS, leaves=st.booleans())
    def wait_for(self, number: int, leaves: bool) -> None:
        if leaves:
            self.machine.queue.remove_waiter(number)
        else:
            self.machine.queue.add_waiter(number, [number])

    @rule()
    def review_jobs(self) -> None:
        self.handle(Reviewed())

    @precondition(lambda self: self.pipelines)
    @rule(data=st.data())
    def advance_job(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.pipelines)))
        self.stages[number] = JobStage(min(self.stages[number] + 1, JobStage.DECIDING))
        self.handle(Advanced(number, self.stages[number]))
        self.handle(Reviewed())

    @rule()
    def inspect_kernel(self) -> None:
        self.handle(Inspected("p:k"))

    @rule()
    def mend_store(self) -> None:
        self.handle(StoreMended())

    @precondition(lambda self: self.pipelines)
    @rule(data=st.data(), ending=st.sampled_from(Ending), gets_on=st.booleans())
    def end_job(self, data: st.DataObject, ending: Ending, gets_on: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.pipelines)))
        running = self.machine.find_running_job(number)
        assert running is not None
        if ending is Ending.STOPPED and self.pipelines[number]:
            # A pipeline is stopped only when that was instructed.
            return
        del self.pipelines[number]
        self.handle(Ended(running, ending, "why", gets_on))

    @invariant()
    def runs_what_it_started(self) -> None:
        running = self.machine.running
        assert {one.id for one in running} == self.pipelines.keys()
        assert len({one.key for one in running}) == len(running)
        for device in ("x", "y"):
            here = self.machine.list_running_on(device)
            assert len(here) <= MOST_RUNNING
            holder = self.machine.find_lane_holder(device)
            assert holder is None or holder in here

    @invariant()
    def gives_the_lanes_to_the_highest_rank(self) -> None:
        if self.machine.stalled:
            return
        self.handle(Reviewed())
        rank = self.machine.queue.find_rank
        for device in ("x", "y"):
            able = [one for one in self.machine.list_running_on(device) if self.pipelines[one.id]]
            holder = self.machine.find_lane_holder(device)
            assert bool(able) <= (holder in able)
            if holder in able and self.stages[holder.id] < JobStage.DECIDING:
                assert rank(holder.id) == max(rank(one.id) for one in able)

    @invariant()
    def has_each_job_once(self) -> None:
        live = [*(one.id for one in self.machine.running), *(one.id for one in self.machine.queue)]
        assert len(live) == len(set(live))
        assert set(live) == self.machine._lives.keys()
        assert not set(live) & self.closed.keys()
        assert self.machine.queue._standings.keys() == set(live)

    @invariant()
    def says_what_the_store_has(self) -> None:
        live = [*self.machine.running, *self.machine.queue]
        assert {one.id: one.state for one in live} == {one.id: self.rows[one.id] for one in live}


TestRandomEvents = RandomEvents.TestCase
TestRandomEvents.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
