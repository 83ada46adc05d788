"""One worker of a job lowers a backend's functions, other workers compile them."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from ktuned.fleet import RequestFailed
from ktuned.model.values import Outcome
from ktuned.tuning.compile_stage import CompileStage
from ktuned.tuning.job_brief import JobBrief
from ktuned.tuning.trial_machine import Attempt
from tests.daemon_parts import PATIENCE_S, Parts, make_kernel_text
from tests.tuning.jobs import make_attempts, prepare_brief

pytestmark = pytest.mark.anyio

HANG_S = 1.0


async def prepare_lowering_brief(parts: Parts, deadline_s: float = PATIENCE_S) -> JobBrief:
    """Return the brief of a job whose backend lowers."""
    await parts.inspect_file(make_kernel_text(deadlines=f"dict(compile={deadline_s})"))
    brief = await prepare_brief(parts)
    brief.lowers = True
    return brief


async def test_one_front_end_serves_several_compile_workers(parts: Parts) -> None:
    """It serves simultaneous requests, and the next job's functions, too."""
    brief = await prepare_lowering_brief(parts)
    stage = CompileStage(brief, parts.fleet, parts.artifacts)
    compiled = make_attempts(brief, "work", "work", "work", "work")

    async def compile_alone(attempt: Attempt) -> None:
        await stage.compile_attempts([attempt])

    async with anyio.create_task_group() as tasks:
        for attempt in compiled:
            tasks.start_soon(compile_alone, attempt)
    facts = [attempt.facts for attempt in compiled if attempt.is_compiled]
    assert len(facts) == 4
    (front_end_pid,) = {fact["lowered_by"] for fact in facts}
    assert front_end_pid not in {fact["compiled_by"] for fact in facts}
    await stage.close()
    second_stage = CompileStage(brief, parts.fleet, parts.artifacts)
    last_attempt = Attempt(9, {}, brief.make_unit({"tag": "9"}))
    await second_stage.compile_attempts([last_attempt])
    await second_stage.close()
    parts.kill_workers()
    assert last_attempt.facts["lowered_by"] == front_end_pid


async def test_a_front_end_imports_before_there_is_a_config(parts: Parts) -> None:
    """The same worker lowers the functions later."""
    brief = await prepare_lowering_brief(parts)
    stage = CompileStage(brief, parts.fleet, parts.artifacts)
    await stage.start_workers()
    busy_pids = {worker.pid for worker in parts.fleet.describe_workers() if worker.state == "busy"}
    (attempt,) = make_attempts(brief, "work")
    assert await stage.compile_attempts([attempt]) == []
    await stage.close()
    parts.kill_workers()
    assert busy_pids == {attempt.facts["lowered_by"]}


async def test_an_early_import_error_is_raised_with_the_first_config(parts: Parts) -> None:
    """The error then has an attempt to which it belongs."""
    brief = await prepare_lowering_brief(parts)
    Path(brief.kernel.file).write_text("raise RuntimeError\n")
    stage = CompileStage(brief, parts.fleet, parts.artifacts)
    await stage.start_workers()
    with pytest.raises(RequestFailed) as caught:
        await stage.compile_attempts(make_attempts(brief, "work"))
    await stage.close()
    parts.kill_workers()
    assert caught.value.code == "source_changed"


async def test_a_config_that_cannot_be_lowered_is_compiled_whole(parts: Parts) -> None:
    """The compile worker does everything."""
    brief = await prepare_lowering_brief(parts)
    stage = CompileStage(brief, parts.fleet, parts.artifacts)
    (attempt,) = make_attempts(brief, "lower_not")
    assert await stage.compile_attempts([attempt]) == []
    await stage.close()
    parts.kill_workers()
    assert "lowered_by" not in attempt.facts


@pytest.mark.parametrize(
    ("failing", "outcome"),
    [
        ("lower_error", Outcome.COMPILE_ERROR),
        ("lower_crash", Outcome.CRASHED),
        ("lower_hang", Outcome.COMPILE_TIMEOUT),
    ],
)
async def test_a_function_that_fails_in_the_front_end_fails_alone(parts: Parts, failing: str, outcome: Outcome) -> None:
    """The config is to blame, and another worker lowers the next one."""
    brief = await prepare_lowering_brief(parts, HANG_S if failing == "lower_hang" else PATIENCE_S)
    stage = CompileStage(brief, parts.fleet, parts.artifacts)
    group = make_attempts(brief, "work", failing, "work")
    ends = await stage.compile_attempts(group)
    await stage.close()
    parts.kill_workers()
    assert [attempt.is_compiled for attempt in group] == [True, False, True]
    assert [(end.attempt.trial, end.result.outcome) for end in ends] == [(1, outcome)]
