from __future__ import annotations

import asyncio
from collections.abc import Callable

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

    async def end_turns(self, *jobs: int) -> None:
        """Let jobs end their turns."""
        for job in jobs:
            self._ends[job].set()
            await wait_all_tasks_blocked()


def make_ranked_turns(total: int = 1, rank_of: Callable[[int], int] = lambda job: job) -> tuple[Turns, SettableClock]:
    """Return turns that rank jobs by their numbers, and their clock."""
    clock = SettableClock()
    turns = Turns(total, rank_of=rank_of, clock=clock)
    return turns, clock


async def test_first_come_first_served_among_equals() -> None:
    """Jobs without a rank keep their order."""
    async with anyio.create_task_group() as tasks:
        jobs = WaitingJobs(Turns(), tasks)
        await jobs.add_jobs(3, 1, 2)
        assert jobs.turns.waiting == [1, 2]
        await jobs.end_turns(3, 1, 2)
        assert jobs.served == [3, 1, 2]


async def test_highest_rank_first_as_it_is_at_the_choice() -> None:
    """The rank at the time of the choice counts, even if it changed meanwhile."""
    ranks = {1: 100, 2: 200, 3: 300, 4: 100}
    turns, _ = make_ranked_turns(rank_of=ranks.__getitem__)
    async with anyio.create_task_group() as tasks:
        jobs = WaitingJobs(turns, tasks)
        await jobs.add_jobs(1, 2, 3, 4)
        ranks[4] = 400
        assert turns.waiting == [4, 3, 2]
        await jobs.end_turns(1, 4, 3, 2)
        assert jobs.served == [1, 4, 3, 2]


async def test_a_job_that_waits_long_passes_more_important_ones() -> None:
    """A job that waits long enough precedes later jobs, however important they are."""
    turns, clock = make_ranked_turns(rank_of=lambda job: 400 if job > 1 else 100)
    async with anyio.create_task_group() as tasks:
        jobs = WaitingJobs(turns, tasks)
        await jobs.add_jobs(2, 1, 3)
        await jobs.end_turns(2)
        clock.now += 4 * TURN_AGE_S
        await jobs.add_jobs(4)
        await jobs.end_turns(3, 1, 4)
        assert jobs.served == [2, 3, 1, 4]


async def test_a_larger_total_admits_more_and_a_smaller_one_takes_no_turn_away() -> None:
    """A larger total admits more jobs at once; after a reduction nobody is admitted until there is room."""
    turns, _ = make_ranked_turns(1)
    async with anyio.create_task_group() as tasks:
        jobs = WaitingJobs(turns, tasks)
        await jobs.add_jobs(1, 2, 3, 4)
        turns.total_tokens = 3
        await wait_all_tasks_blocked()
        assert (jobs.served, turns.borrowed_tokens, turns.is_full) == ([1, 4, 3], 3, True)
        turns.total_tokens = 1
        await jobs.end_turns(1, 3)
        assert (jobs.served, turns.waiting) == ([1, 4, 3], [2])
        await jobs.end_turns(4)
        assert jobs.served == [1, 4, 3, 2]
        await jobs.end_turns(2)
    assert turns.borrowed_tokens == 0


async def test_a_cancelled_job_leaves_the_queue_or_passes_its_turn_on() -> None:
    """A job that is cancelled when it gets its turn passes the turn on."""
    turns, _ = make_ranked_turns()
    async with anyio.create_task_group() as tasks:
        jobs = WaitingJobs(turns, tasks)
        await jobs.add_jobs(1, 2, 3)
        jobs.scopes[3].cancel()
        await wait_all_tasks_blocked()
        assert turns.waiting == [2]
        await jobs.add_jobs(4)
        # The turn is given to 4, which is cancelled before it runs.
        jobs._ends[1].set()
        jobs.scopes[4].cancel()
        await wait_all_tasks_blocked()
        assert jobs.served == [1, 2]
        await jobs.end_turns(2)
    assert (turns.borrowed_tokens, turns.waiting) == (0, [])


async def test_a_turn_handed_to_a_cancelled_job_goes_to_the_next() -> None:
    """The turn is not lost."""
    turns, _ = make_ranked_turns()

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
