from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from ktuned.catalog.catalog import Changes
from ktuned.catalog.inspection import FileInspector
from ktuned.model.errors import NotFound, UsageError
from ktuned.model.plan import Plan
from ktuned.protocol import Root
from ktuned.scheduling.intake import Intake
from ktuned.scheduling.job_requests import TuningRequest
from tests.daemon_parts import ALL_ROUNDS, Parts, make_kernel_text
from tests.fleet.playground import wait_until

DECLARED = Plan(strategy="random", seed=3, preset="thorough", trials=7, time_limit_s=9.0)


def test_a_request_overrides_only_what_it_names() -> None:
    """What is not given stays as the kernel file has it; 0 is given."""
    assert TuningRequest().apply_to_plan(DECLARED) == DECLARED
    plan = TuningRequest(preset="fast", trials=1, time_limit_s=0.5, strategy="exhaustive", seed=0).apply_to_plan(
        DECLARED
    )
    assert plan == replace(DECLARED, preset="fast", trials=1, time_limit_s=0.5, strategy="exhaustive", seed=0)


@pytest.mark.parametrize(
    ("tuning_request", "words"),
    [
        (TuningRequest(preset="quick"), "'quick'"),
        (TuningRequest(trials=0), "trials is 0"),
        (TuningRequest(time_limit_s=0.0), "time_limit_s is 0"),
        (TuningRequest(time_limit_s=-1.0), "time_limit_s is -1"),
        (TuningRequest(time_limit_s=float("nan")), "time_limit_s is nan"),
    ],
)
def test_a_request_that_cannot_be_followed_names_its_field(tuning_request: TuningRequest, words: str) -> None:
    """The error says which, and what would do."""
    with pytest.raises(UsageError, match=words) as refused:
        tuning_request.apply_to_plan(DECLARED)
    assert refused.value.hint


def limit_directories(parts: Parts, directories: int) -> Intake:
    """Return an intake that takes no root with more directories."""
    return Intake(
        parts.daemon.known,
        inspector=parts.inspector,
        foreign_names=parts.daemon.foreign_names,
        requests=parts.requests,
        renewal=parts.renewal,
        list_configured=set,
        max_directories=directories,
    )


@pytest.mark.anyio
class TestTunePath:
    async def test_tunes_what_is_below_and_tells_what_is_wrong(self, parts: Parts) -> None:
        """Every kernel and problem gets a job; a broken file is an error beside them; a kernel may have none."""
        parts.write_file(make_kernel_text("one", problems="[dict(n=1), dict(n=2)]"), "tune_one.py")
        parts.write_file(make_kernel_text("two"), "sub/tune_two.py")
        parts.write_file(make_kernel_text("three", problems=""), "tune_three.py")
        parts.write_file("import nonsense_module", "tune_bad.py")
        jobs, errors = await parts.intake.tune_path(str(parts.project), None, TuningRequest())
        assert [(job.kernel, job.problem["n"]) for job in jobs] == [
            ("project:one", 1),
            ("project:one", 2),
            ("project:two", 64),
        ]
        assert ["nonsense_module" in error.message for error in errors] == [True]
        jobs, errors = await parts.intake.tune_path(str(parts.project / "sub"), None, TuningRequest())
        assert ([job.kernel for job in jobs], errors) == (["project:two"], [])

    async def test_a_project_inside_a_watched_one_is_a_root_of_its_own(self, parts: Parts) -> None:
        """By its own project file, wherever in it the path is; a directory without one stays part of the outer one."""
        parts.write_file(make_kernel_text("two"), "sub/below/tune_two.py")
        parts.write_file(make_kernel_text("one"), "other/tune_one.py")
        await parts.intake.add_path(str(parts.project), None)
        parts.write_file('name = "inner"\n[defaults]\ntrials = 7\n', "sub/ktuned.toml")
        added = await parts.intake.add_path(str(parts.project / "sub/below"), None)
        assert (added.root.path, [kernel.name for kernel in added.kernels]) == (
            str(parts.project / "sub"),
            ["inner:two"],
        )
        assert sorted(kernel.name for kernel in parts.catalog.kernels) == ["inner:two", "project:one"]
        added = await parts.intake.add_path(str(parts.project / "other"), None)
        assert added.root.path == str(parts.project)
        parts.kill_workers()

    async def test_the_workers_of_a_first_job_start_beside_the_inspection(self, parts: Parts, tmp_path: Path) -> None:
        """While the first kernel file of a new root is still imported, all that its job will need is started."""
        parts.fleet.machine.keeps_spares = True
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "tune_it.py").write_text(
            f"import ktuned_fake\nktuned_fake.wait_at('import')\n{make_kernel_text()}"
        )

        def roles() -> list[str]:
            return sorted(worker.role for worker in parts.fleet.describe_workers())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parts.intake.tune_path, str(elsewhere), None, TuningRequest())
            await parts.wait_until_reached("import")
            await wait_until(lambda: {"bench", "compile", "explore"} <= set(roles()))
            parts.open_gate("import")
        parts.kill_workers()

    async def test_what_an_inspection_finds_below_a_root_that_is_gone_is_ignored(
        self, parts: Parts, tmp_path: Path
    ) -> None:
        """The watcher inspects a new root, too, and may end after the request was refused."""
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        file = elsewhere / "tune_it.py"
        file.write_text(make_kernel_text())
        added = await parts.intake.add_path(str(elsewhere), None)
        file.write_text(f"import ktuned_fake\nktuned_fake.wait_at('import')\n{make_kernel_text('other')}")
        found: list[Changes] = []

        async def look() -> None:
            found.append(await parts.inspector.inspect_root(added.root))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            await parts.wait_until_reached("import")
            await parts.intake.forget_root(added.root)
            parts.open_gate("import")
        assert not found[0]
        assert not parts.catalog.kernels
        # What was found before the root was removed is not followed either.
        await parts.renewal.react_to_changes(added.changes, saved=True)
        await parts.renewal.react_to_changes(
            Changes(changed=("elsewhere:it",), inspected=("elsewhere:it",)), saved=True
        )
        assert not parts.jobs.list_live_jobs()
        parts.kill_workers()

    async def test_another_interpreter_changes_nothing_else_of_a_root(self, parts: Parts, tmp_path: Path) -> None:
        """A root that is polled still is when it is tuned with another interpreter."""
        parts.write_file(make_kernel_text())
        parts.catalog.add_root(replace(parts.root, polling=True, env={"A": "1"}))
        changes = parts.root_changes
        python = tmp_path / "another"
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        (job,), errors = await parts.intake.tune_path(str(parts.project), str(python), TuningRequest())
        assert (job.kernel, errors, parts.root_changes) == ("project:it", [], changes + 1)
        (root,) = parts.catalog.roots
        assert root == replace(parts.root, polling=True, env={"A": "1"}, python=str(python), asked=root.asked)
        assert parts.store.load_roots() == [replace(root, polling=False)]
        parts.kill_workers()

    async def test_path_without_kernels_is_an_error(self, parts: Parts, tmp_path: Path) -> None:
        """It says what is there instead, and nothing is watched that was not before."""
        elsewhere = tmp_path / "elsewhere" / "tune_nothing.py"
        elsewhere.parent.mkdir()
        elsewhere.touch()
        for path in (elsewhere, elsewhere.parent):
            with pytest.raises(UsageError, match="no kernel at"):
                await parts.intake.tune_path(str(path), None, TuningRequest())
        assert [root.name for root in parts.catalog.roots] == ["project"]
        assert parts.store.load_roots() == []
        parts.write_file("", "other.py")
        parts.write_file("", "empty/read.me")
        wrong = {
            "nothing.py": "does not exist",
            "other.py": "no kernel at",
            "empty/read.me": "not a kernel file",
            "empty": "no kernel at",
        }
        for name, words in wrong.items():
            with pytest.raises(UsageError, match=words):
                await parts.intake.tune_path(str(parts.project / name), None, TuningRequest())
        parts.kill_workers()

    async def test_a_whole_disk_is_refused(self, parts: Parts, tmp_path: Path) -> None:
        """A tree with more directories than a project has is not watched, nor that of a kernel file that lies in it."""
        (tmp_path / "disk" / "a" / "b").mkdir(parents=True)
        path = tmp_path / "disk" / "tune_it.py"
        path.write_text(make_kernel_text())
        for directory in (path, path.parent):
            with pytest.raises(UsageError, match="more than 2 directories"):
                await limit_directories(parts, 2).tune_path(str(directory), None, TuningRequest())
        assert (parts.store.load_roots(), parts.root_changes) == ([], 0)
        assert len((await limit_directories(parts, 3).tune_path(str(path), None, TuningRequest()))[0]) == 1
        parts.kill_workers()

    async def test_roots_of_one_name_are_told_apart(self, parts: Parts, tmp_path: Path) -> None:
        """A root is named for its directory, with as many parents as it takes; each is watched and remembered."""
        for name in ("a/k", "b/k", "a/project"):
            path = tmp_path / name / "tune_it.py"
            path.parent.mkdir(parents=True)
            path.write_text(make_kernel_text())
            await parts.intake.tune_path(str(path), None, TuningRequest())
        assert sorted(root.name for root in parts.catalog.roots) == ["a-project", "b-k", "k", "project"]
        assert {root.name for root in parts.store.load_roots()} == {"a-project", "b-k", "k"}
        assert parts.root_changes == 3
        parts.kill_workers()

    async def test_link_is_followed(self, parts: Parts, tmp_path: Path) -> None:
        """A path through a link is the same root, not a second one."""
        parts.write_file(make_kernel_text())
        link = tmp_path / "link"
        link.symlink_to(parts.project)
        (job,), _ = await parts.intake.tune_path(str(link / "tune_it.py"), None, TuningRequest())
        assert (job.kernel, parts.root_changes) == ("project:it", 0)

    async def test_wish_comes_before_what_a_change_sets_off(self, parts: Parts) -> None:
        """A tuned kernel that was edited meanwhile is tuned as changed, not as its file says."""
        kernel = await parts.inspect_file(make_kernel_text())
        await parts.record_measurements(kernel, {50.0: 1.0}, rounds=ALL_ROUNDS)
        path = parts.write_file(make_kernel_text(rtol="0.5"))
        (job,), _ = await parts.intake.tune_path(str(path), None, TuningRequest(trials=2))
        assert [(waiting.id, waiting.plan.trials) for waiting in parts.jobs.list_live_jobs()] == [(job.id, 2)]
        assert [event["kernel"] for event in parts.recorder.list_events("stale")] == ["project:it"]


@pytest.mark.anyio
class TestTuneKernel:
    async def test_problems_with_one_key_are_one_job(self, parts: Parts) -> None:
        """They have one winner; what is asked for while a job looks for it is not passed over as fresh."""
        kernel = await parts.inspect_file(
            make_kernel_text(problems="[dict(n=1, k=1), dict(n=1, k=2), dict(n=2, k=1)]", specialize="('n',)")
        )
        jobs = await parts.request_jobs()
        assert [job.problem for job in jobs] == [{"n": 1, "k": 1}, {"n": 2, "k": 1}]
        for n in (1, 2):
            await parts.record_measurements(kernel, {50.0: 1.0}, {"n": n, "k": 5}, rounds=ALL_ROUNDS)
        await parts.jobs.cancel_job(jobs[1].id)
        again = await parts.request_jobs(stale_only=True)
        assert [job.id for job in again] == [jobs[0].id]

    async def test_without_problems_one_must_be_named(self, parts: Parts) -> None:
        """A kernel that declares none says how to name one."""
        await parts.inspect_file(make_kernel_text(problems=""))
        with pytest.raises(UsageError, match="declares no problems"):
            await parts.request_jobs()

    async def test_unknown_device_is_an_error(self, parts: Parts) -> None:
        """The hint lists what there is."""
        await parts.inspect_file(make_kernel_text())
        with pytest.raises(NotFound) as refused:
            await parts.request_jobs(device="cuda:7")
        assert "cpu:0 (Fake CPU)" in refused.value.hint

    async def test_missing_backend_is_a_failed_job_that_says_so(self, parts: Parts) -> None:
        """Who subscribed hears the reason, as with any other failure."""
        kernel = replace(await parts.inspect_file(make_kernel_text()), backend="no_such")
        (job,) = await parts.requests.request_jobs(kernel, TuningRequest())
        assert job.state == "failed"
        assert "has no backend 'no_such'" in job.message
        assert f"install the plugin that has it for {sys.executable}" in job.message
        assert parts.recorder.list_events("job_done")[0]["job"] == job.id


@pytest.mark.anyio
class TestTuneNamed:
    async def test_what_is_on_the_disk_is_tuned(self, parts: Parts) -> None:
        """A save that the watcher has not seen is taken in first; its event, later, supersedes nothing."""
        before = await parts.inspect_file(make_kernel_text())
        path = parts.write_file(make_kernel_text(rtol="0.5"))
        (job,), errors = await parts.intake.tune_named("it", TuningRequest())
        assert not errors
        assert parts.catalog.resolve_kernel("it").digest != before.digest
        changes = await parts.inspector.inspect_files(parts.root, [str(path)])
        await parts.renewal.react_to_changes(changes, saved=True)
        assert [live.id for live in parts.jobs.list_live_jobs()] == [job.id]

    async def test_all_files_of_the_kernel_are_looked_at(self, parts: Parts) -> None:
        """A module that the kernel imports counts as its own file does."""
        helper = parts.write_file("def twice(x):\n    return 2 * x\n", "helper.py")
        text = f"from helper import twice\n{make_kernel_text(reference='lambda x: dict(y=twice(x))')}"
        before = await parts.inspect_file(text)
        helper.write_text("def twice(x):\n    return x + x\n")
        await parts.intake.tune_named("it", TuningRequest())
        assert parts.catalog.resolve_kernel("it").digest != before.digest

    async def test_unchanged_files_are_not_inspected(self, parts: Parts) -> None:
        """Nothing is announced, and the catalog keeps what it has."""
        kernel = await parts.inspect_file(make_kernel_text())
        await parts.intake.tune_named("it", TuningRequest())
        assert parts.catalog.resolve_kernel("it") is kernel
        assert not parts.recorder.list_events("reloaded")

    async def test_what_is_wrong_with_the_file_is_returned(self, parts: Parts) -> None:
        """A slip that was saved just now stands beside the jobs, as for a path."""
        await parts.inspect_file(make_kernel_text())
        path = parts.write_file("syntax error")
        _, errors = await parts.intake.tune_named("it", TuningRequest())
        assert [error.path for error in errors] == [str(path)]

    async def test_a_kernel_that_is_gone_from_its_file_is_not_tuned(self, parts: Parts) -> None:
        """The error names it, and nothing waits."""
        await parts.inspect_file(make_kernel_text())
        parts.write_file(make_kernel_text("other"))
        with pytest.raises(NotFound):
            await parts.intake.tune_named("it", TuningRequest())
        assert {job.kernel for job in parts.jobs.list_live_jobs()} == {"project:other"}

    async def test_a_request_between_inspection_and_reaction_is_of_the_newer_state(self, parts: Parts) -> None:
        """It joins no job of the older state, and is not superseded with it."""
        await parts.inspect_file(make_kernel_text())
        (old,), _ = await parts.intake.tune_named("it", TuningRequest())
        path = parts.write_file(make_kernel_text(rtol="0.5"))
        changes = await parts.inspector.inspect_files(parts.root, [str(path)])
        (new,), _ = await parts.intake.tune_named("it", TuningRequest())
        assert new.id != old.id
        await parts.renewal.react_to_changes(changes, saved=True)
        assert [live.id for live in parts.jobs.list_live_jobs()] == [new.id]


@pytest.mark.anyio
async def test_directories_of_one_name_that_are_added_at_once(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each becomes a project with a name of its own, though none is watched when the other ones get theirs."""
    found: list[str] = []
    adopt = FileInspector.watch_root

    async def adopt_late(inspector: FileInspector, root: Root) -> Any:
        await wait_until(lambda: len(parts.store.load_roots()) >= 4)
        return await adopt(inspector, root)

    monkeypatch.setattr(FileInspector, "watch_root", adopt_late)

    async def add(directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / "tune_it.py").write_text(make_kernel_text())
        found.append((await parts.intake.add_path(str(directory), None)).root.name)

    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(add, tmp_path / f"of{number}" / "same")
    parts.kill_workers()
    assert len(set(found)) == 4
