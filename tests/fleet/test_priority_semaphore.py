from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import anyio.abc
import pytest
from anyio import wait_all_tasks_blocked

from ktuned.fleet.priority_semaphore import LEVEL, TURN_AGE_S, Turns, age_rank

pytestmark = pytest.mark.anyio


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Hall:
    """Jobs that want a turn, in the order in which they came, and who had one."""

    def __init__(self, turns: Turns, tasks: anyio.abc.TaskGroup) -> None:
        self.turns = turns
        self.served: list[int] = []
        self._tasks = tasks
        self._leaving: dict[int, anyio.Event] = {}
        self.scopes: dict[int, anyio.CancelScope] = {}

    async def come(self, *jobs: int) -> None:
        """Let jobs come, one after the other."""
        for job in jobs:
            self._leaving[job] = anyio.Event()
            self._tasks.start_soon(self._hold, job)
            await wait_all_tasks_blocked()

    async def _hold(self, job: int) -> None:
        with anyio.CancelScope() as self.scopes[job]:
            async with self.turns.hold_turn(job):
                self.served.append(job)
                await self._leaving[job].wait()

    async def leave(self, *jobs: int) -> None:
        """Let jobs end their turns."""
        for job in jobs:
            self._leaving[job].set()
            await wait_all_tasks_blocked()


def ranked(total: int = 1, rank_of: Callable[[int], int] = lambda job: job) -> tuple[Turns, Clock]:
    """Return turns whose ranks are the jobs' numbers, and their clock."""
    clock = Clock()
    turns = Turns(total, rank_of=rank_of, clock=clock)
    return turns, clock


async def test_first_come_first_served_among_equals() -> None:
    """Without anyone who ranks the jobs, the order is that of their coming."""
    async with anyio.create_task_group() as tasks:
        hall = Hall(Turns(), tasks)
        await hall.come(3, 1, 2)
        assert hall.turns.waiting == [1, 2]
        await hall.leave(3, 1, 2)
        assert hall.served == [3, 1, 2]


async def test_highest_rank_first_as_it_is_at_the_choice() -> None:
    """A rank that changes while a job waits counts as it is when the turn is handed out."""
    ranks = {1: 100, 2: 200, 3: 300, 4: 100}
    turns, _ = ranked(rank_of=ranks.__getitem__)
    async with anyio.create_task_group() as tasks:
        hall = Hall(turns, tasks)
        await hall.come(1, 2, 3, 4)
        ranks[4] = 400
        assert turns.waiting == [4, 3, 2]
        await hall.leave(1, 4, 3, 2)
        assert hall.served == [1, 4, 3, 2]


async def test_a_job_that_waits_long_passes_more_important_ones() -> None:
    """However important those are who come later, who waits long enough is served before them."""
    turns, clock = ranked(rank_of=lambda job: 400 if job > 1 else 100)
    async with anyio.create_task_group() as tasks:
        hall = Hall(turns, tasks)
        await hall.come(2, 1, 3)
        await hall.leave(2)
        clock.now += 4 * TURN_AGE_S
        await hall.come(4)
        await hall.leave(3, 1, 4)
        assert hall.served == [2, 3, 1, 4]


async def test_a_larger_total_admits_more_and_a_smaller_one_takes_no_turn_away() -> None:
    """A larger total lets more in at once; a smaller one takes no turn away, and lets no one in until there is room."""
    turns, _ = ranked(1)
    async with anyio.create_task_group() as tasks:
        hall = Hall(turns, tasks)
        await hall.come(1, 2, 3, 4)
        turns.total_tokens = 3
        await wait_all_tasks_blocked()
        assert (hall.served, turns.borrowed_tokens, turns.is_full) == ([1, 4, 3], 3, True)
        turns.total_tokens = 1
        await hall.leave(1, 3)
        assert (hall.served, turns.waiting) == ([1, 4, 3], [2])
        await hall.leave(4)
        assert hall.served == [1, 4, 3, 2]
        await hall.leave(2)
    assert turns.borrowed_tokens == 0


async def test_a_cancelled_job_leaves_the_queue_or_passes_its_turn_on() -> None:
    """Who is cancelled leaves the queue; one whose turn came in the same moment passes it on."""
    turns, _ = ranked()
    async with anyio.create_task_group() as tasks:
        hall = Hall(turns, tasks)
        await hall.come(1, 2, 3)
        hall.scopes[3].cancel()
        await wait_all_tasks_blocked()
        assert turns.waiting == [2]
        await hall.come(4)
        # The turn is handed to 4, which is cancelled before it has run.
        hall._leaving[1].set()
        hall.scopes[4].cancel()
        await wait_all_tasks_blocked()
        assert hall.served == [1, 2]
        await hall.leave(2)
    assert (turns.borrowed_tokens, turns.waiting) == (0, [])


async def test_a_turn_handed_to_a_cancelled_job_goes_to_the_next() -> None:
    """A turn that was handed to someone who is cancelled before he can take it is not lost."""
    turns, _ = ranked()

    async def hold() -> None:
        async with turns.hold_turn(2):
            pytest.fail("was cancelled before it had its turn")

    async with anyio.create_task_group() as tasks:
        hall = Hall(turns, tasks)
        async with turns.hold_turn(9):
            await hall.come(1)
            # A task of asyncio's own: it can be cancelled between the handing over and the taking.
            other = asyncio.create_task(hold())
            await wait_all_tasks_blocked()
        assert turns.waiting == [1]
        other.cancel()
        await asyncio.wait([other])
        await wait_all_tasks_blocked()
        assert hall.served == [1]
        await hall.leave(1)
    assert turns.borrowed_tokens == 0


@pytest.mark.parametrize(
    ("waited_s", "rank"), [(-5.0, 100), (0.0, 100), (9.9, 100), (10.0, 100 + LEVEL), (1e6, 100 + LEVEL * 100_000)]
)
def test_age_raises_a_rank_by_whole_levels(waited_s: float, rank: int) -> None:
    """Each step counts one level, without an end; a clock that went back counts nothing."""
    assert age_rank(100, waited_s, 10.0) == rank


async def test_a_turn_that_is_given_back_early_goes_to_one_other_job() -> None:
    """At once, and only one: the end of its block gives none back that another holds by then."""
    turns = Turns(most_inside_of=lambda total: total + 1)
    async with anyio.create_task_group() as tasks:
        hall = Hall(turns, tasks)
        async with turns.hold_turn(1) as turn:
            await hall.come(2, 3)
            turn.give_back()
            turn.give_back()
            await wait_all_tasks_blocked()
            assert (hall.served, turns.waiting, turns.borrowed_tokens) == ([2], [3], 1)
        assert (hall.served, turns.waiting, turns.borrowed_tokens) == ([2], [3], 1)
        await hall.leave(2, 3)
    assert turns.borrowed_tokens == 0


async def test_jobs_that_gave_their_turn_back_are_bounded_as_well() -> None:
    """Whatever holds them up in their blocks, no more than so many are there: the next one waits for a block's end."""
    turns = Turns(2, most_inside_of=lambda total: total + 1)
    async with anyio.create_task_group() as tasks:
        hall = Hall(turns, tasks)
        async with turns.hold_turn(1) as first:
            async with turns.hold_turn(2) as second:
                first.give_back()
                second.give_back()
                await hall.come(3, 4)
                assert (hall.served, turns.waiting, turns.borrowed_tokens, turns.is_full) == ([3], [4], 1, True)
            await wait_all_tasks_blocked()
            assert (hall.served, turns.borrowed_tokens) == ([3, 4], 2)
        await hall.leave(3, 4)
    assert (turns.borrowed_tokens, turns.is_full) == (0, False)


async def test_turns_set_aside_count_as_nothing_but_are_bounded() -> None:
    """A compiler that waits for something holds up nobody; of such compilers there are at most as many as turns."""
    turns = Turns()
    async with anyio.create_task_group() as tasks:
        hall = Hall(turns, tasks)
        async with turns.hold_turn(1) as first:
            await hall.come(2)
            assert first.set_aside()
            await wait_all_tasks_blocked()
            assert (hall.served, turns.borrowed_tokens) == ([2], 1)
            await hall.leave(2)
            async with turns.hold_turn(3) as second:
                assert not second.set_aside()
                assert turns.is_full
        async with turns.hold_turn(4) as third:
            assert third.set_aside()
    assert (turns.borrowed_tokens, turns.is_full) == (0, False)
