"""What changes do to jobs: a save begins its own, everything else has those that there are begin again."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.catalog.project_file import PROJECT_FILE
from ktuned.protocol.jobs import Job, JobState, Priority
from tests.daemon_parts import ALL_ROUNDS, Parts, make_kernel_text

GATED = "[dict(us=50.0, does='gate_compile', gate='door')]"
"""A space whose one config stands at a gate while it compiles."""


@pytest.mark.anyio
class TestBeginAgain:
    """Jobs that run, or wait, while what they depend on changes."""

    async def change_kernel(self, parts: Parts, *, saved: bool, **options: Any) -> None:
        """Write the kernel file again, and take in that it changed."""
        await parts.save_file(make_kernel_text(configs=GATED, **options), saved=saved)

    async def wait_for_end(self, parts: Parts, job: Job) -> Job:
        """Let configs compile, and return how a job ended, which is published once."""
        parts.open_gate("door")
        await parts.recorder.wait_until(
            lambda: any(event["job"] == job.id for event in parts.recorder.list_events("job_done"))
        )
        while parts.jobs.list_live_jobs():
            await parts.recorder.wait_for_ended_jobs(len(parts.recorder.list_events("job_done")) + 1)
        assert len([event for event in parts.recorder.list_events("job_done") if event["job"] == job.id]) == 1
        stored = parts.store.get_job(job.id)
        assert stored is not None
        return stored

    async def test_a_running_job_begins_again_in_a_changed_environment(self, parts: Parts) -> None:
        """A running job is stopped and begins again there: its clients still wait for it, and get the winner of now."""
        await parts.inspect_file(make_kernel_text(configs=GATED))
        async with parts.run_jobs():
            (job,) = await parts.request_jobs()
            parts.jobs.add_waiter("a client", [job.id])
            await parts.wait_until_reached("door")
            before = parts.store.list_trials()[0].id
            await parts.save_file("env = {FAKE_VERSION = '2'}", PROJECT_FILE)
            assert [live.id for live in parts.jobs.list_live_jobs()] == [job.id]
            assert parts.jobs.describe_job(parts.jobs.list_live_jobs()[0]).waiters == 1
            stored = await self.wait_for_end(parts, job)
        assert (stored.state, stored.outcomes, stored.message) == (JobState.DONE, {"measured": 1}, "")
        assert parts.look_up().status == "fresh"
        assert {(trial.id == before, trial.outcome) for trial in parts.store.list_trials()} == {
            (True, "cancelled"),
            (False, "measured"),
        }

    async def test_a_change_that_was_not_saved(self, parts: Parts) -> None:
        """A job that was asked for begins again, for another problem than those that are declared, too."""
        await parts.inspect_file(make_kernel_text(configs=GATED))
        async with parts.run_jobs():
            running, waiting = [job for n in (64, 1) for job in await parts.request_jobs(problem={"n": n})]
            await parts.wait_until_reached("door")
            await self.change_kernel(parts, saved=False, rtol="0.5")
            assert [live.id for live in parts.jobs.list_live_jobs()] == [running.id, waiting.id]
            for job in (running, waiting):
                assert (await self.wait_for_end(parts, job)).state is JobState.DONE
        digests = {trial.digest for trial in parts.store.list_trials() if trial.outcome == "measured"}
        assert digests == {parts.catalog.resolve_kernel("it").digest}

    async def test_a_save_that_tunes_another_problem(self, parts: Parts) -> None:
        """What the save does not tune itself goes on, with its clients."""
        await parts.inspect_file(make_kernel_text(configs=GATED))
        async with parts.run_jobs():
            (asked,) = await parts.request_jobs(problem={"n": 1})
            (compiled,) = await parts.request_jobs(compile_only=True)
            await parts.wait_until_reached("door")
            await self.change_kernel(parts, saved=True, rtol="0.5")
            assert {asked.id, compiled.id} < {live.id for live in parts.jobs.list_live_jobs()}
            assert (await self.wait_for_end(parts, asked)).state is JobState.DONE

    async def test_a_request_joins_what_begins_again(self, parts: Parts) -> None:
        """It works on the newer state, as the request wants."""
        await parts.inspect_file(make_kernel_text(configs=GATED))
        (job,) = await parts.request_jobs()
        await self.change_kernel(parts, saved=False, rtol="0.5")
        (again,) = await parts.request_jobs()
        assert again.id == job.id

    @pytest.mark.parametrize(
        "options",
        [dict(problems="[dict(m=1)]"), dict(problems="[dict(n=64, m=1)]"), dict(specialize="()")],
        ids=["another key", "one key more", "keyed otherwise"],
    )
    async def test_a_problem_that_the_kernel_no_longer_takes(self, parts: Parts, options: dict[str, str]) -> None:
        """Its job has nothing to do any more, and says so."""
        await parts.inspect_file(make_kernel_text(configs=GATED))
        (job,) = await parts.request_jobs()
        await self.change_kernel(parts, saved=False, **options)
        stored = parts.store.get_job(job.id)
        assert stored is not None
        assert (stored.state, stored.message) == (
            JobState.CANCELLED,
            "replaced by a job for the newer state of its files",
        )

    async def test_a_paused_job_stays_paused(self, parts: Parts) -> None:
        """It works on the newer state once it is resumed."""
        await parts.inspect_file(make_kernel_text(configs=GATED))
        (job,) = await parts.request_jobs()
        await parts.jobs.pause_job(job.id)
        await self.change_kernel(parts, saved=False, rtol="0.5")
        assert [(live.id, live.state) for live in parts.jobs.list_live_jobs()] == [(job.id, JobState.PAUSED)]


@pytest.mark.anyio
class TestReact:
    async def edit_kernel(self, parts: Parts, *, saved: bool, **options: Any) -> list[Job]:
        """Write the kernel file again, react to what that changed, and return the jobs that wait."""
        await parts.save_file(make_kernel_text(**options), saved=saved)
        return parts.jobs.list_live_jobs()

    async def test_save_tunes_what_is_new(self, parts: Parts) -> None:
        """A kernel that was just written is tuned; one that merely was found is not."""
        assert await self.edit_kernel(parts, saved=False) == []
        (job,) = await self.edit_kernel(parts, saved=True, rtol="0.5")
        assert (job.priority, job.reason) == (Priority.SAVED, "saved")

    async def test_comment_sets_nothing_off(self, parts: Parts) -> None:
        """No job, no event."""
        await self.edit_kernel(parts, saved=False)
        count = len(parts.recorder.events)
        await parts.save_file(f"# a comment\n{make_kernel_text()}")
        assert (parts.jobs.list_live_jobs(), len(parts.recorder.events)) == ([], count)

    async def test_change_retunes_what_was_tuned(self, parts: Parts) -> None:
        """Problems that lookups added are tuned again too, each with all of its keys, in the background."""
        options = {"specialize": "('n',)", "problems": "[dict(n=1, hint=1)]"}
        await self.edit_kernel(parts, saved=False, **options)
        kernel = parts.catalog.resolve_kernel("it")
        await parts.record_measurements(kernel, {50.0: 1.0}, {"n": 2, "hint": 7})
        jobs = await self.edit_kernel(parts, saved=False, rtol="0.5", **options)
        assert [job.problem for job in jobs] == [{"n": 1, "hint": 1}, {"n": 2, "hint": 7}]
        assert {(job.priority, job.reason) for job in jobs} == {
            (Priority.BACKGROUND, "changed while no daemon watched")
        }

    async def test_renamed_keys_leave_old_problems_behind(self, parts: Parts) -> None:
        """A problem that the kernel no longer takes is neither tuned nor an error."""
        await self.edit_kernel(parts, saved=False, specialize="('n',)")
        await parts.record_measurements(parts.catalog.resolve_kernel("it"), {50.0: 1.0}, {"n": 64})
        (job,) = await self.edit_kernel(parts, saved=True, specialize="('m',)", problems="[dict(m=1)]")
        assert job.problem == {"m": 1}

    async def test_newer_state_supersedes_the_older_job(self, parts: Parts) -> None:
        """A save cancels what waits for the state before it; a removed kernel's jobs go altogether."""
        (old,) = await self.edit_kernel(parts, saved=True)
        (new,) = await self.edit_kernel(parts, saved=True, rtol="0.5")
        stored = parts.store.get_job(old.id)
        assert stored is not None
        assert (stored.state, stored.message) == ("cancelled", "replaced by a job for the newer state of its files")
        assert new.id != old.id
        path = parts.project / "tune_it.py"
        path.unlink()
        changes = await parts.inspector.inspect_files(parts.root, [], [str(path)])
        await parts.renewal.react_to_changes(changes, saved=True)
        assert parts.jobs.list_live_jobs() == []
        assert parts.recorder.list_events("reloaded")[-1]["removed"] == ["project:it"]

    async def test_a_mended_file_is_told(self, parts: Parts) -> None:
        """Who mends a slip and means what was meant before hears that the error is gone."""
        path = parts.project / "tune_it.py"
        for text in (make_kernel_text(), "syntax error", make_kernel_text()):
            await parts.save_file(text)
        events = parts.recorder.list_events("reloaded")
        assert [event["mended"] for event in events] == [[], [], [str(path)]]
        assert events[-1]["changed"] == []


@pytest.mark.anyio
async def test_an_undone_edit_says_at_once_that_its_winner_holds(parts: Parts) -> None:
    """Also where the edit in between has made no other one, as one that does not compile."""
    text = make_kernel_text(configs="us=[10.0, 20.0]")
    kernel = await parts.inspect_file(text)
    await parts.record_measurements(kernel, {10.0: 5.0}, rounds=ALL_ROUNDS)
    types = []
    for written in (make_kernel_text(configs="us=[10.0, 20.0]", rtol="0.5"), text):
        await parts.save_file(written)
        types.append([event["type"] for event in parts.recorder.events if event["type"] in ("stale", "winner")])
    assert types == [["stale"], ["stale", "stale", "winner"]]
    (won,) = parts.recorder.list_events("winner")
    assert (won["job"], won["config"], won["latency_us"]) == (None, {"us": 10.0}, 5.0)
    parts.kill_workers()
