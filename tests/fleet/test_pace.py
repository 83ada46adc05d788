"""One step of work in each round of the event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import anyio
import pytest

from ktuned.fleet.quiet import Pace

pytestmark = pytest.mark.anyio


async def test_the_loop_looks_at_its_sockets_between_two_steps() -> None:
    """However many tasks go on at once, something else of the loop has its turn after each."""
    pace, order = Pace(), list[str]()
    loop = asyncio.get_running_loop()

    async def work(number: int) -> None:
        await pace.wait_for_step()
        order.append(f"step {number}")

    def look() -> None:
        order.append("look")
        if sum(one.startswith("step") for one in order) < 5:
            loop.call_soon(look)

    loop.call_soon(look)
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(work, number)
    steps = [place for place, one in enumerate(order) if one.startswith("step")]
    assert [order[place] for place in steps] == [f"step {number}" for number in range(5)]
    assert all("look" in order[first:second] for first, second in pairwise(steps))


async def test_a_lone_step_waits_for_nothing() -> None:
    """With one lane there is nothing to wait for."""
    pace = Pace()
    coroutine = pace.wait_for_step()
    with pytest.raises(StopIteration):
        coroutine.send(None)
    await anyio.wait_all_tasks_blocked()


async def test_tasks_that_are_cancelled_hold_up_no_others() -> None:
    """Those behind one that went away have their steps, and the pace is free afterwards."""
    pace, done = Pace(), list[int]()

    async def work(number: int) -> None:
        await pace.wait_for_step()
        done.append(number)

    first, second, third = (asyncio.ensure_future(work(number)) for number in (1, 2, 3))
    await asyncio.sleep(0)
    assert pace.waiting == 2
    second.cancel()
    with anyio.fail_after(5):
        await asyncio.wait([first, third])
    assert done == [1, 3]
    await anyio.wait_all_tasks_blocked()
    assert pace.waiting == 0
    await pace.wait_for_step()
