"""Roots whose directories are gone: noted at once, forgotten after a day, however often the daemon ends meanwhile."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ktuned.catalog.roots import make_root
from ktuned.scheduling.root_expiry import GONE_S, RootExpiry, judge_absences
from tests.assembled import Parts


def test_absence_counts_from_the_first_look_that_found_it() -> None:
    """A directory that came back begins again, and a clock that was set back makes nothing expire."""
    first = judge_absences(["/a", "/b"], {}, 1000.0)
    assert (first.since, first.expired) == ({"/a": 1000.0, "/b": 1000.0}, frozenset())
    assert judge_absences(["/a"], first.since, 1000.0 + GONE_S - 1).expired == frozenset()
    later = judge_absences(["/a"], first.since, 1000.0 + GONE_S)
    assert (later.since, later.expired) == ({"/a": 1000.0}, {"/a"})
    assert judge_absences(["/a"], {"/a": 9e9}, 1000.0).since == {"/a": 1000.0}


def expiry(parts: Parts, configured: set[str]) -> RootExpiry:
    """Return the part as it is when a daemon starts."""
    return RootExpiry(
        catalog=parts.catalog, store=parts.store, configured=lambda: configured, drop=parts.renewal.drop_roots
    )


@pytest.mark.anyio
async def test_a_root_that_is_gone_for_a_day_is_forgotten(parts: Parts, tmp_path: Path) -> None:
    """The daemon may end in between; a root of config.toml stays, and a notice names what was forgotten."""
    place = tmp_path / "gone"
    place.mkdir()
    root = make_root(str(place))
    await parts.store.add_root(root)
    parts.catalog.add_root(root)
    shutil.rmtree(place)
    shutil.rmtree(parts.project)
    configured = {parts.root.path}
    await expiry(parts, configured).check_roots(1000.0)
    assert root in parts.catalog.roots
    second = expiry(parts, configured)
    await second.check_roots(1000.0 + GONE_S)
    assert (parts.catalog.roots, parts.store.load_roots()) == ([replace(parts.root)], [])
    assert str(place) in second.notice
    assert parts.store.load_absences() == {}
