"""Jobs that wait for each other: whose plan holds, who pauses whom, who gets the compile slots."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from ktuned.model.plan import Plan
from ktuned.model.values import Problem
from ktuned.protocol.jobs import JobState, Priority
from ktuned.scheduling.idle_policy import Reading
from ktuned.scheduling.jobs import Intervals
from ktuned.scheduling.queue import Arrival
from ktuned.tuning.progress import estimate_time_left_s
from tests.daemon_parts import Parts, assemble_daemon, make_kernel_text, make_winner_key
from tests.fleet.playground import wait_until

pytestmark = pytest.mark.anyio

GATED = "[dict(us=1.0, does='gate_compile_error', gate='door')]"
FAST = Plan(preset="fast")
OTHER: Problem = {"n": 32}


async def submit_job(
    parts: Parts,
    problem: Problem | None = None,
    priority: int = Priority.REQUESTED,
    plan: Plan = FAST,
    *,
    any_plan: bool = False,
) -> Arrival:
    """Ask for a tuning on the fake device."""
    problem = problem or {"n": 64}
    return await parts.jobs.submit_job(
        make_winner_key(problem), problem, priority=priority, reason="test", plan=plan, any_plan=any_plan
    )


async def test_pauses_outlive_the_daemon(tmp_path: Path) -> None:
    """A paused job and a paused device are paused in the next daemon's life."""
    async with assemble_daemon(tmp_path) as parts:
        job = (await submit_job(parts)).job
        await submit_job(parts, OTHER)
        await parts.jobs.pause_job(job.id)
        await parts.jobs.pause_devices({"Fake CPU"}, is_paused=True)
    async with assemble_daemon(tmp_path) as parts:
        await parts.inspect_file(make_kernel_text(configs=GATED))
        assert parts.jobs.pauses == {"Fake CPU"}
        async with parts.run_jobs():
            await parts.jobs.pause_devices({"Fake CPU"}, is_paused=False)
            parts.open_gate("door")
            ended = await parts.wait_for_job()
            assert ended["id"] != job.id
            (paused,) = parts.jobs.list_live_jobs()
            assert (paused.id, paused.state) == (job.id, JobState.PAUSED)


async def test_launches_order_equals_and_outlive_the_daemon(tmp_path: Path) -> None:
    """The key whose launches take applications the longest goes first, by its winner's latency or its kernel's."""
    async with assemble_daemon(tmp_path) as parts:
        kernel = await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0)]"))
        await parts.record_measurements(kernel, {50.0: 1000.0}, {"n": 1})
        for n in (1, 2, 3):
            await submit_job(parts, {"n": n})
        # Launches of 1,000 us and of as much, since no other latency of the kernel is known.
        await parts.jobs.add_job_launches({make_winner_key({"n": 2}): 10, make_winner_key({"n": 3}): 20})
        await parts.jobs.add_job_launches({make_winner_key({"n": 1}): 0, make_winner_key({"n": 2}): 15})
        assert [job.problem["n"] for job in parts.jobs.list_live_jobs()] == [2, 3, 1]
        assert parts.store.load_launches() == {make_winner_key({"n": 2}): 25, make_winner_key({"n": 3}): 20}
    async with assemble_daemon(tmp_path) as parts:
        await parts.jobs.pause_devices({"Fake CPU"}, is_paused=True)
        async with parts.run_jobs():
            await wait_until(lambda: len(parts.jobs.list_live_jobs()) == 4)
            described = [parts.jobs.describe_job(job) for job in parts.jobs.list_live_jobs()]
            assert [(job.problem["n"], job.launches) for job in described][:3] == [(2, 25), (3, 20), (1, 0)]
            await parts.jobs.cancel_job(described[0].id)
        ended = await parts.wait_for_job()
        assert ended["launches"] == 25


async def test_compile_slots_go_to_the_most_important_job(parts: Parts) -> None:
    """Of two jobs that want the one slot that becomes free, that of higher rank has it, anyone who came first."""
    low = (await submit_job(parts, priority=Priority.BACKGROUND)).job
    high = (await submit_job(parts, OTHER, priority=Priority.SAVED)).job
    slots = parts.fleet.compile_slots
    slots.total_tokens = 1
    had: list[int] = []

    async def compile_for(job: int) -> None:
        async with slots.hold_turn(job):
            had.append(job)

    async with anyio.create_task_group() as tasks, slots.hold_turn(0):
        tasks.start_soon(compile_for, low.id)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(compile_for, high.id)
        await anyio.wait_all_tasks_blocked()
        assert slots.waiting == [high.id, low.id]
        parts.jobs.add_waiter("me", [low.id])
        assert slots.waiting == [low.id, high.id]
        parts.jobs.remove_waiter("me")
    assert had == [high.id, low.id]


async def test_yields_to_others_and_not_to_who_waits(tmp_path: Path) -> None:
    """When others use the machine, a running job stops and says why; while someone waits for it, it runs."""
    readings: list[Reading] = []

    async def read() -> Reading:
        return readings[-1]

    busy = Reading(others=0.9, pressure=0.9)
    readings.append(Reading(pressure=0.0))
    async with assemble_daemon(tmp_path, policy="idle", read=read, intervals=Intervals(reading_s=0.02)) as parts:
        await parts.inspect_file(make_kernel_text(configs=GATED))
        job = (await submit_job(parts, priority=Priority.SAVED)).job
        async with parts.run_jobs():
            await parts.wait_until_reached("door")
            readings.append(busy)
            await parts.recorder.wait_until(lambda: len(parts.recorder.list_events("job_queued")) == 2)
            assert parts.jobs.count_jobs().waits == {"the machine is busy: other programs use 90% of its CPUs": 1}
            (waiting,) = parts.jobs.list_live_jobs()
            assert waiting.message == "made way: the machine is busy: other programs use 90% of its CPUs"
            assert parts.jobs.describe_job(waiting).waits_for.startswith("the machine is busy")
            parts.jobs.add_waiter("me", [job.id])
            parts.open_gate("door")
            ended = await parts.wait_for_job()
            assert ended["id"] == job.id


@pytest.mark.parametrize(
    ("done", "left", "elapsed_s", "time_limit_s", "expected"),
    [
        (0, 10, 5.0, None, None),
        (5, 10, 5.0, None, 10.0),
        (5, None, 5.0, None, None),
        (5, None, 5.0, 8.0, 3.0),
        (5, 10, 5.0, 8.0, 3.0),
        (5, 1, 5.0, 60.0, 1.0),
        (5, 10, 9.0, 8.0, 0.0),
        (5, -1, 5.0, None, 0.0),
    ],
)
def test_time_left_follows_the_pace_within_the_budget(
    done: int, left: int | None, elapsed_s: float, time_limit_s: float | None, expected: float | None
) -> None:
    """By the pace of what took time, at most the budget's rest; unknown while nothing can be said."""
    assert estimate_time_left_s(tried=done, remaining=left, elapsed_s=elapsed_s, time_limit_s=time_limit_s) == expected
