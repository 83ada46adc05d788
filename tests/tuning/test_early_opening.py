"""A lane is opened while the first configs still compile, and never for nothing that anyone waits for."""

from __future__ import annotations

import pytest

from ktuned.fleet.lanes import Lane
from ktuned.model.plan import Plan
from ktuned.protocol import WorkerInfo
from ktuned.protocol.jobs import Priority
from tests.daemon_parts import Parts, make_kernel_text, make_winner_key
from tests.fleet.playing import until

pytestmark = pytest.mark.anyio

REFERENCE = "lambda x: (ktuned_fake.wait_at('reference'), 2 * x)[1]"
"""Holds the opening of its problem until the gate is opened."""


async def submitted(parts: Parts, configs: str, reference: str = REFERENCE) -> int:
    """Ask for a job on configs whose reference waits; return its id."""
    await parts.inspect_file("import ktuned_fake\n" + make_kernel_text(configs=configs, reference=reference))
    arrival = await parts.jobs.submit_job(
        make_winner_key({"n": 64}),
        {"n": 64},
        priority=Priority.REQUESTED,
        reason="test",
        plan=Plan(preset="fast", strategy="exhaustive"),
    )
    return arrival.job.id


def lane_of(parts: Parts) -> Lane:
    """Return the only lane."""
    (lane,) = parts.jobs.list_lanes()
    return lane


def bench_workers(parts: Parts) -> list[WorkerInfo]:
    """Return the workers that measure, or could."""
    return [worker for worker in parts.fleet.describe_workers() if worker.role == "bench"]


async def test_a_lane_is_opened_during_the_first_compile(parts: Parts) -> None:
    """Both are under way at once; then the first config is measured on the lane that is open already."""
    job = await submitted(parts, "[dict(does='gate_compile', gate='door')]")
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        await parts.wait_until_reached("reference")
        assert (lane_of(parts).state, lane_of(parts).job) == ("busy", job)
        parts.open_gate("reference")
        await until(lambda: lane_of(parts).state == "ready")
        assert lane_of(parts).worker_pid is not None
        parts.open_gate("door")
        (ended,) = await parts.recorder.wait_for_ended_jobs()
    assert (ended["state"], ended["outcomes"]) == ("done", {"measured": 1})
    assert ended["cost"]["open_s"] > 0
    (trial,) = parts.store.list_trials()
    assert parts.store.get_trial(trial.id).detail.open_s < ended["cost"]["open_s"]  # type: ignore[union-attr]


async def test_compile_workers_of_a_new_kernel_start_beside_its_strategy(parts: Parts) -> None:
    """They import what they need while the strategy's worker still opens the space."""
    where = "where=lambda p, c: p.n == 64 or not __import__('ktuned_fake').wait_at('door')"
    parts.fleet.machine.keeps_spares = True
    await parts.inspect_file(make_kernel_text(configs=f"us=[10.0], {where}"))
    plan = Plan(preset="fast", strategy="exhaustive")
    key = make_winner_key({"n": 128})
    await parts.jobs.submit_job(key, {"n": 128}, priority=Priority.REQUESTED, reason="test", plan=plan)
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        await until(lambda: "compile" in {worker.role for worker in parts.fleet.describe_workers()})
        parts.open_gate("door")
        (ended,) = await parts.recorder.wait_for_ended_jobs()
    assert ended["state"] == "done"


async def test_a_job_ends_without_waiting_for_an_opening_it_does_not_need(parts: Parts) -> None:
    """Where no config compiles the job ends while its reference still runs, and the lane is free."""
    await submitted(parts, "[dict(does='gate_compile_error', gate='door')]")
    async with parts.run_jobs():
        await parts.wait_until_reached("reference")
        parts.open_gate("door")
        (ended,) = await parts.recorder.wait_for_ended_jobs()
        assert (ended["state"], ended["outcomes"]) == ("failed", {"compile_error": 1})
        assert (lane_of(parts).state, lane_of(parts).worker_pid) == ("ready", None)


async def test_a_stopped_job_ends_its_opening(parts: Parts) -> None:
    """Cancelled or superseded, the lane is free at once, whatever the reference does."""
    job = await submitted(parts, "[dict(does='gate_compile', gate='door')]")
    async with parts.run_jobs():
        await parts.wait_until_reached("reference")
        await parts.wait_until_reached("door")
        await parts.jobs.cancel_job(job)
        (ended,) = await parts.recorder.wait_for_ended_jobs()
        assert ended["state"] == "cancelled"
        assert (lane_of(parts).state, lane_of(parts).worker_pid) == ("ready", None)


async def test_a_problem_that_cannot_be_opened_ends_its_job_at_once(parts: Parts) -> None:
    """A reference that raises is reported while the first config still compiles: nothing can be measured against it."""
    await submitted(parts, "[dict(does='gate_compile', gate='door')]", reference="lambda x: 1 / 0")
    async with parts.run_jobs():
        (ended,) = await parts.recorder.wait_for_ended_jobs()
    assert ended["state"] == "failed"
    assert "tune_it.py:" in ended["message"]
    assert "ZeroDivisionError" in ended["message"]


async def test_no_lane_is_opened_in_a_quiet_window(parts: Parts) -> None:
    """While another job's finalists are measured nothing is opened, and no spare is started."""
    await submitted(parts, "[dict(us=50.0)]", reference="lambda x: 2 * x")
    async with parts.run_jobs():
        async with parts.fleet.gate.hold_quiet():
            await until(parts.store.list_trials)
            assert (bench_workers(parts), lane_of(parts).state) == ([], "ready")
        (ended,) = await parts.recorder.wait_for_ended_jobs()
    assert ended["state"] == "done"
