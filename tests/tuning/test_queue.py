from __future__ import annotations

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ktuned.model import Job, JobState, Plan
from ktuned.tuning.queue import JobQueue, identity

DEVICES = st.sampled_from(["x", "y"])
PRIORITIES = st.sampled_from([100, 200, 300, 400])


def job(number: int, **changes: Any) -> Job:
    """Return a waiting job."""
    base = Job(number, "p:k", {"M": number}, "x", JobState.QUEUED, 200, "asked", Plan(), created=float(number))
    return replace(base, **changes)


def test_important_first_then_oldest() -> None:
    """Priority decides, then age, then the id; another device's jobs are not considered."""
    queue = JobQueue([job(3), job(1, priority=100), job(4, created=3.0), job(2, priority=300), job(5, device="y")])
    assert [one.id for one in queue] == [2, 3, 4, 5, 1]
    order = []
    while (first := queue.next_for("x")) is not None:
        order.append(first.id)
        queue.remove(first.id)
    assert order == [2, 3, 4, 1]
    assert queue.devices == {"y"}


def test_same_work_is_found_whatever_the_order_of_its_keys() -> None:
    """Kernel, problem and device make the work; neither a key's place nor the plan does."""
    queue = JobQueue([job(1, problem={"M": 1, "N": 2})])
    same = job(9, problem={"N": 2, "M": 1}, plan=Plan(trials=3))
    assert queue.find(identity(same)) == queue.get(1)
    for other in ({"problem": {"M": 1, "N": 2.0}}, {"kernel": "p:other"}, {"device": "y"}):
        assert queue.find(identity(replace(same, **other))) is None


@pytest.mark.parametrize(("asked", "expected"), [(100, (200, "asked")), (200, (200, "asked")), (300, (300, "saved"))])
def test_priority_only_rises(asked: int, expected: tuple[int, str]) -> None:
    """Somebody less important who asks too changes nothing."""
    queue = JobQueue([job(1)])
    raised = queue.raise_priority(1, asked, "saved")
    assert (raised.priority, raised.reason) == expected
    assert queue.get(1) == raised


@pytest.mark.parametrize(("running", "preempts"), [(100, True), (200, False), (300, False)])
def test_only_more_important_work_preempts(running: int, preempts: bool) -> None:
    """Equals wait their turn; so does another device's job."""
    assert JobQueue([job(1)]).preempts(job(2, priority=running)) is preempts
    assert not JobQueue([job(1, device="y", priority=400)]).preempts(job(2))
    assert not JobQueue().preempts(job(2))


def test_held_job_waits_until_its_kernel_is_released() -> None:
    """It neither runs nor preempts, and others pass it; it is still found, listed and removable."""
    queue = JobQueue([job(1), job(2, kernel="p:other")])
    queue.hold(1)
    assert queue.next_for("x") == queue.get(2)
    assert queue.find(identity(job(1))) is not None
    queue.remove(2)
    assert queue.next_for("x") is None
    assert not queue.preempts(job(3, priority=100))
    queue.release("p:other")
    assert queue.next_for("x") is None
    queue.release("p:k")
    assert queue.next_for("x") == queue.get(1)
    queue.hold(1)
    queue.remove(1)
    queue.add(job(1))
    assert queue.next_for("x") == queue.get(1)


class QueueMachine(RuleBasedStateMachine):
    """The queue against a list that is sorted anew each time."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = JobQueue()
        self.model: dict[int, Job] = {}
        self.count = 0

    @rule(device=DEVICES, priority=PRIORITIES, created=st.integers(0, 3))
    def add(self, device: str, priority: int, created: int) -> None:
        self.count += 1
        one = job(self.count, device=device, priority=priority, created=float(created))
        self.queue.add(one)
        self.model[one.id] = one

    @rule(priority=PRIORITIES, data=st.data())
    def raise_priority(self, priority: int, data: st.DataObject) -> None:
        if self.model:
            number = data.draw(st.sampled_from(sorted(self.model)))
            self.queue.raise_priority(number, priority, "asked")
            old = self.model[number]
            self.model[number] = replace(old, priority=max(priority, old.priority))

    @rule(number=st.integers(0, 20))
    def remove(self, number: int) -> None:
        assert self.queue.remove(number) == self.model.pop(number, None)

    @rule(device=DEVICES)
    def run_next(self, device: str) -> None:
        mine = [one for one in self.model.values() if one.device == device]
        expected = min(mine, key=lambda one: (-one.priority, one.created, one.id), default=None)
        assert self.queue.next_for(device) == expected
        if expected is not None:
            self.queue.remove(expected.id)
            del self.model[expected.id]

    @invariant()
    def holds_the_same(self) -> None:
        assert {one.id: one for one in self.queue} == self.model
        assert len(self.queue) == len(self.model)
        assert self.queue.devices == {one.device for one in self.model.values()}


TestQueueMachine = QueueMachine.TestCase
TestQueueMachine.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
