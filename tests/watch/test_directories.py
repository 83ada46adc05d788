"""A set of directories holds all that is to be watched and nothing else, and knows when it no longer does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ktuned.watch.directories import ELSEWHERE, NOT_UTF8, DirectorySet, Plan


def plan(*roots: Path, directories: tuple[Path, ...] = (), polled: dict[str, str] | None = None) -> Plan:
    """Return a plan of paths."""
    return Plan(tuple(map(str, roots)), frozenset(map(str, directories)), polled or {})


def make(root: Path, *names: str) -> None:
    """Make directories."""
    for name in names:
        (root / name).mkdir(parents=True)


def native(directories: DirectorySet, below: Path) -> set[str]:
    """Return the directories that are watched by events, relative to one."""
    return {os.path.relpath(path, below) for path in directories.list_native_directories()}


def test_directories_of_other_programs_are_never_watched(tmp_path: Path) -> None:
    """Neither below a root, nor because a kernel depends on a file there; where a root itself lies is no matter."""
    root = tmp_path / ".git" / "root"
    skipped = (".git", ".venv/lib", "node_modules/a", "site-packages/b", "__pycache__", "venv/lib", ".cache", "dist")
    make(root, "a/b", "build/include", *skipped)
    (root / "venv" / "pyvenv.cfg").touch()
    outside = tmp_path / "opt" / "site-packages" / "cuda"
    outside.mkdir(parents=True)
    needed = (root / "build/include", root / ".venv/lib", root / "node_modules/a", outside, root / "__pycache__")
    found = DirectorySet.scan_directories(plan(root, directories=needed))
    assert native(found, root) == {".", "a", "a/b", "build/include"}
    assert not found.lacks_directories(plan(root, directories=(*needed, root / "node_modules" / "c")))
    assert found.lacks_directories(plan(root, directories=(*needed, root / "dist")))


def test_directory_that_is_not_there_is_awaited(tmp_path: Path) -> None:
    """The nearest one above it is watched, until it, or one above it, comes."""
    root, away = tmp_path / "root", tmp_path / "away" / "from" / "it"
    root.mkdir()
    later = plan(root, tmp_path / "later" / "root", directories=(away,))
    found = DirectorySet.scan_directories(later)
    assert native(found, tmp_path) == {"root", "."}
    assert found.list_found_roots() == {str(root)}
    assert not found.find_differences().is_outdated
    assert not found.is_outdated_by([str(tmp_path / "else")])
    assert found.is_outdated_by([str(tmp_path / "away")])
    assert found.is_outdated_by([str(tmp_path / "later")])
    away.mkdir(parents=True)
    assert found.find_differences().is_outdated
    assert native(DirectorySet.scan_directories(later), tmp_path) == {"root", ".", "away/from/it"}


def test_directories_that_come_and_go_outdate_a_set(tmp_path: Path) -> None:
    """So does one that is replaced, or becomes a virtual environment; files, and directories of others, do not."""
    make(tmp_path, "a/b", "c", ".git", "away")
    (tmp_path / "a" / "tune_it.py").touch()
    found = DirectorySet.scan_directories(plan(tmp_path))
    assert not found.is_outdated_by([str(tmp_path / name) for name in ("a/tune_it.py", ".git", "gone.txt", "x/y")])
    for name in ("a", "a/b", "a/pyvenv.cfg"):
        assert found.is_outdated_by([str(tmp_path / name)])
    assert not found.find_differences().is_outdated
    make(tmp_path, "a/new")
    assert found.is_outdated_by([str(tmp_path / "a" / "new")])
    assert found.find_differences().is_outdated
    single = DirectorySet.scan_directories(plan(directories=(tmp_path / "c",)))
    (tmp_path / "c").rmdir()
    assert single.find_differences().is_outdated


def test_kernel_files_that_come_and_go_are_differences(tmp_path: Path) -> None:
    """They are found without their events: by a later look at the same set, once, and between two scans."""
    make(tmp_path, "a")
    (tmp_path / "tune_gone.py").touch()
    found = DirectorySet.scan_directories(plan(tmp_path))
    (tmp_path / "tune_gone.py").unlink()
    (tmp_path / "a" / "tune_new.py").touch()
    (tmp_path / "a" / "other.py").touch()
    changed = {str(tmp_path / "tune_gone.py"), str(tmp_path / "a" / "tune_new.py")}
    later = DirectorySet.scan_directories(plan(tmp_path))
    assert later.list_changed_kernel_files(found) == changed
    assert later.list_changed_kernel_files(DirectorySet()) == set()
    assert found.find_differences().kernel_files == changed
    assert found.find_differences().kernel_files == frozenset()


def test_linked_directory_is_watched_by_its_name_in_the_root(tmp_path: Path) -> None:
    """Of two paths to one directory inotify names the one that was added last: that of the root."""
    root, away = tmp_path / "root", tmp_path / "away"
    make(tmp_path, "root", "away")
    (root / "linked").symlink_to(away)
    found = DirectorySet.scan_directories(plan(root, directories=(away,))).list_native_directories()
    assert found.index(str(away)) < found.index(str(root / "linked"))


def test_each_root_is_watched_in_its_own_way(tmp_path: Path) -> None:
    """A polled root inside another, or one with a name that is not UTF-8, leaves the others as they are."""
    make(tmp_path, "a/inner/deep", "b", "c")
    (tmp_path / "b" / os.fsdecode(b"x\xff")).touch()
    roots = tuple(tmp_path / name for name in ("a", "a/inner", "b", "c"))
    found = DirectorySet.scan_directories(plan(*roots, polled={str(tmp_path / "a" / "inner"): ""}))
    assert native(found, tmp_path) == {"a", "c"}
    assert {os.path.relpath(path, tmp_path) for path in found.list_polled_directories()} == {
        "a/inner",
        "a/inner/deep",
        "b",
    }
    reasons = {group.root: group.reason for group in found.groups if group.is_polled}
    assert reasons == {str(tmp_path / "a" / "inner"): "", str(tmp_path / "b"): NOT_UTF8}
    assert found.is_polled(str(tmp_path / "b" / "y"))
    assert not found.raises_events(str(tmp_path / "b" / "y"))
    assert found.raises_events(str(tmp_path / "a" / "y"))
    assert not found.raises_events(str(tmp_path / "away" / "y"))


@pytest.mark.parametrize(
    ("reason", "root"),
    [
        ('Unable to decode path "{0}/b/x\\xFF" to string', "{0}/b"),
        ('OS file watch limit reached. about ["{0}/a/big"]', "{0}/a"),
        ('No such device about ["{0}/away"]', ELSEWHERE),
        ("Too many open files (os error 24)", "{0}/a"),
        ('IO error for operation on "{0}/b2/x"', "{0}/a"),
    ],
)
def test_root_of_a_failed_watch_is_found(tmp_path: Path, reason: str, root: str) -> None:
    """It is the one that the message names, or else the one with the most directories."""
    make(tmp_path, "a/big/bigger", "b", "away")
    found = DirectorySet.scan_directories(plan(tmp_path / "a", tmp_path / "b", directories=(tmp_path / "away",)))
    assert found.find_failed_root(reason.format(tmp_path)) == root.format(tmp_path)
    polled = {str(tmp_path / "a"): "", str(tmp_path / "b"): "", ELSEWHERE: ""}
    nothing_native = DirectorySet.scan_directories(plan(tmp_path / "a", tmp_path / "b", polled=polled))
    assert nothing_native.find_failed_root(reason.format(tmp_path)) is None
