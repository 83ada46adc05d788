from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from ktuned.model.keys import make_key_problem
from ktuned.model.plan import Plan
from ktuned.protocol.jobs import Job
from ktuned.scheduling.queue import AGE_S, EVERYTHING, HALF_LIFE_S, TURN_S, JobQueue, LaunchCost, extend_plan
from tests.scheduling.waiting_jobs import make_job
from tests.stories import check_story

DEVICES = st.sampled_from(["x", "y"])
PRIORITIES = st.sampled_from([100, 200, 300, 400])


def take_job(queue: JobQueue, number: int) -> None:
    """Take a job out, and let it measure."""
    queue.begin_turn(number)
    queue.remove_job(number)


def outranks_running(queue: JobQueue, running: Job) -> bool:
    """Return whether a waiting job outranks one that runs."""
    first = queue.choose_next_job(running.device)
    return first is not None and queue.find_rank(first.id) > queue.find_rank(running.id)


def test_same_work_is_found_whatever_the_order_of_its_keys() -> None:
    """Kernel, problem and device make the work; a key's place does not."""
    queue = JobQueue([make_job(1, problem={"M": 1, "N": 2})])
    same = make_job(9, problem={"N": 2, "M": 1}, plan=Plan(trials=3))
    assert queue.find_matching_job(same.key) == queue.find_matching_job(same.key, same.plan) == queue.get_job(1)
    assert queue.find_matching_job(same.key, Plan(seed=1)) is None
    for other in ({"problem": {"M": 1, "N": 2.0}}, {"kernel": "p:other"}, {"device": "y"}):
        assert queue.find_matching_job(replace(same, **other).key) is None


def test_problems_with_one_key_are_the_same_work() -> None:
    """Sizes that do not enter the key make no other job; a job without a key problem stands for its whole problem."""
    key = make_key_problem({"M": 1})
    queue = JobQueue([make_job(1, problem={"M": 1, "K": 1}, key_problem=key)])
    assert queue.find_matching_job(make_job(2, problem={"M": 1, "K": 2}, key_problem=key).key) == queue.get_job(1)
    assert queue.find_matching_job(make_job(2, problem={"M": 1}).key) == queue.get_job(1)
    assert queue.find_matching_job(make_job(2, problem={"M": 1, "K": 1}).key) is None


@pytest.mark.parametrize(
    ("plan", "asked", "expected"),
    [
        (Plan(), Plan(), Plan()),
        (Plan(trials=10), Plan(trials=20), Plan(trials=20)),
        (Plan(trials=20), Plan(trials=10), Plan(trials=20)),
        (Plan(time_limit_s=5.0), Plan(time_limit_s=9.0), Plan(time_limit_s=9.0)),
        (Plan(time_limit_s=5.0), Plan(), Plan()),
        (Plan(), Plan(time_limit_s=5.0), Plan()),
        (Plan(trials=10, time_limit_s=5.0), Plan(trials=5, time_limit_s=9.0), Plan(trials=10, time_limit_s=9.0)),
        (Plan(), Plan(seed=1), None),
        (Plan(), Plan(preset="thorough"), None),
        (Plan(), Plan(strategy="exhaustive"), None),
        (Plan(), Plan(early_stop=2.0), None),
        (Plan(), Plan(deadlines={"compile": 9.0}), None),
    ],
)
def test_budgets_extend_and_manners_part(plan: Plan, asked: Plan, expected: Plan | None) -> None:
    """Two plans that differ in their budget alone are one plan with the larger; any other difference is two jobs."""
    assert extend_plan(plan, asked) == expected


class SettableClock:
    """A clock that a test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


STORIES = {
    "a held job waits until its kernel is released; it neither runs nor preempts, and is still found": """
        add 1 kernel=p:k; add 2 kernel=p:other; hold 1; next: 2; found 1: True; remove 2; next: None
        run 3 priority=100; preempts 3: False; release p:other; next: None; release p:k; next: 1
        hold 1; remove 1; add 1 kernel=p:k; next: 1""",
    "who waits lifts a job until he leaves, also while it runs": """
        add 1 priority=300; add 2 priority=100; add 3 priority=100; wait me 2 99; wait you 2; order: 2 1 3
        level 2: 400; waiters 2: 2; run 2 priority=100; preempts 2: False; leave me; preempts 2: False; leave you
        preempts 2: True; add 2 priority=100; order: 1 2 3""",
    "a given priority holds whoever waits, until somebody asks without giving one": """
        fix 1 priority=100; wait me 1; level 1: 100; raise 1 200; level 1: 400""",
    "somebody less important who asks too changes nothing": """
        add 1; raise 1 100: 200 asked; raise 1 200: 200 asked; raise 1 300: 300 saved""",
    "of equals the one that is looked up more goes first, and old lookups count less and less": f"""
        add 1; add 2; add 3 priority=300; lookups 2 3; lookups 9 1; order: 3 2 1; clock {2 * HALF_LIFE_S - 1}
        lookups 1 1; order: 3 1 2""",
    "what costs applications most goes first among equals, before lookups and after the rank": """
        add 1; add 2; add 3 objective=min:energy; add 4 priority=300; lookups 1 3; cost 2 10 2.0; cost 3 1000 3.0
        order: 4 3 2 1; cost 2 20 4.0; order: 4 2 3 1; launches 3: 1000; launches 1: 0""",
    "a pause keeps from running, says why, and is no waiting": f"""
        add 1; add 2 priority=100; add 3 device=y; pause 1: paused; why 1: it is paused; why 2:; next: 2
        clock {10 * AGE_S}; resume 1: queued; rank 1: 200; pauses x; next: None; next y: 3; why 1: its device is paused
        pauses all; next y: None; why 3: all tuning is paused""",
    "a turn that was waited for is not taken away; after it the job makes way and waits again": f"""
        add 1 priority=100; clock {4 * AGE_S}; add 2 priority=400; next: 1; rank 1: 500; run 1; preempts 1: False
        clock {TURN_S - 1}; preempts 1: False; clock 1; preempts 1: True; add 1 priority=100; next: 2; rank 1: 100""",
    "a turn that was cut short counts as waiting": f"""
        add 1 priority=100; run 1; clock {TURN_S - 1}; add 1 priority=100; clock {AGE_S - TURN_S + 1}; rank 1: 200""",
}
"""Steps of ``what happens, or is looked at: what is seen``. A job that runs was taken out, and may be preempted."""


class Story:
    """A queue, its clock, and its jobs as they were added."""

    def __init__(self) -> None:
        self._clock = SettableClock()
        self._queue = JobQueue(clock=self._clock)
        self._jobs: dict[int, Job] = {}

    def _make_job(self, number: int, changes: dict[str, Any]) -> Job:
        if "priority" in changes:
            changes["priority"] = int(changes["priority"])
        if "objective" in changes:
            changes["plan"] = Plan(objective=changes.pop("objective"))
        return self._jobs.setdefault(number, make_job(number, **changes))

    def take_step(self, text: str) -> str:
        """Take a step; return what is seen."""
        name, *words = text.split()
        changes = dict(word.split("=") for word in words if "=" in word)
        number = int(words[0]) if words and words[0].isdigit() else 0
        job, queue = self._make_job(number, changes), self._queue
        match name:
            case "add" | "fix":
                queue.add_job(job, is_fixed=name == "fix")
            case "run":
                if queue.get_job(number) is None:
                    queue.add_job(job)
                take_job(queue, number)
            case "remove":
                queue.remove_job(number)
            case "hold":
                queue.hold_until_inspected(number)
            case "release":
                queue.release_jobs_of_kernel(words[0])
            case "wait":
                queue.add_waiter(words[0], [int(word) for word in words[1:]])
            case "leave":
                queue.remove_waiter(words[0])
            case "lookups":
                queue.count_lookups(job.key, int(words[1]))
            case "cost":
                queue.record_launch_cost(job.key, LaunchCost(int(words[1]), float(words[2])))
            case "pauses":
                queue.pauses = {EVERYTHING if word == "all" else word for word in words}
            case "clock":
                self._clock.now += float(words[0])
            case "raise":
                raised = queue.raise_job_priority(job, int(words[1]), "saved")
                return f"{raised.priority} {raised.reason}"
            case "pause":
                return str(queue.pause_job(number).state)
            case "resume":
                return str(queue.resume_job(number).state)
            case "next":
                chosen = queue.choose_next_job(words[0] if words else "x")
                return str(chosen and chosen.id)
            case "order":
                return " ".join(str(one.id) for one in queue)
            case "found":
                return str(queue.find_matching_job(job.key) is not None)
            case "preempts":
                return str(outranks_running(queue, job))
            case "launches":
                return str(queue.find_launch_cost(job.key).launches)
            case "why":
                return queue.explain_wait(queue.get_job(number) or job)
            case _:
                see = {"level": queue.find_level, "rank": queue.find_rank, "waiters": queue.count_waiters}[name]
                return str(see(number))
        return ""


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_a_story_goes_as_it_is_told(story: str) -> None:
    check_story(story, Story().take_step)


def test_only_so_many_uses_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that was noted longest ago is forgotten."""
    monkeypatch.setattr("ktuned.scheduling.queue.MAX_USES", 2)
    queue = JobQueue()
    for number in (1, 2, 1, 3):
        queue.record_launch_cost(make_job(number).key, LaunchCost(number, 1.0))
    assert [queue.find_launch_cost(make_job(number).key).launches for number in (1, 2, 3)] == [1, 0, 3]


@pytest.mark.parametrize("newcomers", [200, 300, 400, 999])
@pytest.mark.parametrize("works_s", [1.0, 59.0, 3600.0])
def test_each_job_gets_full_turns_however_many_newcomers_rank_higher(newcomers: int, works_s: float) -> None:
    """However many more important jobs keep coming, each job gets full turns, in a time that its level bounds."""
    clock = SettableClock()
    queue = JobQueue([make_job(1, priority=50)], clock=clock)
    count, running, ends, turn, waited = 1, None, 0.0, 0.0, 0.0
    longest = 0.0
    turns = 0
    bound = AGE_S * ((newcomers - 50) // 100 + 2) + TURN_S
    while turns < 3:
        if len(queue) < 3:
            count += 1
            queue.add_job(make_job(count, priority=newcomers))
        if running is not None and (clock.now >= ends or outranks_running(queue, running)):
            if running.id == 1:
                turns += clock.now - turn >= TURN_S
                queue.add_job(running)
            elif clock.now < ends:
                queue.add_job(running)
            else:
                queue.forget_job(running.id)
            running = None
        if running is None:
            running = queue.choose_next_job("x")
            assert running is not None
            take_job(queue, running.id)
            ends = clock.now + (1e9 if running.id == 1 else works_s)
            if running.id == 1:
                longest = max(longest, clock.now - waited)
                turn = clock.now
        elif running.id == 1:
            waited = clock.now
        clock.now += 1.0
        assert clock.now - waited < 2 * bound + 2000
    assert turns == 3
    assert longest <= bound + 2000


class QueueMachine(RuleBasedStateMachine):
    """The queue against a list that is sorted again each time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = JobQueue()
        self.model: dict[int, Job] = {}
        self.count = 0

    @rule(device=DEVICES, priority=PRIORITIES, created=st.integers(0, 3))
    def add_job(self, device: str, priority: int, created: int) -> None:
        self.count += 1
        job = make_job(self.count, device=device, priority=priority, created=float(created))
        self.queue.add_job(job)
        self.model[job.id] = job

    @rule(priority=PRIORITIES, data=st.data())
    def raise_priority(self, priority: int, data: st.DataObject) -> None:
        if self.model:
            number = data.draw(st.sampled_from(sorted(self.model)))
            old = self.model[number]
            self.queue.raise_job_priority(old, priority, "asked")
            self.model[number] = replace(old, priority=max(priority, old.priority))

    @rule(number=st.integers(0, 20))
    def remove_job(self, number: int) -> None:
        assert self.queue.remove_job(number) == self.model.pop(number, None)

    @rule(device=DEVICES)
    def run_next(self, device: str) -> None:
        mine = [job for job in self.model.values() if job.device == device]
        expected = min(mine, key=lambda one: (-one.priority, one.created, one.id), default=None)
        assert self.queue.choose_next_job(device) == expected
        if expected is not None:
            self.queue.remove_job(expected.id)
            del self.model[expected.id]

    @invariant()
    def holds_the_same(self) -> None:
        assert {job.id: job for job in self.queue} == self.model
        assert len(self.queue) == len(self.model)
        assert self.queue.devices == {one.device for one in self.model.values()}


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
