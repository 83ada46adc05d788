"""CPU configs that use several cores are timed on cores that no compilation uses."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from ktuned.model.plan import Plan
from ktuned.protocol.jobs import Priority
from tests.daemon_parts import PATIENCE_S, Parts, assemble_daemon, make_kernel_text, make_winner_key
from tests.tuning.jobs import submit_job

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two threads use one core here"),
]

TWO_THREADS = "does='two_threads', gate=''"
ONE_THREAD = "does='work', gate=''"
SLOW_COMPILE = "does='gate_compile', gate='door'"


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    """The parts of a daemon for a machine with two cores."""
    async with assemble_daemon(tmp_path, cores=2) as parts:
        yield parts


async def inspect_and_submit(parts: Parts, *configs: str, **options: str) -> None:
    """Inspect a kernel with these configs and submit a job."""
    await parts.inspect_file(
        make_kernel_text(configs=f"[{', '.join(f'dict({config})' for config in configs)}]", **options)
    )
    await submit_job(parts, priority=Priority.REQUESTED)


async def wait_until_config_needs_cores(parts: Parts) -> None:
    """Wait until a config waits for cores of its own."""
    with anyio.fail_after(PATIENCE_S):
        while not parts.fleet.gate._waiting_for_cores:  # noqa: ASYNC110 - another process's launch shows that it must
            await anyio.sleep(0.005)


def read_cores(parts: Parts) -> dict[str, int | None]:
    """Return the cores of each measured config by its ``does``."""
    trials = [parts.store.get_trial(trial.id) for trial in parts.store.list_trials() if trial.outcome == "measured"]
    return {str(trial.config["does"]): trial.detail.profile.cores for trial in trials if trial is not None}


async def test_a_timing_on_all_cores_waits_for_a_running_compile(parts: Parts) -> None:
    """The first launch shows two threads; the config is timed after the last compilation, before a new one starts."""
    await inspect_and_submit(parts, SLOW_COMPILE, TWO_THREADS)
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        await wait_until_config_needs_cores(parts)
        assert read_cores(parts) == {}
        parts.open_gate("door")
        ended = await parts.wait_for_job()
    assert ended["outcomes"] == {"measured": 2}
    assert read_cores(parts) == {"gate_compile": 1, "two_threads": 2}


async def test_declared_cores_are_reserved(parts: Parts) -> None:
    """A kernel file may declare more cores than the first launch shows, by problem and config."""
    await inspect_and_submit(
        parts, SLOW_COMPILE, ONE_THREAD, cores="lambda p, c: 2 if c.does == 'work' and p.n == 64 else 1"
    )
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        await wait_until_config_needs_cores(parts)
        parts.open_gate("door")
        await parts.recorder.wait_for_ended_jobs()
    assert read_cores(parts) == {"gate_compile": 1, "work": 2}


@pytest.mark.parametrize("activity", ["inspected", "looked up", "compiled"])
async def test_a_timing_on_all_cores_waits_for_a_running_inspection(parts: Parts, activity: str) -> None:
    """The same holds for a question to a space, and for another job's first look at its space."""
    await parts.inspect_file(make_kernel_text(configs=f"[dict({ONE_THREAD})]", cores="2"))
    where = "us=[1.0, 2.0], where=lambda p, c: wait_at('door') or c.us < p.n"
    text = make_kernel_text("other", where, default="dict(us=1.0)").replace("import Build", "import Build, wait_at")
    if activity != "inspected":
        parts.open_gate("door")
        await parts.inspector.inspect_files(parts.root, [str(parts.write_file(text, "tune_other.py"))])
        parts.close_gate("door")
    async with anyio.create_task_group() as tasks, parts.run_jobs():
        if activity == "inspected":
            tasks.start_soon(parts.inspector.inspect_files, parts.root, [str(parts.write_file(text, "tune_other.py"))])
        elif activity == "looked up":
            parts.lookups.look_up("other", {"n": 128}, None, tune=False)
        else:
            await parts.request_jobs("other", problem={"n": 64}, compile_only=True)
        await parts.wait_until_reached("door")
        await parts.jobs.submit_job(
            make_winner_key({"n": 64}), {"n": 64}, priority=Priority.REQUESTED, reason="test", plan=Plan(preset="fast")
        )
        await wait_until_config_needs_cores(parts)
        assert read_cores(parts) == {}
        parts.open_gate("door")
        await parts.recorder.wait_until(lambda: read_cores(parts) == {"work": 2})
        parts.kill_workers()


async def test_an_inspection_does_not_wait_for_a_timing_that_hangs(parts: Parts) -> None:
    """Nothing that a person waits for does: after a moment it runs beside the timing."""
    await inspect_and_submit(parts, "does='work', gate='door'", cores="2")
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        with anyio.fail_after(PATIENCE_S):
            await parts.inspector.inspect_files(
                parts.root, [str(parts.write_file(make_kernel_text("other"), "tune_other.py"))]
            )
        parts.open_gate("door")
        await parts.recorder.wait_for_ended_jobs()
