"""One step of work in each round of the event loop."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import anyio
import pytest

from ktuned.fleet.quiet import Pace

pytestmark = pytest.mark.anyio


async def test_the_loop_looks_at_its_sockets_between_two_steps() -> None:
    """Other work of the loop gets its turn after each step, however many tasks run."""
    pace, order = Pace(), list[str]()
    loop = asyncio.get_running_loop()

    async def run_step(number: int) -> None:
        await pace.wait_for_step()
        order.append(f"step {number}")

    def record_look() -> None:
        order.append("look")
        if sum(entry.startswith("step") for entry in order) < 5:
            loop.call_soon(record_look)

    loop.call_soon(record_look)
    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(run_step, number)
    steps = [index for index, entry in enumerate(order) if entry.startswith("step")]
    assert [order[index] for index in steps] == [f"step {number}" for number in range(5)]
    assert all("look" in order[first:second] for first, second in pairwise(steps))


async def test_a_lone_step_waits_for_nothing() -> None:
    pace = Pace()
    coroutine = pace.wait_for_step()
    with pytest.raises(StopIteration):
        coroutine.send(None)
    await anyio.wait_all_tasks_blocked()


async def test_tasks_that_are_cancelled_hold_up_no_others() -> None:
    """Tasks behind a cancelled one get their steps, and the pace is free afterwards."""
    pace, done = Pace(), list[int]()

    async def run_step(number: int) -> None:
        await pace.wait_for_step()
        done.append(number)

    first, second, third = (asyncio.ensure_future(run_step(number)) for number in (1, 2, 3))
    await asyncio.sleep(0)
    assert pace.waiting == 2
    second.cancel()
    with anyio.fail_after(5):
        await asyncio.wait([first, third])
    assert done == [1, 3]
    await anyio.wait_all_tasks_blocked()
    assert pace.waiting == 0
    await pace.wait_for_step()
