from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ktuned.model.errors import NotFound, StoreError, UsageError
from ktuned.model.objective import LATENCY, Objective
from ktuned.model.plan import Plan
from ktuned.model.trial import TrialResult
from ktuned.model.values import Problem
from ktuned.protocol.jobs import Job, JobState, Priority
from ktuned.scheduling.jobs import Intervals
from ktuned.scheduling.preparation import Preparation
from ktuned.scheduling.queue import Arrival
from ktuned.store.database import Store
from ktuned.store.winners import Winner
from ktuned.tuning.job_brief import JobBrief
from tests.daemon_parts import Parts, assemble_daemon, make_kernel_text, make_winner_key

pytestmark = pytest.mark.anyio

GATED = "[dict(us=1.0, does='gate_compile_error', gate='door')]"
"""A space whose one config stands at a gate while it compiles, and then fails, so that nothing is measured."""

NOTHING_MEASURED = "no config could be measured; compile_error: fake.c:1: error: no"
OTHER: Problem = {"n": 32}
OFTEN = Intervals(retry_s=0.02)


async def submit_job(
    parts: Parts, problem: Problem | None = None, priority: int = Priority.ASKED, kernel: str = "project:it"
) -> Arrival:
    """Ask for a tuning on the fake device."""
    problem = problem or {"n": 64}
    key = make_winner_key(problem, kernel=kernel)
    return await parts.jobs.submit_job(key, problem, priority=priority, reason="test", plan=Plan(preset="fast"))


def list_states(parts: Parts) -> list[tuple[int, str]]:
    """Return every job's id and state as the store has them."""
    return [(job.id, job.state.value) for job in reversed(parts.store.list_jobs())]


async def test_many_at_once_make_one_job(parts: Parts) -> None:
    """Requests that arrive while the first is being recorded join it too."""
    arrivals: list[Arrival] = []

    async def ask() -> None:
        arrivals.append(await submit_job(parts))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(ask)
    assert [arrival.is_new for arrival in arrivals].count(True) == 1
    assert len(parts.store.list_jobs()) == 1


class SlowStore(Store):
    """A store whose jobs are recorded before their makers hear of it."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self.recorded, self.goes_on = anyio.Event(), anyio.Event()

    async def create_job(self, *asked: Any, **how: Any) -> Job:
        """Record a job, and return it when that is allowed."""
        job = await super().create_job(*asked, **how)
        self.recorded.set()
        await self.goes_on.wait()
        return job


async def test_a_job_that_arrives_while_work_begins_waits_once(tmp_path: Path) -> None:
    """A job that is in the store and not yet in the queue is not a left-over: run twice, it ended the daemon."""
    async with assemble_daemon(tmp_path, store_type=SlowStore) as parts:
        assert isinstance(parts.store, SlowStore)
        await parts.inspect_file(make_kernel_text(configs="[dict(us=1.0, does='compile_error')]"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(submit_job, parts)
            await parts.store.recorded.wait()
            async with parts.run_jobs():
                for _ in range(20):
                    await checkpoint()
                assert [job.id for job in parts.jobs.list_live_jobs()] == []
                parts.store.goes_on.set()
                ended = await parts.wait_for_job()
                await submit_job(parts, OTHER)
                other = await parts.wait_for_job(2)
    assert [ended["id"], other["id"]] == [1, 2]
    assert len(parts.recorder.list_events("job_started")) == 2


@pytest.mark.parametrize("error", [UsageError("cannot be prepared", hint="mend it"), KeyError("a bug")])
async def test_job_that_cannot_be_prepared_makes_room(tmp_path: Path, error: Exception) -> None:
    """It fails with the reason, whatever that is, and the next job of its device runs without another push."""

    class Unpreparable(Preparation):
        def prepare_brief(self, job: Job) -> JobBrief:
            raise error

    async with assemble_daemon(tmp_path, preparation_type=Unpreparable) as parts:
        for n in (1, 2, 3):
            await submit_job(parts, {"n": n})
        async with parts.run_jobs():
            ended = await parts.recorder.wait_for_ended_jobs(3)
        assert [state for _, state in list_states(parts)] == ["failed"] * 3
    assert {job["state"] for job in ended} == {"failed"}
    words = "cannot be prepared; mend it" if isinstance(error, UsageError) else "an error in ktuned itself: KeyError"
    assert all(words in job["message"] for job in ended)


async def test_waiting_and_running_jobs_are_cancelled_ended_ones_refused(parts: Parts) -> None:
    """A waiting job and a running one end cancelled; one that has ended, or never was, is an error that says so."""
    await parts.inspect_file(make_kernel_text(configs=GATED))
    running = (await submit_job(parts)).job
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        waiting = (await submit_job(parts, OTHER, priority=Priority.BACKGROUND)).job
        await parts.jobs.pause_job(waiting.id)
        assert (await parts.jobs.cancel_job(waiting.id)).state is JobState.CANCELLED
        await parts.jobs.cancel_job(running.id)
        await parts.recorder.wait_for_ended_jobs(2)
        with pytest.raises(NotFound, match="is cancelled already"):
            await parts.jobs.cancel_job(running.id)
        with pytest.raises(NotFound, match="there is no job 99"):
            await parts.jobs.cancel_job(99)
        assert parts.jobs.list_live_jobs() == []
    (trial,) = parts.store.list_trials()
    assert trial.outcome == "cancelled"


async def test_touched_file_makes_its_job_wait_for_the_inspection(parts: Parts) -> None:
    """An edit that changes nothing of a kernel (a comment) does not cost its job: it goes on once that is known."""
    text = make_kernel_text(configs=GATED)
    await parts.inspect_file(text)
    job = (await submit_job(parts)).job
    async with parts.run_jobs():
        await parts.wait_until_reached("door")
        parts.write_file(f"{text}\n# a comment\n")
        parts.open_gate("door")
        await parts.recorder.wait_until(lambda: len(parts.recorder.list_events("job_queued")) == 2)
        (held,) = parts.jobs.list_live_jobs()
        assert (held.id, held.state) == (job.id, JobState.QUEUED)
        assert "changed after it was inspected" in held.message
        await submit_job(parts, OTHER, kernel="project:none")
        assert [ended["kernel"] for ended in await parts.recorder.wait_for_ended_jobs()] == ["project:none"]

        changes = await parts.inspector.inspect_files(parts.root, [str(parts.project / "tune_it.py")])
        assert not changes
        await parts.renewal.react_to_changes(changes, saved=True)
        ended = await parts.wait_for_job(2)
    assert (ended["id"], ended["message"]) == (job.id, NOTHING_MEASURED)


async def test_unfinished_jobs_are_taken_up_again(tmp_path: Path) -> None:
    """What waits or runs when a daemon stops is queued for the next one, however many run."""
    async with assemble_daemon(tmp_path) as parts:
        await parts.inspect_file(make_kernel_text(configs=GATED))
        for n in (1, 2, 3):
            await submit_job(parts, {"n": n})
        await parts.jobs.pause_job(3)
        async with parts.run_jobs():
            await parts.recorder.wait_until(lambda: len(parts.recorder.list_events("job_started")) == 2)
        assert [state for _, state in list_states(parts)] == ["running", "running", "paused"]
    async with assemble_daemon(tmp_path) as parts:
        assert [state for _, state in list_states(parts)] == ["queued", "queued", "paused"]
        # Requests about them are answered before the first one runs.
        assert (await parts.jobs.resume_job(3)).state is JobState.QUEUED
        await parts.jobs.pause_job(3)
        assert not (await submit_job(parts, {"n": 1})).is_new
        parts.open_gate("door")
        await parts.inspect_file(make_kernel_text(configs=GATED))
        async with parts.run_jobs():
            assert [job["id"] for job in await parts.recorder.wait_for_ended_jobs(2)] == [1, 2]


class FullStore(Store):
    """A store that can be asked to refuse what jobs write."""

    is_full = False

    async def update_job(self, job: Job) -> None:
        """Refuse, or do as any store."""
        if self.is_full:
            raise StoreError("the disk is full")
        await super().update_job(job)

    async def check_writable(self) -> None:
        """Refuse, or do as any store."""
        if self.is_full:
            raise StoreError("the disk is full")
        await super().check_writable()

    async def finish_trial(
        self, number: int, result: TrialResult, *, objective: Objective = LATENCY, keeps_winner: bool = False
    ) -> Winner | None:
        """Refuse, or do as any store."""
        if self.is_full:
            raise StoreError("the disk is full")
        return await super().finish_trial(number, result, objective=objective, keeps_winner=keeps_winner)

    async def finish_trials(
        self, results: Sequence[tuple[int, TrialResult]], *, objective: Objective = LATENCY, keeps_winner: bool = False
    ) -> Winner | None:
        """Refuse, or do as any store."""
        if self.is_full:
            raise StoreError("the disk is full")
        return await super().finish_trials(results, objective=objective, keeps_winner=keeps_winner)


async def test_full_disk_pauses_tuning_and_loses_no_job(tmp_path: Path) -> None:
    """A job that cannot record a result waits, with the disk's reason, and goes on once there is room again."""
    async with assemble_daemon(tmp_path, store_type=FullStore, intervals=OFTEN) as parts:
        assert isinstance(parts.store, FullStore)
        await parts.inspect_file(make_kernel_text(configs=GATED))
        async with parts.run_jobs():
            job = (await submit_job(parts)).job
            await parts.wait_until_reached("door")
            parts.store.is_full = True
            parts.open_gate("door")
            await parts.recorder.wait_until(lambda: bool(parts.recorder.list_events("paused")))
            (paused,) = parts.recorder.list_events("paused")
            assert (paused["reason"], "device" in paused) == ("the disk is full", False)
            (waiting,) = parts.jobs.list_live_jobs()
            assert (waiting.id, waiting.state, waiting.message) == (job.id, JobState.QUEUED, "the disk is full")
            parts.store.is_full = False
            ended = await parts.wait_for_job()
    assert (ended["id"], ended["message"]) == (job.id, NOTHING_MEASURED)
    assert len(parts.recorder.list_events("resumed")) == 1


async def test_full_disk_under_a_compiler_is_no_configs_fault(tmp_path: Path) -> None:
    """A compile worker that meets it pauses tuning; when there is room again, the config is compiled and measured."""
    async with assemble_daemon(tmp_path, intervals=OFTEN) as parts:
        await parts.inspect_file(make_kernel_text(configs="[dict(us=50.0, does='compile_full', gate='room')]"))
        async with parts.run_jobs():
            await submit_job(parts)
            await parts.recorder.wait_until(lambda: bool(parts.recorder.list_events("paused")))
            assert "no space is left on its disk" in parts.recorder.list_events("paused")[0]["reason"]
            parts.open_gate("room")
            ended = await parts.wait_for_job()
    assert (ended["state"], ended["outcomes"]) == ("done", {"measured": 1})


async def test_full_disk_loses_no_job_that_makes_way(tmp_path: Path) -> None:
    """A job that cannot be recorded as waiting waits nevertheless."""
    async with assemble_daemon(tmp_path, store_type=FullStore) as parts:
        assert isinstance(parts.store, FullStore)
        await parts.inspect_file(make_kernel_text(configs=GATED))
        async with parts.run_jobs():
            await submit_job(parts, priority=Priority.BACKGROUND)
            await parts.wait_until_reached("door")
            await submit_job(parts, OTHER, priority=Priority.WAITED_FOR)
            parts.store.is_full = True
            await parts.recorder.wait_until(lambda: len(parts.recorder.list_events("job_queued")) == 3)
            parts.store.is_full = False
            parts.open_gate("door")
            await parts.recorder.wait_until(
                lambda: any(job["job"] == 1 for job in parts.recorder.list_events("job_done"))
            )
