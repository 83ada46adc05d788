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
    PATIENCE_S,
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
from ktuned.scheduling.queue import EVERYTHING
from ktuned.scheduling.ranks import AGE_S, TURN_S
from ktuned.tuning import JobStage
from tests.scheduling.waiting_jobs import job

NOW = 5000.0


def machine(*events: Event | Callable[[JobMachine], None], **options: Any) -> JobMachine:
    """Return a machine that has taken some events; a function tells its queue something in between."""
    made = JobMachine(clock=lambda: 1000.0, now=lambda: NOW, **options)
    for event in events:
        if callable(event):
            event(made)
        else:
            made.handle(event)
    return made


def paused(*devices: str) -> Callable[[JobMachine], None]:
    """Return what pauses these device models and no others."""
    return lambda made: setattr(made.queue, "pauses", {*devices})


def summary(instructions: Sequence[Instruction]) -> list[str]:
    """Return what instructions are about, in brief."""
    return [
        f"{type(one).__name__} {one.job if isinstance(one, Stop | GrantLanes) else one.job.id}"
        + (f" {one.event.__struct_config__.tag}" if isinstance(one, Publish) else "")
        for one in instructions
    ]


def ended(made: JobMachine, ending: Ending, message: str = "", **options: Any) -> Ended:
    """Return the end of the pipeline of the one job that runs."""
    (running,) = made.running
    return Ended(running, ending, message, **options)


ARRIVED = Arrived(job())
STARTED = (ARRIVED, Reviewed())
STARTS = ["Start 1", "GrantLanes 1"]

PLACES: dict[str, tuple[Event | Callable[[JobMachine], None], ...]] = {
    "unknown": (),
    "waiting": (ARRIVED,),
    "paused": (ARRIVED, PauseAsked(1)),
    "running": STARTED,
    "yielding": (*STARTED, paused("x"), Reviewed(), paused()),
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
    "done": lambda: Ended(job(), Ending.DONE),
    "failed": lambda: Ended(job(), Ending.FAILED, "no"),
    "hopeless": lambda: Ended(job(), Ending.HOPELESS, "no"),
    "killed": lambda: Ended(job(), Ending.KILLED, "killed"),
    "full": lambda: Ended(job(), Ending.NOT_RECORDED, "full"),
    "changed": lambda: Ended(job(), Ending.SOURCE_CHANGED, "changed"),
    "stopped": lambda: Ended(job(), Ending.STOPPED),
    "daemon": lambda: Ended(job(), Ending.DAEMON_STOPPED),
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


def seen(made: JobMachine) -> Any:
    """Return all that can be seen of a machine."""
    lives = [(life.job, life.place, tuple(life.story), life.kills, life.changes) for life in made._lives.values()]
    runs = [copy(run) for run in made._runs.values()]
    return lives, runs, dict(made._lane_holders), list(made.queue), made.stalled


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", ASKED)
def test_every_event_in_every_place(place: str, name: str) -> None:
    """A legal event gives its instructions; an illegal one changes nothing and names the job."""
    made = machine(*PLACES[place])
    before = seen(made)
    expected = EXPECTED[place].get(name)
    if expected is not None:
        assert summary(made.handle(ASKED[name]())) == expected
        return
    with pytest.raises(IllegalMove, match="job 1 is"):
        made.handle(ASKED[name]())
    assert seen(made) == before


def test_a_job_lives_from_its_arrival_to_its_end() -> None:
    """It is published, started with the time of now, and closed with its figures."""
    made = machine()
    assert made.handle(ARRIVED) == [Publish(JobQueued, job())]
    assert made.handle(Reviewed()) == [Start(job(state=JobState.RUNNING, started=NOW)), GrantLanes(1)]
    assert made.handle(Reviewed()) == []
    (close,) = made.handle(Ended(replace(made.running[0], best_us=3.0), Ending.DONE))
    assert close == Close(job(state=JobState.DONE, started=NOW, finished=NOW, best_us=3.0))
    assert (made.find_job(1), made.running, len(made.queue)) == (None, [], 0)


def test_a_higher_rank_makes_a_running_job_yield() -> None:
    """It stops what runs; an equal one waits; another device is free."""
    made = machine(Arrived(job(1)), Reviewed(), Arrived(job(2)), Arrived(job(3, device="y")))
    assert summary(made.handle(Reviewed())) == ["Start 3", "GrantLanes 3"]
    made.handle(Arrived(job(4, priority=300)))
    assert summary(made.handle(Reviewed())) == ["Stop 1"]
    assert made.handle(Reviewed()) == []
    record, _ = made.handle(Ended(made.running[0], Ending.STOPPED))
    assert isinstance(record, Record)
    assert (record.job.message, record.is_vital) == ("made way for a more important job", False)
    assert summary(made.handle(Reviewed())) == ["Start 4", "GrantLanes 4"]


def test_a_running_job_makes_way_for_a_pause_and_a_policy() -> None:
    """With the reason in its message; it starts again when that is over."""
    policy = IdlePolicy("idle")
    made = machine(*STARTED, idle_policy=policy)
    policy.take_reading(Reading(on_battery=True))
    assert summary(made.handle(Reviewed())) == ["Stop 1"]
    made.handle(ended(made, Ending.STOPPED))
    assert made.handle(Reviewed()) == []
    (waiting,) = made.queue
    assert waiting.message == "made way: the machine runs on battery"
    policy.take_reading(Reading())
    made.queue.pauses = {EVERYTHING}
    assert made.handle(Reviewed()) == []
    made.queue.pauses = set()
    assert summary(made.handle(Reviewed())) == STARTS


def test_what_is_outdated_begins_again() -> None:
    """A running job is stopped, waits with the reason, and is prepared again, even if it had just come to its end."""
    for ending in (Ending.STOPPED, Ending.DONE, Ending.SOURCE_CHANGED):
        made = machine(*STARTED, BeginAgainAsked(1, "its files changed"), Inspected("p:k"))
        made.handle(ended(made, ending))
        (waiting,) = made.queue
        assert (waiting.state, waiting.message) == (JobState.QUEUED, "its files changed")
        assert summary(made.handle(Reviewed())) == STARTS


def test_work_is_found_where_it_is_done() -> None:
    """A running job serves who wants no more than it does; a larger budget needs one that waits; none is cancelled."""
    key = WinnerKey(KernelName("p:k"), make_key_problem({"M": 1}), DeviceModel("x"))
    made = machine(Arrived(job(1, plan=Plan(trials=10))), Reviewed())
    assert made.find_matching_job(key, Plan(trials=5)) == made.find_matching_job(key, None) == made.running[0]
    assert made.find_matching_job(key, Plan(trials=50)) is None
    made.handle(Arrived(job(2, problem={"M": 1}, plan=Plan(trials=50))))
    found = made.find_matching_job(key, Plan(trials=60))
    assert found is not None
    assert found.id == 2
    (record,) = made.handle(Joined(2, 200, "asked", Plan(trials=60)))
    assert isinstance(record, Record)
    assert record.job.plan.trials == 60
    made.handle(CancelAsked(1))
    found = made.find_matching_job(key, None)
    assert found is not None
    assert found.id == 2


def test_joining_raises_what_runs() -> None:
    """Priority and reason of a running job follow who wants it; a request by name takes back a pause."""
    made = machine(*STARTED, PauseAsked(1), Joined(1, Priority.REQUESTED, "asked for"))
    assert (made.running[0].priority, made.running[0].reason) == (Priority.REQUESTED, "asked for")
    assert summary(made.handle(ended(made, Ending.STOPPED))) == _REQUEUED


def test_a_full_store_stops_every_start() -> None:
    """The job waits with the reason; nothing starts until the store is mended."""
    made = machine(*STARTED, Arrived(job(2, device="y")))
    made.handle(ended(made, Ending.NOT_RECORDED, "the disk is full"))
    assert made.stalled == "the disk is full"
    assert [one.message for one in made.queue] == ["the disk is full", ""]
    assert made.handle(Reviewed()) == []
    made.handle(StoreMended())
    assert summary(made.handle(Reviewed())) == [*STARTS, "Start 2", "GrantLanes 2"]


@pytest.mark.parametrize("gets_on", [True, False])
def test_kills_from_outside_are_excused_while_the_job_gets_on(gets_on: bool) -> None:
    """A job without progress that is killed again and again has failed."""
    made = machine(ARRIVED)
    for _ in range(KILLS_EXCUSED):
        made.handle(Reviewed())
        made.handle(ended(made, Ending.KILLED, "killed by SIGKILL", gets_on=gets_on))
        assert [one.message for one in made.queue] == ["taken up again: killed by SIGKILL"]
    made.handle(Reviewed())
    last = made.handle(ended(made, Ending.KILLED, "killed by SIGKILL", gets_on=gets_on))
    assert summary(last) == (_REQUEUED if gets_on else ["Close 1"])


@pytest.mark.parametrize("is_inspected", [True, False])
def test_a_changed_source_holds_its_job_until_it_is_inspected(is_inspected: bool) -> None:
    """An inspection that came while the job ran counts, too."""
    made = machine(*STARTED)
    if is_inspected:
        made.handle(Inspected("p:k"))
    made.handle(ended(made, Ending.SOURCE_CHANGED, "changed"))
    assert summary(made.handle(Reviewed())) == (STARTS if is_inspected else [])
    made.handle(Inspected("p:k"))
    assert summary(made.handle(Reviewed())) == ([] if is_inspected else STARTS)


@pytest.mark.parametrize("gets_on", [True, False])
def test_a_job_whose_files_change_all_the_while_fails_unless_it_gets_on(gets_on: bool) -> None:
    """Each time its files are inspected, also where the watcher sees no change; in the end it says so."""
    made = machine(*STARTED)
    for _ in range(CHANGES_EXCUSED):
        assert "Inspect 1" in summary(made.handle(ended(made, Ending.SOURCE_CHANGED, "changed")))
        made.handle(Inspected("p:k"))
        made.handle(Reviewed())
    last = made.handle(ended(made, Ending.SOURCE_CHANGED, "changed", gets_on=gets_on))
    assert ("Close 1" in summary(last)) is not gets_on


def test_what_the_last_daemon_left_is_taken_up_once() -> None:
    """A job that was asked for meanwhile keeps what it has become."""
    made = machine(Arrived(job(1)), Joined(1, 350, "asked for"))
    made.handle(TakenUp([job(1), job(2, state=JobState.PAUSED), job(3, priority=100)]))
    assert [(one.id, one.priority, one.state) for one in made.queue] == [
        (1, 350, JobState.QUEUED),
        (3, 100, JobState.QUEUED),
        (2, 200, JobState.PAUSED),
    ]


def test_a_client_that_waits_lifts_its_job() -> None:
    """The job makes the other yield, until the client leaves."""
    made = machine(Arrived(job(1)), Reviewed(), Arrived(job(2)))
    made.queue.add_waiter("me", [2])
    made.queue.remove_waiter("me")
    assert made.handle(Reviewed()) == []
    made.queue.add_waiter("me", [2])
    assert summary(made.handle(Reviewed())) == ["Stop 1"]


def compiling(*numbers: int) -> list[Event]:
    """Return the events by which jobs start one after the other, as soon as the ones before leave slots idle."""
    events: list[Event] = []
    for number in numbers:
        events += [Reviewed(), Advanced(number, JobStage.COMPILING)]
    return events


def test_the_next_job_starts_while_one_measures() -> None:
    """As soon as no config of the running ones waits for a slot; it measures when the one before has ended."""
    made = machine(Arrived(job(1)), Arrived(job(2)), Arrived(job(3)), Reviewed())
    assert made.handle(Reviewed()) == []
    made.handle(Advanced(1, JobStage.COMPILING))
    assert summary(made.handle(Reviewed())) == ["Start 2"]
    assert made.handle(Reviewed()) == []
    made.handle(Advanced(2, JobStage.COMPILING))
    assert summary(made.handle(Reviewed())) == ["Start 3"]
    assert made.find_lane_holder("x") == made.running[0]
    made.handle(Ended(made.running[0], Ending.DONE))
    assert summary(made.handle(Reviewed())) == ["GrantLanes 2"]


def measured(made: JobMachine, number: int) -> list[str]:
    """Have a job say that it has measured all; return what is instructed then."""
    made.handle(Advanced(number, JobStage.MEASURED))
    return summary(made.handle(Reviewed()))


def test_jobs_decide_together_when_none_measures_any_more() -> None:
    """Those that have measured all let the others measure first; while they decide, nothing starts."""
    made = machine(*(Arrived(job(number)) for number in (1, 2, 3)), *compiling(1, 2))
    assert measured(made, 1) == ["Start 3", "GrantLanes 2"]
    made.handle(Advanced(3, JobStage.COMPILING))
    assert measured(made, 2) == ["GrantLanes 3"]
    assert measured(made, 3) == ["GrantLanes 1"]
    made.handle(Arrived(job(4)))
    made.handle(Advanced(1, JobStage.DECIDING))
    for decides in (2, 3):
        assert made.handle(Reviewed()) == []
        made.handle(Ended(made.running[0], Ending.DONE))
        assert summary(made.handle(Reviewed())) == [f"GrantLanes {decides}"]
        made.handle(Advanced(decides, JobStage.DECIDING))
    made.handle(Ended(made.running[0], Ending.DONE))
    assert summary(made.handle(Reviewed())) == ["Start 4", "GrantLanes 4"]


def test_a_job_that_measured_all_waits_no_longer_than_a_bound() -> None:
    """Then it has the lanes although an equal still measures, nothing starts, and the equal goes on afterwards."""
    now = 0.0
    made = JobMachine(clock=lambda: now, now=lambda: NOW)
    for event in (Arrived(job(1)), Arrived(job(2)), *compiling(1, 2)):
        made.handle(event)
    assert measured(made, 1) == ["GrantLanes 2"]
    now = PATIENCE_S - 0.1
    assert made.handle(Reviewed()) == []
    now = PATIENCE_S
    made.handle(Arrived(job(3)))
    assert summary(made.handle(Reviewed())) == ["GrantLanes 1"]
    made.handle(Advanced(1, JobStage.DECIDING))
    made.handle(Ended(made.running[0], Ending.DONE))
    assert summary(made.handle(Reviewed())) == ["Start 3", "GrantLanes 2"]


def test_a_more_important_job_decides_before_others_measure() -> None:
    """Only equals, and what ranks higher, may keep it from deciding."""
    made = machine(Arrived(job(1, priority=300)), Arrived(job(2)), *compiling(1, 2))
    assert measured(made, 1) == ["GrantLanes 1"]


def test_only_so_many_jobs_run_at_once() -> None:
    """The next one waits until one has ended."""
    numbers = range(1, MOST_RUNNING + 2)
    made = machine(*(Arrived(job(number)) for number in numbers), *compiling(*numbers[:-1]))
    assert [one.id for one in made.list_running_on("x")] == list(numbers[:-1])
    assert made.handle(Reviewed()) == []
    made.handle(Ended(made.running[3], Ending.DONE))
    assert summary(made.handle(Reviewed())) == [f"Start {numbers[-1]}"]


def test_jobs_that_do_the_same_work_run_one_after_the_other() -> None:
    """The second one finds what the first has measured, by another objective too; others pass it meanwhile."""
    same = {"problem": {"M": 1}}
    made = machine(
        Arrived(job(1)),
        Arrived(job(2, **same, plan=Plan(seed=1))),
        Arrived(job(3, **same, plan=Plan(objective="min:energy"))),
        Arrived(job(4)),
        *compiling(1),
    )
    assert summary(made.handle(Reviewed())) == ["Start 4"]
    made.handle(Advanced(4, JobStage.COMPILING))
    made.queue.add_waiter("me", [2])
    assert summary(made.handle(Reviewed())) == ["Stop 1", "Stop 4"]
    made.handle(Ended(made.running[1], Ending.STOPPED))
    assert made.handle(Reviewed()) == []
    made.handle(Ended(made.running[0], Ending.STOPPED))
    assert summary(made.handle(Reviewed())) == ["Start 2", "GrantLanes 2"]


def test_a_higher_rank_stops_all_jobs_that_it_outranks() -> None:
    """The jobs that rank as high go on, and have the lanes first."""
    made = machine(Arrived(job(1, priority=300)), Arrived(job(2)), Arrived(job(3)), *compiling(1, 2, 3))
    made.handle(Arrived(job(4, priority=300)))
    assert summary(made.handle(Reviewed())) == ["Stop 2", "Stop 3"]
    assert made.handle(Reviewed()) == []
    for running in made.running[1:]:
        made.handle(Ended(running, Ending.STOPPED))
    assert summary(made.handle(Reviewed())) == ["Start 4"]
    assert made.find_lane_holder("x") == made.running[0]


def test_the_lanes_go_to_the_highest_rank_but_not_away_from_finalists() -> None:
    """A client that waits for a job gives it the lanes; an equal does not take them back."""
    made = machine(Arrived(job(1)), Arrived(job(2)), Arrived(job(3)), *compiling(1, 2, 3))
    made.queue.add_waiter("me", [3])
    assert summary(made.handle(Reviewed())) == ["GrantLanes 3"]
    made.queue.remove_waiter("me")
    assert made.handle(Reviewed()) == []
    assert measured(made, 3) == ["GrantLanes 1"]
    made.queue.add_waiter("me", [3])
    assert summary(made.handle(Reviewed())) == ["GrantLanes 3"]
    made.handle(Advanced(3, JobStage.DECIDING))
    made.queue.remove_waiter("me")
    made.queue.add_waiter("me", [2])
    assert made.handle(Reviewed()) == []
    made.handle(Ended(made.running[2], Ending.DONE))
    assert summary(made.handle(Reviewed())) == ["GrantLanes 2"]


@pytest.mark.parametrize("stopped", [PauseAsked(1), CancelAsked(1), BeginAgainAsked(1, "changed")])
def test_a_job_that_stops_leaves_the_lanes_to_the_next(stopped: Event) -> None:
    """At once: the next one need not wait until its pipeline has ended."""
    made = machine(Arrived(job(1)), Arrived(job(2)), *compiling(1, 2), stopped)
    assert summary(made.handle(Reviewed())) == ["GrantLanes 2"]


def test_a_job_that_cannot_be_prepared_leaves_the_lanes() -> None:
    """It has no pipeline, and ends as soon as it has started."""
    made = machine(Arrived(job(1)), Arrived(job(2)), Reviewed())
    made.handle(Ended(made.running[0], Ending.FAILED, "no"))
    assert summary(made.handle(Reviewed())) == ["Start 2", "GrantLanes 2"]


def test_slots_go_to_the_job_that_measures_sooner() -> None:
    """Of equals: the one that has the lanes, then in the order of their starts; of two devices neither is the first."""
    made = machine(*(Arrived(job(number)) for number in (1, 2, 3)), Arrived(job(4, device="y")), *compiling(1, 2, 3, 4))
    assert [made.find_slot_rank(number) for number in (1, 2, 3, 4, 99)] == [200, 199, 198, 200, 0]
    made.queue.add_waiter("me", [3])
    made.handle(Reviewed())
    made.queue.remove_waiter("me")
    assert [made.find_slot_rank(number) for number in (1, 2, 3)] == [199, 198, 200]


def test_a_job_that_runs_without_the_lanes_still_waits() -> None:
    """Its age goes on, until it has had the lanes for a turn: it loses nothing by an early start."""
    now = 0.0
    made = JobMachine(clock=lambda: now, now=lambda: NOW)
    for event in (Arrived(job(1)), Arrived(job(2)), *compiling(1, 2)):
        made.handle(event)
    now = AGE_S
    assert (made.queue.find_rank(1), made.queue.find_rank(2)) == (200, 300)
    assert summary(made.handle(Reviewed())) == ["GrantLanes 2"]
    now += TURN_S
    assert (made.queue.find_rank(1), made.queue.find_rank(2)) == (200, 200)


DEVICES = st.sampled_from(["x", "y"])
IDS = st.integers(1, 12)


class RandomEvents(RuleBasedStateMachine):
    """Any events in any order, with instructions carried out as the jobs would."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = machine()
        self.count = 0
        self.pipelines: dict[int, bool] = {}
        self.stages: dict[int, JobStage] = {}
        self.closed: dict[int, Job] = {}
        self.rows: dict[int, JobState] = {}

    def give(self, event: Event) -> None:
        before = seen(self.machine)
        try:
            instructions = self.machine.handle(event)
        except IllegalMove:
            assert seen(self.machine) == before
            return
        for one in instructions:
            if isinstance(one, Start):
                assert one.job.id not in self.pipelines
                beside = [other for other in self.machine.list_running_on(one.job.device) if other.id != one.job.id]
                between = (JobStage.COMPILING, JobStage.MEASURED)
                assert all(self.stages[other.id] in between for other in beside)
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
    def arrive(self, device: str, priority: int, is_fixed: bool) -> None:
        self.count += 1
        self.rows[self.count] = JobState.QUEUED
        problem = {"M": self.count // 2}
        self.give(Arrived(job(self.count, device=device, priority=priority, problem=problem), is_fixed))

    @rule(number=IDS, priority=st.sampled_from([200, 350]), trials=st.sampled_from([None, 10**6]))
    def join(self, number: int, priority: int, trials: int | None) -> None:
        self.give(Joined(number, priority, "joined", None if trials is None else Plan(trials=trials)))

    @rule(number=IDS, kind=st.sampled_from([CancelAsked, PauseAsked, ResumeAsked]))
    def ask(self, number: int, kind: Callable[[int], Event]) -> None:
        self.give(kind(number))

    @rule(number=IDS)
    def begin_again(self, number: int) -> None:
        self.give(BeginAgainAsked(number, "changed"))

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
    def review(self) -> None:
        self.give(Reviewed())

    @precondition(lambda self: self.pipelines)
    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.pipelines)))
        self.stages[number] = JobStage(min(self.stages[number] + 1, JobStage.DECIDING))
        self.give(Advanced(number, self.stages[number]))
        self.give(Reviewed())

    @rule()
    def inspect(self) -> None:
        self.give(Inspected("p:k"))

    @rule()
    def mend(self) -> None:
        self.give(StoreMended())

    @precondition(lambda self: self.pipelines)
    @rule(data=st.data(), ending=st.sampled_from(Ending), gets_on=st.booleans())
    def end(self, data: st.DataObject, ending: Ending, gets_on: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.pipelines)))
        running = self.machine.find_running_job(number)
        assert running is not None
        if ending is Ending.STOPPED and self.pipelines[number]:
            # A pipeline is stopped only when that was instructed.
            return
        del self.pipelines[number]
        self.give(Ended(running, ending, "why", gets_on))

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
        self.give(Reviewed())
        rank = self.machine.queue.find_rank
        for device in ("x", "y"):
            able = [one for one in self.machine.list_running_on(device) if self.pipelines[one.id]]
            holder = self.machine.find_lane_holder(device)
            assert bool(able) <= (holder in able)
            if holder in able and self.stages[holder.id] < JobStage.MEASURED:
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
