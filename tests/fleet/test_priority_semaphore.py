from __future__ import annotations

import asyncio
import re

import anyio
import anyio.abc
import pytest
from anyio import wait_all_tasks_blocked

from ktuned.fleet.priority_semaphore import LEVEL, TURN_AGE_S, Turns, age_rank
from tests.clocks import SettableClock

pytestmark = pytest.mark.anyio


class WaitingJobs:
    """Jobs that want a turn, in the order in which they came, and the jobs that had one."""

    def __init__(self, turns: Turns, tasks: anyio.abc.TaskGroup) -> None:
        self.turns = turns
        self.served: list[int] = []
        self._tasks = tasks
        self._ends: dict[int, anyio.Event] = {}
        self.scopes: dict[int, anyio.CancelScope] = {}

    async def add_jobs(self, *jobs: int) -> None:
        """Add jobs one after the other."""
        for job in jobs:
            self._ends[job] = anyio.Event()
            self._tasks.start_soon(self._hold_turn, job)
            await wait_all_tasks_blocked()

    async def _hold_turn(self, job: int) -> None:
        with anyio.CancelScope() as self.scopes[job]:
            async with self.turns.hold_turn(job):
                self.served.append(job)
                await self._ends[job].wait()

    async def act(self, action: str) -> None:
        """Carry out the action of a story."""
        for kind, job in re.findall(r"([-+!])(\d+)", action):
            if kind == "+":
                await self.add_jobs(int(job))
            elif kind == "-":
                self._ends[int(job)].set()
            else:
                self.scopes[int(job)].cancel()
        await wait_all_tasks_blocked()

    async def end_turns(self, *jobs: int) -> None:
        """Let jobs end their turns."""
        for job in jobs:
            self._ends[job].set()
            await wait_all_tasks_blocked()


STORIES = {
    "first come, first served among equals": "equal; +3 +1 +2: 3 | 1 2; -3 -1 -2: 3 1 2 |",
    "the highest rank first, as it is when the choice is made": """
        +100 +200 +300 +101: 100 | 300 200 101; raise 101; -100 -101 -300 -200: 100 101 300 200 |""",
    "a job that waits long passes those that come later, however important they are": f"""
        +400 +100 +401 -400; age {4 * TURN_AGE_S}; +402 -401 -100 -402: 400 401 100 402 |""",
    "a larger total admits more, and a smaller one takes no turn away": """
        +1 +2 +3 +4: 1 | 4 3 2; total 3: 1 4 3 | 2; total 1; -1 -3: 1 4 3 | 2; -4: 1 4 3 2 |; -2""",
    "a cancelled job leaves the queue": "+1 +2 +3 !3: 1 | 2; -1: 1 2 |; -2",
    "a job that is cancelled when it gets its turn passes the turn on": "+1 +2 +4; -1!4: 1 2 |; -2",
}
"""Steps of ``actions: who had a turn | who waits``. A job, which is named by its rank, comes (+), ends its turn (-), or
is cancelled (!).
"""


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
async def test_who_has_a_turn(story: str) -> None:
    clock, raised = SettableClock(), set[int]()
    turns = Turns(rank_of=lambda job: 0 if "equal" in story else 1000 if job in raised else job, clock=clock)
    async with anyio.create_task_group() as tasks:
        jobs = WaitingJobs(turns, tasks)
        for step in re.split(r";|\n", story.strip()):
            actions, _, expected = step.strip().partition(": ")
            match actions.split():
                case ["raise", job]:
                    raised.add(int(job))
                case ["age", seconds]:
                    clock.now += float(seconds)
                case ["total", total]:
                    turns.total_tokens = int(total)
                    await wait_all_tasks_blocked()
                case words:
                    for word in words:
                        await jobs.act(word)
            seen = f"{' '.join(map(str, jobs.served))} | {' '.join(map(str, turns.waiting))}".strip()
            assert seen == expected or not expected, step
    assert (turns.borrowed_tokens, turns.waiting) == (0, [])


async def test_a_turn_handed_to_a_cancelled_job_goes_to_the_next() -> None:
    """The turn is not lost."""
    turns = Turns(rank_of=lambda job: job)

    async def hold() -> None:
        async with turns.hold_turn(2):
            pytest.fail("was cancelled before it had its turn")

    async with anyio.create_task_group() as tasks:
        jobs = WaitingJobs(turns, tasks)
        async with turns.hold_turn(9):
            await jobs.add_jobs(1)
            # A task of asyncio can be cancelled between getting the turn and taking it.
            other = asyncio.create_task(hold())
            await wait_all_tasks_blocked()
        assert turns.waiting == [1]
        other.cancel()
        await asyncio.wait([other])
        await wait_all_tasks_blocked()
        assert jobs.served == [1]
        await jobs.end_turns(1)
    assert turns.borrowed_tokens == 0


@pytest.mark.parametrize(
    ("waited_s", "rank"), [(-5.0, 100), (0.0, 100), (9.9, 100), (10.0, 100 + LEVEL), (1e6, 100 + LEVEL * 100_000)]
)
def test_age_raises_a_rank_by_whole_levels(waited_s: float, rank: int) -> None:
    """Each step raises the rank by one level, without limit; a clock that was set back has no effect."""
    assert age_rank(100, waited_s, 10.0) == rank


async def test_a_turn_that_is_given_back_early_goes_to_one_other_job() -> None:
    """The turn passes on at once; the end of the block does not return it a second time."""
    turns = Turns(most_inside_of=lambda total: total + 1)
    async with anyio.create_task_group() as tasks:
        jobs = WaitingJobs(turns, tasks)
        async with turns.hold_turn(1) as turn:
            await jobs.add_jobs(2, 3)
            turn.give_back()
            turn.give_back()
            await wait_all_tasks_blocked()
            assert (jobs.served, turns.waiting, turns.borrowed_tokens) == ([2], [3], 1)
        assert (jobs.served, turns.waiting, turns.borrowed_tokens) == ([2], [3], 1)
        await jobs.end_turns(2, 3)
    assert turns.borrowed_tokens == 0


async def test_jobs_that_gave_their_turn_back_are_bounded_as_well() -> None:
    """The number of blocks is bounded: the next job waits for the end of a block."""
    turns = Turns(2, most_inside_of=lambda total: total + 1)
    async with anyio.create_task_group() as tasks:
        jobs = WaitingJobs(turns, tasks)
        async with turns.hold_turn(1) as first:
            async with turns.hold_turn(2) as second:
                first.give_back()
                second.give_back()
                await jobs.add_jobs(3, 4)
                assert (jobs.served, turns.waiting, turns.borrowed_tokens, turns.is_full) == ([3], [4], 1, True)
            await wait_all_tasks_blocked()
            assert (jobs.served, turns.borrowed_tokens) == ([3, 4], 2)
        await jobs.end_turns(3, 4)
    assert (turns.borrowed_tokens, turns.is_full) == (0, False)


async def test_turns_set_aside_count_as_nothing_but_are_bounded() -> None:
    """A compiler that waits for something holds up nobody; of such compilers there are at most as many as turns."""
    turns = Turns()
    async with anyio.create_task_group() as tasks:
        jobs = WaitingJobs(turns, tasks)
        async with turns.hold_turn(1) as first:
            await jobs.add_jobs(2)
            assert first.set_aside()
            await wait_all_tasks_blocked()
            assert (jobs.served, turns.borrowed_tokens) == ([2], 1)
            await jobs.end_turns(2)
            async with turns.hold_turn(3) as second:
                assert not second.set_aside()
                assert turns.is_full
        async with turns.hold_turn(4) as third:
            assert third.set_aside()
    assert (turns.borrowed_tokens, turns.is_full) == (0, False)
