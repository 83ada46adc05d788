"""A saved project file changes its project's name, interpreter and environment, and nothing known is lost."""

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


async def save_project_file(parts: Parts, text: str | None) -> None:
    """Save or remove the project file, and inspect it as the watcher does."""
    path = parts.project / PROJECT_FILE
    (root,) = parts.catalog.roots
    if text is None:
        path.unlink()
        changes = await parts.inspector.inspect_files(root, [], [str(path)])
    else:
        path.write_text(text)
        changes = await parts.inspector.inspect_files(root, [str(path)])
    await parts.renewal.react_to_changes(changes, saved=True)


def get_status(parts: Parts, name: str) -> str:
    return str(parts.look_up(name).status)


async def test_winners_are_fresh_under_a_new_name(parts: Parts) -> None:
    """Nothing that decides differs, as in another checkout; the old name is unknown."""
    kernel = await parts.inspect_file(make_kernel_text())
    await parts.record_measurements(kernel, {50.0: 1.0}, rounds=ALL_ROUNDS)
    (winner,) = parts.store.list_winners()
    await parts.store.decide_winner(winner.trial, is_final=True)
    await save_project_file(parts, "name = 'gemms'")
    assert [kernel.name for kernel in parts.catalog.kernels] == ["gemms:it"]
    assert [get_status(parts, name) for name in ("gemms:it", "project:it", "it")] == ["fresh", "unknown", "fresh"]
    (event,) = parts.recorder.list_events("reloaded")
    assert (event["added"], event["removed"]) == (["gemms:it"], ["project:it"])
    await save_project_file(parts, None)
    assert [get_status(parts, name) for name in ("gemms:it", "project:it")] == ["unknown", "fresh"]
    parts.kill_workers()


async def test_a_waiting_job_goes_on_under_the_new_name(parts: Parts) -> None:
    """The old job is cancelled, and the save requests jobs for everything that the kernel declares."""
    await parts.inspect_file(make_kernel_text())
    await parts.request_jobs()
    await save_project_file(parts, "name = 'gemms'")
    assert [(job.kernel, job.problem) for job in parts.jobs.list_live_jobs()] == [("gemms:it", {"n": 64})]
    parts.kill_workers()


async def test_interpreter_and_environment_are_followed(parts: Parts, tmp_path: Path) -> None:
    """A file's kernels are inspected by the interpreter in the project file."""
    await parts.inspect_file(make_kernel_text())
    python = parts.project / "python"
    used = tmp_path / "used"
    python.write_text(f'#!/bin/sh\ntouch {used}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    await save_project_file(parts, "python = 'python'\nenv = {A = '1'}")
    (root,) = parts.catalog.roots
    assert (root.name, root.python, root.env) == ("project", str(python), {"A": "1"})
    assert used.exists()
    parts.kill_workers()


async def test_a_file_that_could_not_be_followed_to_the_end_is_followed_again(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the inspections after its change failed, it counts as not inspected."""
    await parts.inspect_file(make_kernel_text())
    path = parts.project / PROJECT_FILE

    async def fail(root: Root) -> Changes:
        raise StoreError("no")

    with monkeypatch.context() as patch:
        patch.setattr(parts.inspector, "inspect_root", fail)
        with pytest.raises(StoreError):
            await save_project_file(parts, "env = {A = '1'}")
    assert (str(path), stamp(path)) not in parts.catalog.list_inspected_stamps()
    changes = await parts.inspector.inspect_files(parts.catalog.roots[0], [str(path)])
    assert changes.inspected == ("project:it",)
    assert (str(path), stamp(path)) in parts.catalog.list_inspected_stamps()
    parts.kill_workers()


async def test_a_wrong_file_changes_nothing(parts: Parts) -> None:
    """It is listed as an error until it is repaired or removed; the kernels stay."""
    await parts.inspect_file(make_kernel_text())
    await save_project_file(parts, "name = 'gemms'")
    for text in ("name = 1", "name = "):
        await save_project_file(parts, text)
        (error,) = parts.catalog.errors
        assert error.path == str(parts.project / PROJECT_FILE)
        assert [kernel.name for kernel in parts.catalog.kernels] == ["gemms:it"]
        assert parts.catalog.list_errors_below(parts.root.path) == [error]
        (root,) = parts.catalog.roots
        await parts.inspector.inspect_root(root)
        assert parts.catalog.errors == [error], "an inspection of the root leaves it"
    await save_project_file(parts, "name = 'gemms'\n")
    assert parts.catalog.errors == []
    assert parts.recorder.list_events("reloaded")[-1]["mended"] == [str(parts.project / PROJECT_FILE)]
    parts.kill_workers()


async def test_a_kernel_file_below_a_project_file_belongs_to_its_project(parts: Parts, tmp_path: Path) -> None:
    """The root is the project file's directory; a wrong project file is an error of the request."""
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / PROJECT_FILE).write_text("name = 'gemms'")
    (top / "sub" / "tune_it.py").write_text(make_kernel_text())
    (job,), errors = await parts.intake.tune_path(str(top / "sub" / "tune_it.py"), None, TuningRequest())
    assert (job.kernel, errors) == ("gemms:it", [])
    assert [root.path for root in parts.store.load_roots()] == [str(top)]
    parts.kill_workers()


async def test_defaults_stand_in_for_budgets_that_files_do_not_set(parts: Parts) -> None:
    """A value in the kernel file stays, even if it equals ktuned's default; a change of the defaults plans again and
    keeps figures.
    """
    kernel = await parts.inspect_file(make_kernel_text(preset="", trials="1000"))
    assert (kernel.plan.preset, kernel.plan.trials, kernel.plan.time_limit_s) == ("default", 1000, None)
    await save_project_file(parts, "[defaults]\npreset = 'thorough'\ntrials = 7\ntime_limit_s = 30\n")
    followed = parts.catalog.resolve_kernel("it")
    assert (followed.plan.preset, followed.plan.trials, followed.plan.time_limit_s) == ("thorough", 1000, 30)
    assert followed.digest == kernel.digest
    assert followed.plan_digest != kernel.plan_digest
    (event,) = parts.recorder.list_events("reloaded")
    assert (event["replanned"], event["changed"]) == ([kernel.name], [])
    await save_project_file(parts, None)
    assert parts.catalog.resolve_kernel("it").plan_digest == kernel.plan_digest
    parts.kill_workers()
