"""Stopping a job: its processes are killed, its slot and lane are free, and nothing is half recorded."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ktuned.model.values import Outcome
from tests.daemon_parts import Parts, make_kernel_text
from tests.fleet.playground import is_running, wait_until, wait_until_gone
from tests.tuning.jobs import submit_job

pytestmark = pytest.mark.anyio

COMPILING = "[dict(us=50.0, does='gate_compile', gate='door')]"
MEASURING = "[dict(us=50.0, does='work', gate='door')]"

Stop = Callable[[Parts, int], Awaitable[object]]


async def cancel_job(parts: Parts, job: int) -> None:
    """Stop a job on request."""
    await parts.jobs.cancel_job(job)


async def cancel_jobs_of_kernel(parts: Parts, job: int) -> None:
    """Stop a job because its kernel changed."""
    await parts.jobs.cancel_jobs_of_kernel("project:it")


@pytest.mark.parametrize(("configs", "stop"), [(COMPILING, cancel_job), (MEASURING, cancel_jobs_of_kernel)])
async def test_a_stopped_job_frees_its_slot_and_its_lane_at_once(parts: Parts, configs: str, stop: Stop) -> None:
    """When its end is reported, its worker is dead, its slot and lane are free, and its config has no outcome of its
    own.
    """
    await parts.inspect_file(make_kernel_text(configs=configs))
    async with parts.run_jobs():
        job = await submit_job(parts)
        await parts.wait_until_reached("door")
        # The worker of an open lane that does not measure yet may stay.
        compilers = [entry.pid for entry in parts.fleet.describe_workers() if entry.role == "compile"]
        benches = [lane.worker_pid for lane in parts.jobs.list_lanes() if lane.worker_pid]
        working_pids = compilers if configs == COMPILING else benches
        assert working_pids
        await stop(parts, job)
        ended_job = await parts.wait_for_job()
        assert ended_job["id"] == job
        assert (parts.fleet.compile_slots.borrowed_tokens, parts.fleet.gate.state) == (0, "open")
        assert all(lane.state == "ready" for lane in parts.jobs.list_lanes())
        await wait_until_gone(working_pids)
        assert {trial.outcome for trial in parts.store.list_trials()} == {Outcome.CANCELLED}
        assert parts.store.list_winners() == []
        # The next job gets both, and the config is as if untried.
        parts.open_gate("door")
        await submit_job(parts)
        await parts.recorder.wait_for_ended_jobs(2)
    assert [trial.outcome for trial in parts.store.list_trials()] == [Outcome.MEASURED]


async def test_a_stopped_compiles_processes_are_killed(parts: Parts, tmp_path: Path) -> None:
    """The compiler and its detached children end with the job."""
    await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0, does='compile_detached', gate='')]"))

    def list_compiler_children() -> list[int]:
        compilers = [entry.pid for entry in parts.fleet.describe_workers() if entry.role == "compile"]
        return [pid for parent in compilers for pid in list_descendants(parent)]

    async with parts.run_jobs():
        job = await submit_job(parts)
        await wait_until(lambda: len(list_compiler_children()) > 1)
        child_pids = list_compiler_children()
        await cancel_job(parts, job)
        await parts.recorder.wait_for_ended_jobs()
        await wait_until_gone(child_pids)
        assert not any(is_running(pid) for pid in child_pids)


def list_descendants(pid: int) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found += [int(name), *list_descendants(int(name))]
    return found
