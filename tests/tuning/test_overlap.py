"""A job that compiles while another measures: what it learns from that job, and what is done once for both."""

from __future__ import annotations

import pytest

from ktuned.protocol import ChannelInfo
from tests.daemon_parts import Parts, make_kernel_text
from tests.fleet.playground import wait_until
from tests.tuning.jobs import submit_job

pytestmark = pytest.mark.anyio

FIRST, SECOND = {"n": 64}, {"n": 65}
SLOW, FAST = {"us": 2000.0}, {"us": 60.0}
CONFIGS = f"[dict(us={SLOW['us']}), dict(us={FAST['us']})]"


async def inspect_gated_kernel(parts: Parts, configs: str = CONFIGS, does: str = "work") -> None:
    """Inspect a kernel whose first problem waits at a gate when it is launched or compiled."""
    text = make_kernel_text(configs=configs, default=f"dict(us={SLOW['us']})")
    gated = f"Build(us=c.us, tag='' if p.n else '', does='{does}', gate='launch' if p.n == 64 else '')"
    await parts.inspect_file(text.replace("Build(**c)", gated))


def count_in_channel(parts: Parts, name: str) -> int:
    """Return how many configs are in a job's channel."""
    return parts.jobs.describe_channels().get(name, ChannelInfo(0)).used


async def test_the_second_job_begins_with_the_firsts_winner(parts: Parts) -> None:
    """Lookups of its problem get the first job's winner meanwhile, so no slower config becomes its winner."""
    await inspect_gated_kernel(parts)
    first, second = await submit_job(parts, FIRST, early_stop=100.0), await submit_job(parts, SECOND, early_stop=100.0)
    async with parts.run_jobs():
        await parts.wait_until_reached("launch")
        await wait_until(lambda: count_in_channel(parts, f"bench (job {second})") == 1)
        parts.open_gate("launch")
        ended_jobs = await parts.recorder.wait_for_ended_jobs(2)
    assert [(job["id"], job["state"]) for job in ended_jobs] == [(first, "done"), (second, "done")]
    winners = [event["config"]["us"] for event in parts.recorder.list_events("winner") if event["job"] == second]
    assert winners
    assert set(winners) == {FAST["us"]}


async def test_a_search_that_learns_waits_for_the_results_of_its_kernel(parts: Parts) -> None:
    """It proposes nothing while another job of its kernel has the lanes."""
    await inspect_gated_kernel(parts, configs="us=[60.0 + n for n in range(40)] + [2000.0]")
    first = await submit_job(parts, FIRST, early_stop=100.0)
    second = await submit_job(parts, SECOND, early_stop=100.0, strategy="guided")
    async with parts.run_jobs():
        await parts.wait_until_reached("launch")
        await parts.recorder.wait_until(lambda: len(parts.recorder.list_events("job_started")) == 2)
        await wait_until(lambda: any(worker.role == "explore" for worker in parts.fleet.describe_workers()))
        assert not [trial for trial in parts.store.list_trials() if trial.job == second]
        parts.open_gate("launch")
        ended_jobs = await parts.recorder.wait_for_ended_jobs(2)
    assert {job["id"]: job["state"] for job in ended_jobs} == {first: "done", second: "done"}


async def test_a_time_limit_counts_only_while_a_job_may_measure(parts: Parts) -> None:
    """A job that waits for lanes longer than its limit still tries all its configs."""
    await inspect_gated_kernel(parts)
    await submit_job(parts, FIRST, early_stop=100.0)
    second = await submit_job(parts, SECOND, early_stop=100.0, time_limit_s=30.0)
    async with parts.run_jobs():
        await parts.wait_until_reached("launch")
        await wait_until(lambda: count_in_channel(parts, f"bench (job {second})") == 1)
        task = parts.daemon.jobs._pipelines[second]
        assert task.pipeline._access.held_s == 0.0  # type: ignore[union-attr]
        parts.open_gate("launch")
        ended_job = await parts.wait_for_job(2)
    assert ended_job["done"] == 2


async def test_an_artifact_that_two_jobs_need_is_compiled_once(parts: Parts) -> None:
    """The second job waits for the first job's compiler and uses its artifact."""
    text = make_kernel_text(configs="[dict(us=60.0, does='gate_compile', gate='door')]")
    await parts.inspect_file(text)
    await submit_job(parts, FIRST, early_stop=100.0)
    await submit_job(parts, SECOND, early_stop=100.0)
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        await parts.recorder.wait_until(lambda: len(parts.recorder.list_events("job_started")) == 2)
        await wait_until(lambda: len(parts.store.list_trials()) == 2)
        parts.open_gate("door")
        ended_jobs = await parts.recorder.wait_for_ended_jobs(2)
    assert [job["outcomes"] for job in ended_jobs] == [{"measured": 1}] * 2
    compiled = [trial.compile_s > 0 for trial in parts.store.list_trials()]
    assert sorted(compiled) == [False, True]
