"""Roots whose directories are gone: noted at once, forgotten after a day, or when another one takes their name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from ktuned.catalog.roots import make_root
from ktuned.protocol import Root
from ktuned.scheduling.intake import GONE_S, Intake
from tests.daemon_parts import ALL_ROUNDS, Parts, make_kernel_text

pytestmark = pytest.mark.anyio


async def add_root(parts: Parts, path: Path) -> Root:
    """Return a root that a request has added."""
    path.mkdir(exist_ok=True)
    root = make_root(str(path))
    await parts.store.add_root(root)
    parts.catalog.add_root(root)
    return root


def restart_part(parts: Parts) -> Intake:
    """Return the part as it is when a daemon starts; the project is a root of ``config.toml``."""
    return Intake(
        parts.daemon.known,
        inspector=parts.inspector,
        foreign_names=parts.daemon.foreign_names,
        requests=parts.requests,
        renewal=parts.renewal,
        list_configured=lambda: {parts.root.path},
    )


async def test_a_root_that_is_gone_for_a_day_is_forgotten(parts: Parts, tmp_path: Path) -> None:
    """The daemon may end in between; a root of config.toml stays, and a notice names what was forgotten."""
    root = await add_root(parts, tmp_path / "gone")
    shutil.rmtree(root.path)
    shutil.rmtree(parts.project)
    await restart_part(parts).check_missing_roots(1000.0)
    assert root in parts.catalog.roots
    second = restart_part(parts)
    await second.check_missing_roots(1000.0 + GONE_S - 1)
    assert root in parts.catalog.roots
    await second.check_missing_roots(1000.0 + GONE_S)
    assert (parts.catalog.roots, parts.store.load_roots()) == ([replace(parts.root)], [])
    assert root.path in second.notice
    assert parts.store.load_absences() == {}
    Path(root.path).mkdir()
    await add_root(parts, Path(root.path))
    assert second.notice == ""


async def test_an_absence_begins_anew_when_the_directory_came_back_or_the_clock_was_set_back(
    parts: Parts, tmp_path: Path
) -> None:
    """Only one that lasts for a day by the clock counts."""
    root = await add_root(parts, tmp_path / "gone")
    gone = restart_part(parts)
    shutil.rmtree(root.path)
    await gone.check_missing_roots(1000.0)
    Path(root.path).mkdir()
    await gone.check_missing_roots(2000.0)
    assert parts.store.load_absences() == {}
    shutil.rmtree(root.path)
    await gone.check_missing_roots(9e9)
    await gone.check_missing_roots(1000.0)
    assert parts.store.load_absences() == {root.path: 1000.0}
    await gone.check_missing_roots(999.0 + GONE_S)
    assert root in parts.catalog.roots


async def test_a_project_that_moved_keeps_its_name_and_its_results(parts: Parts, tmp_path: Path) -> None:
    """Its project file names it, so its kernels have the names that they had; a copy beside it has one of its own."""
    old, new, copy = tmp_path / "before", tmp_path / "after", tmp_path / "copy"
    old.mkdir()
    (old / "tune_it.py").write_text(make_kernel_text())
    (old / "ktuned.toml").write_text('name = "gemms"\n')
    (kernel,) = (await parts.intake.add_path(str(old), None)).kernels
    await parts.record_measurements(kernel, {50.0: 7.0}, rounds=ALL_ROUNDS)
    shutil.copytree(old, copy)
    (twin,) = (await parts.intake.add_path(str(copy), None)).kernels
    assert twin.name == "gemms-copy:it"
    old.rename(new)
    (kernel,) = (await parts.intake.add_path(str(new), None)).kernels
    assert kernel.name == "gemms:it"
    assert {root.path for root in parts.store.load_roots()} == {str(new), str(copy)}
    assert str(old) in parts.intake.notice
    assert parts.look_up("gemms:it").status == "fresh"
    parts.kill_workers()
