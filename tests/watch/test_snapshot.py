"""A snapshot finds every change of bytes, and reads no file whose metadata prove that it is unchanged."""

from __future__ import annotations

import os
from pathlib import Path

from ktuned.ipc.stamps import ABSENT, SETTLED_NS, Sight, read_sight, stamp
from ktuned.watch.reinspection import Snapshot


def find_differing_paths(snapshot: Snapshot, entries: set[tuple[str, str]]) -> set[str]:
    """Return the paths that differ now."""
    return snapshot.find_differing_paths(entries, snapshot.look_at_files(path for path, _ in entries))


def test_paths_that_came_went_and_changed_differ(tmp_path: Path) -> None:
    """They differ until the recorded digest matches their bytes; an absent file has a digest, too."""
    changed, removed, added, unchanged = (tmp_path / name for name in ("changed", "gone", "came", "same"))
    for path in (changed, removed, unchanged):
        path.write_text("x")
    snapshot = Snapshot()
    entries = {(str(path), stamp(path)) for path in (changed, removed, added, unchanged)}
    assert find_differing_paths(snapshot, entries) == set()
    changed.write_text("y")
    removed.unlink()
    added.write_text("new")
    assert find_differing_paths(snapshot, entries) == {str(changed), str(removed), str(added)}
    assert (
        find_differing_paths(snapshot, {(str(path), stamp(path)) for path in (changed, removed, added, unchanged)})
        == set()
    )


def test_same_size_and_time_hide_no_change(tmp_path: Path) -> None:
    """A file that is replaced, or rewritten with its old time, has other metadata."""
    path = tmp_path / "it"
    path.write_text("x")
    old = read_sight(str(path))
    assert old is not None
    path.write_text("y")
    os.utime(path, ns=(old.modified_ns, old.modified_ns))
    rewritten = read_sight(str(path))
    replacement = tmp_path / "beside"
    replacement.write_text("z")
    os.utime(replacement, ns=(old.modified_ns, old.modified_ns))
    replacement.replace(path)
    assert len({old, rewritten, read_sight(str(path))}) == 3


def test_only_settled_sights_stand_for_bytes() -> None:
    """A file that has just changed may change again within a clock tick and keep its metadata."""
    now_ns = 10 * SETTLED_NS
    assert Sight(1, 1, 1, 0, now_ns - SETTLED_NS - 1).is_settled(now_ns)
    assert not Sight(1, 1, 1, 0, now_ns - SETTLED_NS).is_settled(now_ns)
    assert not Sight(1, 1, 1, 0, now_ns + 1).is_settled(now_ns)


def test_settled_files_are_read_once(tmp_path: Path) -> None:
    """A known file is not opened again until it is pruned."""
    path = tmp_path / "it"
    path.write_text("x")
    snapshot = Snapshot()
    entries = {("/usr/bin/env", stamp(Path("/usr/bin/env"))), (str(path), stamp(path))}
    first = snapshot.look_at_files(path for path, _ in entries)
    second = snapshot.look_at_files(path for path, _ in entries)
    assert second["/usr/bin/env"] is first["/usr/bin/env"]
    assert second[str(path)] is not first[str(path)]
    snapshot.prune_entries([])
    assert snapshot.look_at_files(["/usr/bin/env"])["/usr/bin/env"] is not first["/usr/bin/env"]


def test_failed_inspections_are_not_repeated(tmp_path: Path) -> None:
    """A failed inspection counts for these bytes and this entry only."""
    path = tmp_path / "it"
    path.write_text("broken")
    snapshot = Snapshot()
    entries = {(str(path), ABSENT)}
    sights = snapshot.look_at_files([str(path)])
    snapshot.accept_differences(entries, sights)
    assert find_differing_paths(snapshot, entries) == set()
    assert find_differing_paths(snapshot, {(str(path), "another digest")}) == {str(path)}
    path.write_text("mended")
    assert find_differing_paths(snapshot, entries) == {str(path)}
    snapshot.prune_entries([])
    path.write_text("broken")
    assert find_differing_paths(snapshot, entries) == {str(path)}


def test_change_during_an_inspection_is_not_accepted(tmp_path: Path) -> None:
    """The inspection may have read either content, so the file still differs."""
    path = tmp_path / "it"
    path.write_text("before")
    snapshot = Snapshot()
    entries = {(str(path), ABSENT)}
    sights = snapshot.look_at_files([str(path)])
    path.write_text("during it")
    snapshot.accept_differences(entries, sights)
    assert find_differing_paths(snapshot, entries) == {str(path)}
