"""CPU configs that use several cores are timed on cores that no compile uses."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from ktuned.model.plan import Plan
from ktuned.protocol.jobs import Priority
from ktuned.scheduling.job_requests import TuningRequest
from tests.daemon_parts import PATIENCE_S, Parts, assemble_daemon, make_kernel_text, make_winner_key

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two threads use one core here"),
]

WIDE = "does='two_threads', gate=''"
NARROW = "does='work', gate=''"
COMPILING = "does='gate_compile', gate='door'"


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    """Return the parts of a daemon for a machine with two cores."""
    async with assemble_daemon(tmp_path, cores=2) as parts:
        yield parts


async def submit(parts: Parts, *configs: str, **options: str) -> None:
    """Have configs tried in their order."""
    await parts.inspect_file(
        make_kernel_text(configs=f"[{', '.join(f'dict({config})' for config in configs)}]", **options)
    )
    plan = Plan(preset="fast", strategy="exhaustive")
    await parts.jobs.submit_job(
        make_winner_key({"n": 64}), {"n": 64}, priority=Priority.REQUESTED, reason="test", plan=plan
    )


async def waits_for_cores(parts: Parts) -> None:
    """Wait until a config waits to be alone on its cores."""
    with anyio.fail_after(PATIENCE_S):
        while not parts.fleet.gate._waiting_for_cores:  # noqa: ASYNC110 - another process's launch shows that it must
            await anyio.sleep(0.005)


def figures(parts: Parts) -> dict[str, int | None]:
    """Return the cores of each measured config, by its ``does``."""
    trials = [parts.store.get_trial(trial.id) for trial in parts.store.list_trials() if trial.outcome == "measured"]
    return {str(trial.config["does"]): trial.detail.cores for trial in trials if trial is not None}


async def test_a_timing_on_all_cores_waits_for_a_running_compile(parts: Parts) -> None:
    """Its first launch shows two threads: it is timed when the last compile is over, and no new one has begun."""
    await submit(parts, COMPILING, WIDE)
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        await waits_for_cores(parts)
        assert figures(parts) == {}
        parts.open_gate("door")
        (ended,) = await parts.recorder.wait_for_ended_jobs()
    assert ended["outcomes"] == {"measured": 2}
    assert figures(parts) == {"gate_compile": 1, "two_threads": 2}


async def test_declared_cores_are_reserved(parts: Parts) -> None:
    """A kernel file may say that a config uses more than its first launch shows: by problem and config."""
    await submit(parts, COMPILING, NARROW, cores="lambda p, c: 2 if c.does == 'work' and p.n == 64 else 1")
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        await waits_for_cores(parts)
        parts.open_gate("door")
        await parts.recorder.wait_for_ended_jobs()
    assert figures(parts) == {"gate_compile": 1, "work": 2}


@pytest.mark.parametrize("asked", ["inspected", "looked up", "compiled"])
async def test_a_timing_on_all_cores_waits_for_a_running_inspection(parts: Parts, asked: str) -> None:
    """An inspection, a question to a space, or another job's first look at its space: timing follows it."""
    await parts.inspect_file(make_kernel_text(configs=f"[dict({NARROW})]", cores="2"))
    where = "us=[1.0, 2.0], where=lambda p, c: wait_at('door') or c.us < p.n"
    text = make_kernel_text("other", where, default="dict(us=1.0)").replace("import Build", "import Build, wait_at")
    if asked != "inspected":
        parts.open_gate("door")
        await parts.inspector.inspect_files(parts.root, [str(parts.write_file(text, "tune_other.py"))])
        parts.close_gate("door")
    async with anyio.create_task_group() as tasks, parts.run_jobs():
        if asked == "inspected":
            tasks.start_soon(parts.inspector.inspect_files, parts.root, [str(parts.write_file(text, "tune_other.py"))])
        elif asked == "looked up":
            parts.lookups.look_up("other", {"n": 128}, None, tune=False)
        else:
            await parts.requests.request_jobs(
                parts.catalog.resolve_kernel("other"), TuningRequest(problem={"n": 64}, compile_only=True)
            )
        await parts.wait_until_reached("door")
        await parts.jobs.submit_job(
            make_winner_key({"n": 64}), {"n": 64}, priority=Priority.REQUESTED, reason="test", plan=Plan(preset="fast")
        )
        await waits_for_cores(parts)
        assert figures(parts) == {}
        parts.open_gate("door")
        await parts.recorder.wait_until(lambda: figures(parts) == {"work": 2})
        parts.kill_workers()


async def test_an_inspection_does_not_wait_for_a_timing_that_hangs(parts: Parts) -> None:
    """Nor does anything else that a person waits for: after a moment it goes on beside it."""
    await submit(parts, "does='work', gate='door'", cores="2")
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        with anyio.fail_after(PATIENCE_S):
            await parts.inspector.inspect_files(
                parts.root, [str(parts.write_file(make_kernel_text("other"), "tune_other.py"))]
            )
        parts.open_gate("door")
        await parts.recorder.wait_for_ended_jobs()
