"""Stopping a job: what runs for it is killed, its slot and its lane are free, and nothing is half recorded."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ktuned.model.plan import Plan
from ktuned.model.values import Outcome
from tests.daemon_parts import Parts, make_kernel_text, make_winner_key
from tests.fleet.playing import gone, is_running, until

pytestmark = pytest.mark.anyio

COMPILING = "[dict(us=50.0, does='gate_compile', gate='door')]"
MEASURING = "[dict(us=50.0, does='work', gate='door')]"

Stop = Callable[[Parts, int], Awaitable[object]]


async def submit(parts: Parts, problem: dict[str, int]) -> int:
    """Ask for a tuning; return the job."""
    plan = Plan(preset="fast", strategy="exhaustive")
    arrival = await parts.jobs.submit_job(make_winner_key(problem), problem, priority=100, reason="test", plan=plan)
    return arrival.job.id


async def cancel(parts: Parts, job: int) -> None:
    """Stop a job because someone says so."""
    await parts.jobs.cancel_job(job)


async def supersede(parts: Parts, job: int) -> None:
    """Stop a job because its kernel changed."""
    await parts.jobs.cancel_jobs_of_kernel("project:it")


@pytest.mark.parametrize(("configs", "stop"), [(COMPILING, cancel), (MEASURING, supersede)])
async def test_a_stopped_job_frees_its_slot_and_its_lane_at_once(parts: Parts, configs: str, stop: Stop) -> None:
    """When its end is reported, its worker is dead, its slot and its lane are free, and its config says nothing."""
    await parts.inspect_file(make_kernel_text(configs=configs))
    async with parts.run_jobs():
        job = await submit(parts, {"n": 64})
        await parts.wait_until_reached("door")
        # Of a lane that is open, and has nothing to measure yet, the worker may stay.
        compilers = [entry.pid for entry in parts.fleet.describe_workers() if entry.role == "compile"]
        benches = [lane.worker_pid for lane in parts.jobs.list_lanes() if lane.worker_pid]
        at_work = compilers if configs == COMPILING else benches
        assert at_work
        await stop(parts, job)
        (ended,) = await parts.recorder.wait_for_ended_jobs()
        assert ended["id"] == job
        assert (parts.fleet.compile_slots.borrowed_tokens, parts.fleet.gate.state) == (0, "open")
        assert all(lane.state == "ready" for lane in parts.jobs.list_lanes())
        await gone(at_work)
        assert {trial.outcome for trial in parts.store.list_trials()} == {Outcome.CANCELLED}
        assert parts.store.list_winners() == []
        # Who comes next has both, and finds the config as if no one had tried it.
        parts.open_gate("door")
        await submit(parts, {"n": 64})
        await parts.recorder.wait_for_ended_jobs(2)
    assert [trial.outcome for trial in parts.store.list_trials()] == [Outcome.MEASURED]


async def test_a_stopped_compiles_processes_are_killed(parts: Parts, tmp_path: Path) -> None:
    """A compiler, and what it detached from itself, is gone with the job that wanted it."""
    await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0, does='compile_detached', gate='')]"))

    def children() -> list[int]:
        compilers = [entry.pid for entry in parts.fleet.describe_workers() if entry.role == "compile"]
        return [pid for parent in compilers for pid in _descendants(parent)]

    async with parts.run_jobs():
        job = await submit(parts, {"n": 64})
        await until(lambda: len(children()) > 1)
        started = children()
        await cancel(parts, job)
        await parts.recorder.wait_for_ended_jobs()
        await gone(started)
        assert not any(is_running(pid) for pid in started)


def _descendants(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found += [int(name), *_descendants(int(name))]
    return found
