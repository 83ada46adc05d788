"""A lane is opened while the first configs still compile, unless nobody waits for it."""

from __future__ import annotations

import pytest

from ktuned.fleet.lanes import Lane
from ktuned.protocol import WorkerInfo
from ktuned.protocol.jobs import Priority
from tests.daemon_parts import Parts, make_kernel_text
from tests.fleet.playground import wait_until
from tests.tuning.jobs import submit_job

pytestmark = pytest.mark.anyio

GATED_REFERENCE = "lambda x: (ktuned_fake.wait_at('reference'), 2 * x)[1]"
"""A reference that delays the opening of its problem until the gate opens."""


async def inspect_and_submit(parts: Parts, configs: str, reference: str = GATED_REFERENCE) -> int:
    """Inspect a kernel whose reference waits, submit a job and return its id."""
    await parts.inspect_file("import ktuned_fake\n" + make_kernel_text(configs=configs, reference=reference))
    return await submit_job(parts, priority=Priority.REQUESTED)


def get_only_lane(parts: Parts) -> Lane:
    (lane,) = parts.jobs.list_lanes()
    return lane


def list_bench_workers(parts: Parts) -> list[WorkerInfo]:
    """Return the workers that measure or could measure."""
    return [worker for worker in parts.fleet.describe_workers() if worker.role == "bench"]


async def test_a_lane_is_opened_during_the_first_compile(parts: Parts) -> None:
    """Both run at the same time; then the first config is measured on the lane that is already open."""
    job = await inspect_and_submit(parts, "[dict(does='gate_compile', gate='door')]")
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        await parts.wait_until_reached("reference")
        assert (get_only_lane(parts).state, get_only_lane(parts).job) == ("busy", job)
        parts.open_gate("reference")
        await wait_until(lambda: get_only_lane(parts).state == "ready")
        assert get_only_lane(parts).worker_pid is not None
        parts.open_gate("door")
        ended_job = await parts.wait_for_job()
    assert (ended_job["state"], ended_job["outcomes"]) == ("done", {"measured": 1})
    assert ended_job["cost"]["open_s"] > 0
    (trial,) = parts.store.list_trials()
    assert parts.store.get_trial(trial.id).detail.profile.open_s < ended_job["cost"]["open_s"]  # type: ignore[union-attr]


async def test_compile_workers_of_a_new_kernel_start_beside_its_strategy(parts: Parts) -> None:
    """They import what they need while the strategy's worker still opens the space."""
    where = "where=lambda p, c: p.n == 64 or not __import__('ktuned_fake').wait_at('door')"
    parts.fleet.machine.keeps_spares = True
    await parts.inspect_file(make_kernel_text(configs=f"us=[10.0], {where}"))
    await submit_job(parts, {"n": 128}, priority=Priority.REQUESTED)
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        await wait_until(lambda: "compile" in {worker.role for worker in parts.fleet.describe_workers()})
        parts.open_gate("door")
        ended_job = await parts.wait_for_job()
    assert ended_job["state"] == "done"


async def test_a_job_ends_without_waiting_for_an_opening_it_does_not_need(parts: Parts) -> None:
    """If no config compiles, the job ends while its reference still runs, and the lane is free."""
    await inspect_and_submit(parts, "[dict(does='gate_compile_error', gate='door')]")
    async with parts.run_jobs():
        await parts.wait_until_reached("reference")
        parts.open_gate("door")
        ended_job = await parts.wait_for_job()
        assert (ended_job["state"], ended_job["outcomes"]) == ("failed", {"compile_error": 1})
        assert (get_only_lane(parts).state, get_only_lane(parts).worker_pid) == ("ready", None)


async def test_a_stopped_job_ends_its_opening(parts: Parts) -> None:
    """The lane is free at once, whatever the reference does."""
    job = await inspect_and_submit(parts, "[dict(does='gate_compile', gate='door')]")
    async with parts.run_jobs():
        await parts.wait_until_reached("reference")
        await parts.wait_until_reached("door")
        await parts.jobs.cancel_job(job)
        ended_job = await parts.wait_for_job()
        assert ended_job["state"] == "cancelled"
        assert (get_only_lane(parts).state, get_only_lane(parts).worker_pid) == ("ready", None)


async def test_a_problem_that_cannot_be_opened_ends_its_job_at_once(parts: Parts) -> None:
    """The reference's error is reported while the first config still compiles, because nothing can be measured."""
    await inspect_and_submit(parts, "[dict(does='gate_compile', gate='door')]", reference="lambda x: 1 / 0")
    async with parts.run_jobs():
        ended_job = await parts.wait_for_job()
    assert ended_job["state"] == "failed"
    assert "tune_it.py:" in ended_job["message"]
    assert "ZeroDivisionError" in ended_job["message"]


async def test_no_lane_is_opened_in_a_quiet_window(parts: Parts) -> None:
    """While another job's finalists are measured, no lane opens and no spare starts."""
    await inspect_and_submit(parts, "[dict(us=50.0)]", reference="lambda x: 2 * x")
    async with parts.run_jobs():
        async with parts.fleet.gate.hold_quiet():
            await wait_until(parts.store.list_trials)
            assert (list_bench_workers(parts), get_only_lane(parts).state) == ([], "ready")
        ended_job = await parts.wait_for_job()
    assert ended_job["state"] == "done"
