"""A snapshot finds every change of bytes, and reads no file whose sight proves that there was none."""

from __future__ import annotations

import os
from pathlib import Path

from ktuned.ipc.stamps import ABSENT, SETTLED_NS, Sight, read_sight, stamp
from ktuned.watch.snapshot import Snapshot


def differing(snapshot: Snapshot, entries: set[tuple[str, str]]) -> set[str]:
    """Return the paths that differ now."""
    return snapshot.find_differing_paths(entries, snapshot.look_at_files(path for path, _ in entries))


def test_paths_that_came_went_and_changed_differ(tmp_path: Path) -> None:
    """They differ until their recorded digest is that of their bytes; a file that is not there has a digest, too."""
    changed, gone, came, same = (tmp_path / name for name in ("changed", "gone", "came", "same"))
    for path in (changed, gone, same):
        path.write_text("x")
    snapshot = Snapshot()
    entries = {(str(path), stamp(path)) for path in (changed, gone, came, same)}
    assert differing(snapshot, entries) == set()
    changed.write_text("y")
    gone.unlink()
    came.write_text("new")
    assert differing(snapshot, entries) == {str(changed), str(gone), str(came)}
    assert differing(snapshot, {(str(path), stamp(path)) for path in (changed, gone, came, same)}) == set()


def test_same_size_and_time_hide_no_change(tmp_path: Path) -> None:
    """A file that is replaced, or rewritten with its old time, has another sight."""
    path = tmp_path / "it"
    path.write_text("x")
    old = read_sight(str(path))
    assert old is not None
    path.write_text("y")
    os.utime(path, ns=(old.modified_ns, old.modified_ns))
    rewritten = read_sight(str(path))
    beside = tmp_path / "beside"
    beside.write_text("z")
    os.utime(beside, ns=(old.modified_ns, old.modified_ns))
    beside.replace(path)
    assert len({old, rewritten, read_sight(str(path))}) == 3


def test_only_settled_sights_stand_for_bytes() -> None:
    """A file that changed just now may change again within a tick of the clock, and keep its sight."""
    now_ns = 10 * SETTLED_NS
    assert Sight(1, 1, 1, 0, now_ns - SETTLED_NS - 1).is_settled(now_ns)
    assert not Sight(1, 1, 1, 0, now_ns - SETTLED_NS).is_settled(now_ns)
    assert not Sight(1, 1, 1, 0, now_ns + 1).is_settled(now_ns)


def test_settled_files_are_read_once(tmp_path: Path) -> None:
    """A file whose sight is known is not opened; one that is pruned is."""
    path = tmp_path / "it"
    path.write_text("x")
    snapshot = Snapshot()
    entries = {("/usr/bin/env", stamp(Path("/usr/bin/env"))), (str(path), stamp(path))}
    first = snapshot.look_at_files(path for path, _ in entries)
    again = snapshot.look_at_files(path for path, _ in entries)
    assert again["/usr/bin/env"] is first["/usr/bin/env"]
    assert again[str(path)] is not first[str(path)]
    snapshot.prune_entries([])
    assert snapshot.look_at_files(["/usr/bin/env"])["/usr/bin/env"] is not first["/usr/bin/env"]


def test_failed_inspections_are_not_repeated(tmp_path: Path) -> None:
    """What was inspected in vain counts as known, for these bytes and this entry alone."""
    path = tmp_path / "it"
    path.write_text("broken")
    snapshot = Snapshot()
    entries = {(str(path), ABSENT)}
    sights = snapshot.look_at_files([str(path)])
    snapshot.accept_differences(entries, sights)
    assert differing(snapshot, entries) == set()
    assert differing(snapshot, {(str(path), "another digest")}) == {str(path)}
    path.write_text("mended")
    assert differing(snapshot, entries) == {str(path)}
    snapshot.prune_entries([])
    path.write_text("broken")
    assert differing(snapshot, entries) == {str(path)}


def test_change_during_an_inspection_is_not_accepted(tmp_path: Path) -> None:
    """The inspection may have read either; the file differs until one is known to have been read."""
    path = tmp_path / "it"
    path.write_text("before")
    snapshot = Snapshot()
    entries = {(str(path), ABSENT)}
    sights = snapshot.look_at_files([str(path)])
    path.write_text("during it")
    snapshot.accept_differences(entries, sights)
    assert differing(snapshot, entries) == {str(path)}
