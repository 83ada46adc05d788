"""Roots that are found at another place: the old one is forgotten at once, its names and results follow."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.model import canonical
from ktuned.scheduling.job_requests import TuningRequest
from ktuned.scheduling.root_moves import MissingRoot, find_moved_root
from tests.assembled import Parts, kernel_text

FILES = ("tune_a.py", "sub/tune_b.py")


@pytest.mark.parametrize(
    ("gone", "name", "there", "moved"),
    [
        ([], "k", FILES, None),
        ([MissingRoot("/a", "k", FILES)], "other", FILES, "/a"),
        ([MissingRoot("/a", "k", FILES)], "other", FILES[:1], "/a"),
        ([MissingRoot("/a", "k", (*FILES, "tune_c.py"))], "other", FILES[:1], None),
        ([MissingRoot("/a", "k")], "other", FILES, None),
        ([MissingRoot("/a", "k")], "k", (), "/a"),
        ([MissingRoot("/a", "x", FILES), MissingRoot("/b", "k", FILES)], "k", FILES, "/b"),
        ([MissingRoot("/a", "x", FILES[:1]), MissingRoot("/b", "y", FILES)], "k", FILES, "/b"),
    ],
)
def test_origin_of_a_directory(gone: list[MissingRoot], name: str, there: tuple[str, ...], moved: str | None) -> None:
    """The root of that name, or else the one that has half of its kernel files there, and the most of them."""
    found = find_moved_root(gone, name, there.__contains__)
    assert (found and found.path) == moved


@pytest.mark.anyio
async def test_a_project_that_moved_keeps_its_results(parts: Parts, tmp_path: Path) -> None:
    """Under another directory's name, and after the watcher has seen its files go; the old root is forgotten."""
    old, new = tmp_path / "before", tmp_path / "after"
    old.mkdir()
    (old / "tune_it.py").write_text(kernel_text())
    added = await parts.intake.add_path(str(old), None)
    (kernel,) = added.kernels
    await parts.measured(kernel, {50.0: 7.0})
    old.rename(new)
    await parts.inspector.inspect_files(added.root, [], [str(old / "tune_it.py")])
    again = await parts.intake.add_path(str(new), None)
    (kernel,) = again.kernels
    assert {root.path for root in parts.catalog.roots} == {parts.root.path, str(new)}
    assert {root.path for root in parts.store.load_roots()} == {str(new)}
    assert parts.intake.moves == [f"{old} is gone and is watched no longer: its project moved to {new}"]
    (trial,) = parts.store.list_trials(kernel=kernel.name, problem=canonical({"n": 64}), limit=9)
    assert trial.latency_us == 7.0
    assert parts.catalog.resolve_kernel("before:it").name == kernel.name == "after:it"
    assert parts.told.of("job_queued") == []
    parts.kill_workers()


@pytest.mark.anyio
async def test_a_copy_of_a_project_is_one_of_its_own(parts: Parts, tmp_path: Path) -> None:
    """While the first is there, nothing moved; and a root of config.toml stays, whatever becomes of it."""
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "tune_it.py").write_text(kernel_text())
    (parts.project / "tune_it.py").write_text(kernel_text())
    await parts.intake.tune_path(str(parts.project), None, TuningRequest())
    await parts.intake.add_path(str(copy), None)
    assert len(parts.catalog.roots) == 2
    parts.project.rename(tmp_path / "elsewhere")
    await parts.intake.add_path(str(tmp_path / "elsewhere"), None)
    assert len(parts.catalog.roots) == 3
    assert parts.intake.moves == []
    parts.kill_workers()
