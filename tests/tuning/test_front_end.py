"""A backend's functions are translated by one worker of a job, and compiled by others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from ktuned.fleet import RequestFailed
from ktuned.model.plan import Plan
from ktuned.model.values import Outcome
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.trial_machine import Attempt
from tests.daemon_parts import PATIENCE_S, Parts, make_kernel_text, make_winner_key

pytestmark = pytest.mark.anyio

HANG_S = 1.0


async def prepared(parts: Parts, deadline_s: float = PATIENCE_S) -> JobBrief:
    """Return the work of a job whose backend lowers."""
    await parts.inspect_file(make_kernel_text(deadlines=f"dict(compile={deadline_s})"))
    plan = Plan(preset="fast", strategy="exhaustive")
    job = await parts.store.create_job(
        make_winner_key({"n": 64}), {"n": 64}, priority=100, reason="test", plan=plan, now=0.0
    )
    brief = parts.preparation.prepare_brief(job)
    brief.lowers = True
    return brief


def attempts(brief: JobBrief, *does: str) -> list[Attempt]:
    """Return one attempt for each thing that a Build does."""
    builds: list[dict[str, Any]] = [{"does": what, "tag": f"{number}"} for number, what in enumerate(does)]
    return [Attempt(number, {}, brief.make_unit(build)) for number, build in enumerate(builds)]


async def test_one_front_end_serves_several_compile_workers(parts: Parts) -> None:
    """Also when they ask at once; the next job's functions are translated by the same one, which is still there."""
    brief = await prepared(parts)
    stage = CompileStage(brief, parts.fleet, parts.artifacts)
    compiled = attempts(brief, "work", "work", "work", "work")

    async def compile_alone(attempt: Attempt) -> None:
        await stage.compile_attempts([attempt])

    async with anyio.create_task_group() as tasks:
        for attempt in compiled:
            tasks.start_soon(compile_alone, attempt)
    facts = [attempt.facts for attempt in compiled if attempt.is_compiled]
    assert len(facts) == 4
    (front,) = {one["lowered_by"] for one in facts}
    assert front not in {one["compiled_by"] for one in facts}
    await stage.close()
    again = CompileStage(brief, parts.fleet, parts.artifacts)
    last = Attempt(9, {}, brief.make_unit({"tag": "9"}))
    await again.compile_attempts([last])
    await again.close()
    parts.kill_workers()
    assert last.facts["lowered_by"] == front


async def test_a_front_end_imports_before_there_is_a_config(parts: Parts) -> None:
    """The same worker then translates."""
    brief = await prepared(parts)
    stage = CompileStage(brief, parts.fleet, parts.artifacts)
    await stage.start_workers()
    opened = {worker.pid for worker in parts.fleet.describe_workers() if worker.state == "busy"}
    (attempt,) = attempts(brief, "work")
    assert await stage.compile_attempts([attempt]) == []
    await stage.close()
    parts.kill_workers()
    assert opened == {attempt.facts["lowered_by"]}


async def test_an_early_import_error_is_raised_with_the_first_config(parts: Parts) -> None:
    """It has the reason, and an attempt that it belongs to."""
    brief = await prepared(parts)
    Path(brief.kernel.file).write_text("raise RuntimeError\n")
    stage = CompileStage(brief, parts.fleet, parts.artifacts)
    await stage.start_workers()
    with pytest.raises(RequestFailed) as raised:
        await stage.compile_attempts(attempts(brief, "work"))
    await stage.close()
    parts.kill_workers()
    assert raised.value.code == "source_changed"


async def test_a_config_that_cannot_be_lowered_is_compiled_whole(parts: Parts) -> None:
    """By the compile worker."""
    brief = await prepared(parts)
    stage = CompileStage(brief, parts.fleet, parts.artifacts)
    (attempt,) = attempts(brief, "lower_not")
    assert await stage.compile_attempts([attempt]) == []
    await stage.close()
    parts.kill_workers()
    assert "lowered_by" not in attempt.facts


@pytest.mark.parametrize(
    ("bad", "outcome"),
    [
        ("lower_error", Outcome.COMPILE_ERROR),
        ("lower_crash", Outcome.CRASHED),
        ("lower_hang", Outcome.COMPILE_TIMEOUT),
    ],
)
async def test_a_function_that_fails_in_the_front_end_fails_alone(parts: Parts, bad: str, outcome: Outcome) -> None:
    """The config is to blame, and the next one is translated by another worker."""
    brief = await prepared(parts, HANG_S if bad == "lower_hang" else PATIENCE_S)
    stage = CompileStage(brief, parts.fleet, parts.artifacts)
    group = attempts(brief, "work", bad, "work")
    ends = await stage.compile_attempts(group)
    await stage.close()
    parts.kill_workers()
    assert [attempt.is_compiled for attempt in group] == [True, False, True]
    assert [(end.attempt.trial, end.result.outcome) for end in ends] == [(1, outcome)]
