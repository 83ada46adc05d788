from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from ktuned.model.keys import make_key_problem
from ktuned.model.plan import Plan
from ktuned.protocol.jobs import Job, JobState
from ktuned.scheduling.queue import EVERYTHING, JobQueue, LaunchCost, extend_plan
from ktuned.scheduling.ranks import AGE_S, HALF_LIFE_S, TURN_S
from tests.scheduling.waiting_jobs import make_job

DEVICES = st.sampled_from(["x", "y"])
PRIORITIES = st.sampled_from([100, 200, 300, 400])


def start_job(queue: JobQueue, one: Job) -> Job:
    """Return a job that was taken out to run."""
    queue.add_job(one)
    take_job(queue, one.id)
    return one


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


@pytest.mark.parametrize(("asked", "expected"), [(100, (200, "asked")), (200, (200, "asked")), (300, (300, "saved"))])
def test_priority_only_rises(asked: int, expected: tuple[int, str]) -> None:
    """Someone less important who asks too changes nothing."""
    queue = JobQueue([make_job(1)])
    raised = queue.raise_job_priority(make_job(1), asked, "saved")
    assert (raised.priority, raised.reason) == expected
    assert queue.get_job(1) == raised


def test_held_job_waits_until_its_kernel_is_released() -> None:
    """It neither runs nor preempts, and others pass it; it is still found, listed and removable."""
    queue = JobQueue([make_job(1), make_job(2, kernel="p:other")])
    queue.hold_until_inspected(1)
    assert queue.choose_next_job("x") == queue.get_job(2)
    assert queue.find_matching_job(make_job(1).key) is not None
    queue.remove_job(2)
    assert queue.choose_next_job("x") is None
    assert not outranks_running(queue, start_job(queue, make_job(3, priority=100)))
    queue.release_jobs_of_kernel("p:other")
    assert queue.choose_next_job("x") is None
    queue.release_jobs_of_kernel("p:k")
    assert queue.choose_next_job("x") == queue.get_job(1)
    queue.hold_until_inspected(1)
    queue.remove_job(1)
    queue.add_job(make_job(1))
    assert queue.choose_next_job("x") == queue.get_job(1)


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


def test_who_waits_lifts_a_job_until_he_leaves() -> None:
    """The job goes first while someone waits for it, and falls back to what it was asked for with."""
    queue = JobQueue([make_job(1, priority=300), make_job(2, priority=100), make_job(3, priority=100)])
    queue.add_waiter("me", [2, 99])
    queue.add_waiter("you", [2])
    assert [job.id for job in queue] == [2, 1, 3]
    assert (queue.find_level(2), queue.count_waiters(2)) == (400, 2)
    take_job(queue, 2)
    assert not outranks_running(queue, make_job(2))
    queue.remove_waiter("me")
    assert not outranks_running(queue, make_job(2))
    queue.remove_waiter("you")
    assert outranks_running(queue, make_job(2))
    queue.add_job(make_job(2, priority=100))
    assert [one.id for one in queue] == [1, 2, 3]


def test_given_priority_holds_whoever_waits() -> None:
    """Who gives a priority means it; the next one who asks without giving one may lift the job."""
    queue = JobQueue()
    queue.add_job(make_job(1, priority=100), is_fixed=True)
    queue.add_waiter("me", [1])
    assert queue.find_level(1) == 100
    queue.raise_job_priority(make_job(1, priority=100), 200, "looked up")
    assert queue.find_level(1) == 400


def test_lookups_order_equals_by_how_many_and_how_recent() -> None:
    """Of jobs of one rank the one that is looked up more goes first, and old lookups count less and less."""
    clock = SettableClock()
    queue = JobQueue([make_job(1), make_job(2), make_job(3, priority=300)], clock=clock)
    queue.count_lookups(make_job(2).key, 3)
    queue.count_lookups(make_job(9).key)
    assert [job.id for job in queue] == [3, 2, 1]
    clock.now += 2 * HALF_LIFE_S - 1
    queue.count_lookups(make_job(1).key)
    # Three lookups have become less than one.
    assert [one.id for one in queue] == [3, 1, 2]


def test_what_costs_applications_most_goes_first_among_equals() -> None:
    """By the seconds of a key's launches, whatever it is tuned for; before lookups and age, and after the rank."""
    by_energy = Plan(objective="min:energy")
    queue = JobQueue([make_job(1), make_job(2), make_job(3, plan=by_energy), make_job(4, priority=300)])
    queue.count_lookups(make_job(1).key, 3)
    queue.record_launch_cost(make_job(2).key, LaunchCost(launches=10, cost_s=2.0))
    queue.record_launch_cost(make_job(3).key, LaunchCost(launches=1000, cost_s=3.0))
    assert [job.id for job in queue] == [4, 3, 2, 1]
    queue.record_launch_cost(make_job(2).key, LaunchCost(launches=20, cost_s=4.0))
    assert [one.id for one in queue] == [4, 2, 3, 1]
    assert (
        queue.find_launch_cost(make_job(3, plan=by_energy).key).launches,
        queue.find_launch_cost(make_job(1).key).launches,
    ) == (1000, 0)


def test_only_so_many_uses_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key that was noted longest ago is forgotten."""
    monkeypatch.setattr("ktuned.scheduling.queue.MAX_USES", 2)
    queue = JobQueue()
    for number in (1, 2, 1, 3):
        queue.record_launch_cost(make_job(number).key, LaunchCost(number, 1.0))
    assert [queue.find_launch_cost(make_job(number).key).launches for number in (1, 2, 3)] == [1, 0, 3]


def test_pauses_keep_from_running_and_make_no_age() -> None:
    """A paused job, a paused device and a pause of everything each say why; others pass; a pause is no waiting."""
    clock = SettableClock()
    queue = JobQueue([make_job(1), make_job(2, priority=100), make_job(3, device="y")], clock=clock)
    assert queue.pause_job(1).state is JobState.PAUSED
    assert [queue.explain_wait(job) for job in queue] == ["", "", "it is paused"]
    assert queue.choose_next_job("x") == queue.get_job(2)
    clock.now += 10 * AGE_S
    assert queue.resume_job(1).state is JobState.QUEUED
    assert queue.find_rank(1) == 200
    queue.pauses = {"x"}
    assert (queue.choose_next_job("x"), queue.choose_next_job("y")) == (None, queue.get_job(3))
    assert queue.explain_wait(make_job(1)) == "its device is paused"
    queue.pauses = {EVERYTHING}
    assert queue.choose_next_job("y") is None
    assert queue.explain_wait(make_job(3, device="y")) == "all tuning is paused"


def test_a_turn_that_was_waited_for_is_not_taken_away() -> None:
    """A job that has waited its way past a more important one works for a turn, then makes way and waits again."""
    clock = SettableClock()
    queue = JobQueue([make_job(1, priority=100)], clock=clock)
    clock.now += 4 * AGE_S
    waits = make_job(2, priority=400)
    queue.add_job(waits)
    first = queue.choose_next_job("x")
    assert first is not None
    assert (first.id, queue.find_rank(1)) == (1, 500)
    take_job(queue, 1)
    assert not outranks_running(queue, first)
    clock.now += TURN_S - 1
    assert not outranks_running(queue, first)
    clock.now += 1
    assert outranks_running(queue, first)
    queue.add_job(first)
    assert queue.choose_next_job("x") == waits
    assert queue.find_rank(1) == 100


def test_a_turn_that_was_cut_short_counts_as_waiting() -> None:
    """What makes way before it had its turn has waited on."""
    clock = SettableClock()
    queue = JobQueue([make_job(1, priority=100)], clock=clock)
    take_job(queue, 1)
    clock.now += TURN_S - 1
    queue.add_job(make_job(1, priority=100))
    clock.now += AGE_S - TURN_S + 1
    assert queue.find_rank(1) == 200


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
