"""A project file that is saved is followed: name, interpreter and environment, with all that was known before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ktuned.catalog import Changes
from ktuned.catalog.project_file import PROJECT_FILE
from ktuned.ipc.stamps import stamp
from ktuned.model.errors import StoreError
from ktuned.protocol.kernels import Root
from ktuned.scheduling.job_requests import TuningRequest
from tests.daemon_parts import ALL_ROUNDS, Parts, make_kernel_text

pytestmark = pytest.mark.anyio


async def saved(parts: Parts, text: str | None) -> None:
    """Save the project file (or remove it), as the watcher would have it inspected."""
    path = parts.project / PROJECT_FILE
    (root,) = parts.catalog.roots
    if text is None:
        path.unlink()
        found = await parts.inspector.inspect_files(root, [], [str(path)])
    else:
        path.write_text(text)
        found = await parts.inspector.inspect_files(root, [str(path)])
    await parts.renewal.react_to_changes(found, saved=True)


def status(parts: Parts, name: str) -> str:
    """Look a kernel up."""
    return str(parts.lookups.look_up(name, {"n": 64}, None, tune=False).answer.status)


async def test_winners_are_fresh_under_a_new_name(parts: Parts) -> None:
    """Nothing that decides differs, as with another checkout; the old name is not known any more."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 1.0}, rounds=ALL_ROUNDS)
    (winner,) = parts.store.list_winners()
    await parts.store.decide_winner(winner.trial, is_final=True)
    await saved(parts, "name = 'gemms'")
    assert [one.name for one in parts.catalog.kernels] == ["gemms:it"]
    assert [status(parts, name) for name in ("gemms:it", "project:it", "it")] == ["fresh", "unknown", "fresh"]
    (told,) = parts.recorder.list_events("reloaded")
    assert (told["added"], told["removed"]) == (["gemms:it"], ["project:it"])
    await saved(parts, None)
    assert [status(parts, name) for name in ("gemms:it", "project:it")] == ["unknown", "fresh"]
    parts.kill_workers()


async def test_a_waiting_job_goes_on_under_the_new_name(parts: Parts) -> None:
    """Its old self is cancelled, and a save asks for all that the kernel declares."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.requests.request_jobs(kernel, TuningRequest())
    await saved(parts, "name = 'gemms'")
    assert [(job.kernel, job.problem) for job in parts.jobs.list_live_jobs()] == [("gemms:it", {"n": 64})]
    parts.kill_workers()


async def test_interpreter_and_environment_are_followed(parts: Parts, tmp_path: Path) -> None:
    """A file's kernels are inspected by the interpreter that the project names now."""
    await parts.inspect_file(make_kernel_text())
    python = parts.project / "python"
    used = tmp_path / "used"
    python.write_text(f'#!/bin/sh\ntouch {used}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    await saved(parts, "python = 'python'\nenv = {A = '1'}")
    (root,) = parts.catalog.roots
    assert (root.name, root.python, root.env) == ("project", str(python), {"A": "1"})
    assert used.exists()
    parts.kill_workers()


async def test_a_file_that_could_not_be_followed_to_the_end_is_followed_again(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inspections after its change failed: until they were made, it counts as not inspected."""
    await parts.inspect_file(make_kernel_text())
    path = parts.project / PROJECT_FILE

    async def fail(root: Root) -> Changes:
        raise StoreError("no")

    with monkeypatch.context() as patch:
        patch.setattr(parts.inspector, "inspect_root", fail)
        with pytest.raises(StoreError):
            await saved(parts, "env = {A = '1'}")
    assert (str(path), stamp(path)) not in parts.catalog.list_inspected_stamps()
    found = await parts.inspector.inspect_files(parts.catalog.roots[0], [str(path)])
    assert found.inspected == ("project:it",)
    assert (str(path), stamp(path)) in parts.catalog.list_inspected_stamps()
    parts.kill_workers()


async def test_a_wrong_file_changes_nothing(parts: Parts) -> None:
    """It is listed as an error until it is mended or gone; the kernels stay."""
    await parts.inspect_file(make_kernel_text())
    await saved(parts, "name = 'gemms'")
    for text in ("name = 1", "name = "):
        await saved(parts, text)
        (error,) = parts.catalog.errors
        assert error.path == str(parts.project / PROJECT_FILE)
        assert [one.name for one in parts.catalog.kernels] == ["gemms:it"]
        assert parts.catalog.list_errors_below(parts.root.path) == [error]
        (root,) = parts.catalog.roots
        await parts.inspector.inspect_root(root)
        assert parts.catalog.errors == [error], "an inspection of the root leaves it"
    await saved(parts, "name = 'gemms'\n")
    assert parts.catalog.errors == []
    assert parts.recorder.list_events("reloaded")[-1]["mended"] == [str(parts.project / PROJECT_FILE)]
    parts.kill_workers()


async def test_a_kernel_file_below_a_project_file_belongs_to_its_project(parts: Parts, tmp_path: Path) -> None:
    """The root is the directory of the project file, and a wrong one is an error of the request."""
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / PROJECT_FILE).write_text("name = 'gemms'")
    (top / "sub" / "tune_it.py").write_text(make_kernel_text())
    (job,), errors = await parts.intake.tune_path(str(top / "sub" / "tune_it.py"), None, TuningRequest())
    assert (job.kernel, errors) == ("gemms:it", [])
    assert [root.path for root in parts.store.load_roots()] == [str(top)]
    parts.kill_workers()


async def test_defaults_stand_in_for_budgets_that_files_do_not_set(parts: Parts) -> None:
    """A value that the kernel file sets stays, even ktuned's own; a saved change plans again and keeps figures."""
    kernel = await parts.inspect_file(make_kernel_text(preset="", trials="1000"))
    assert (kernel.plan.preset, kernel.plan.trials, kernel.plan.time_limit_s) == ("default", 1000, None)
    await saved(parts, "[defaults]\npreset = 'thorough'\ntrials = 7\ntime_limit_s = 30\n")
    followed = parts.catalog.resolve_kernel("it")
    assert (followed.plan.preset, followed.plan.trials, followed.plan.time_limit_s) == ("thorough", 1000, 30)
    assert followed.digest == kernel.digest
    assert followed.plan_digest != kernel.plan_digest
    (told,) = parts.recorder.list_events("reloaded")
    assert (told["replanned"], told["changed"]) == ([kernel.name], [])
    await saved(parts, None)
    assert parts.catalog.resolve_kernel("it").plan_digest == kernel.plan_digest
    parts.kill_workers()
