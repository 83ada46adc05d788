"""A set of directories holds exactly what must be watched, and knows when it is outdated."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ktuned.watch.directories import ELSEWHERE, NOT_UTF8, DirectorySet, Plan


def make_plan(*roots: Path, directories: tuple[Path, ...] = (), polled: dict[str, str] | None = None) -> Plan:
    """Return a plan of paths."""
    return Plan(tuple(map(str, roots)), frozenset(map(str, directories)), polled or {})


def make_directories(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)


def list_native_directories(directories: DirectorySet, below: Path) -> set[str]:
    """Return the directories that are watched by events, relative to ``below``."""
    return {os.path.relpath(path, below) for path in directories.list_native_directories()}


def test_directories_of_other_programs_are_never_watched(tmp_path: Path) -> None:
    """Not even if a kernel depends on a file there; where a root itself lies does not matter."""
    root = tmp_path / ".git" / "root"
    skipped = (".git", ".venv/lib", "node_modules/a", "site-packages/b", "__pycache__", "venv/lib", ".cache", "dist")
    make_directories(root, "a/b", "build/include", *skipped)
    (root / "venv" / "pyvenv.cfg").touch()
    outside = tmp_path / "opt" / "site-packages" / "cuda"
    outside.mkdir(parents=True)
    needed_directories = (
        root / "build/include",
        root / ".venv/lib",
        root / "node_modules/a",
        outside,
        root / "__pycache__",
    )
    directory_set = DirectorySet.scan_directories(make_plan(root, directories=needed_directories))
    assert list_native_directories(directory_set, root) == {".", "a", "a/b", "build/include"}
    assert not directory_set.lacks_directories(
        make_plan(root, directories=(*needed_directories, root / "node_modules" / "c"))
    )
    assert directory_set.lacks_directories(make_plan(root, directories=(*needed_directories, root / "dist")))


def test_directory_that_is_not_there_is_awaited(tmp_path: Path) -> None:
    """The nearest existing parent is watched until the directory or a parent appears."""
    root, absent = tmp_path / "root", tmp_path / "away" / "from" / "it"
    root.mkdir()
    awaited = make_plan(root, tmp_path / "later" / "root", directories=(absent,))
    directory_set = DirectorySet.scan_directories(awaited)
    assert list_native_directories(directory_set, tmp_path) == {"root", "."}
    assert directory_set.list_found_roots() == {str(root)}
    assert not directory_set.find_differences().is_outdated
    assert not directory_set.is_outdated_by([str(tmp_path / "else")])
    assert directory_set.is_outdated_by([str(tmp_path / "away")])
    assert directory_set.is_outdated_by([str(tmp_path / "later")])
    absent.mkdir(parents=True)
    assert directory_set.find_differences().is_outdated
    assert list_native_directories(DirectorySet.scan_directories(awaited), tmp_path) == {"root", ".", "away/from/it"}


def test_directories_that_come_and_go_outdate_a_set(tmp_path: Path) -> None:
    """A replaced directory, or one that becomes a virtual environment, does, too; files and skipped directories do
    not.
    """
    make_directories(tmp_path, "a/b", "c", ".git", "away")
    (tmp_path / "a" / "tune_it.py").touch()
    directory_set = DirectorySet.scan_directories(make_plan(tmp_path))
    assert not directory_set.is_outdated_by(
        [str(tmp_path / name) for name in ("a/tune_it.py", ".git", "gone.txt", "x/y")]
    )
    for name in ("a", "a/b", "a/pyvenv.cfg"):
        assert directory_set.is_outdated_by([str(tmp_path / name)])
    assert not directory_set.find_differences().is_outdated
    make_directories(tmp_path, "a/new")
    assert directory_set.is_outdated_by([str(tmp_path / "a" / "new")])
    assert directory_set.find_differences().is_outdated
    single_set = DirectorySet.scan_directories(make_plan(directories=(tmp_path / "c",)))
    (tmp_path / "c").rmdir()
    assert single_set.find_differences().is_outdated


def test_kernel_files_that_come_and_go_are_differences(tmp_path: Path) -> None:
    """They are found without events, once: by a later look at the same set, and between two scans."""
    make_directories(tmp_path, "a")
    (tmp_path / "tune_gone.py").touch()
    directory_set = DirectorySet.scan_directories(make_plan(tmp_path))
    (tmp_path / "tune_gone.py").unlink()
    (tmp_path / "a" / "tune_new.py").touch()
    (tmp_path / "a" / "other.py").touch()
    changed = {str(tmp_path / "tune_gone.py"), str(tmp_path / "a" / "tune_new.py")}
    later_set = DirectorySet.scan_directories(make_plan(tmp_path))
    assert later_set.list_changed_kernel_files(directory_set) == changed
    assert later_set.list_changed_kernel_files(DirectorySet()) == set()
    assert directory_set.find_differences().kernel_files == changed
    assert directory_set.find_differences().kernel_files == frozenset()


def test_linked_directory_is_watched_by_its_name_in_the_root(tmp_path: Path) -> None:
    """Inotify names a directory by the path that was added last, which must be the root's."""
    root, linked = tmp_path / "root", tmp_path / "away"
    make_directories(tmp_path, "root", "away")
    (root / "linked").symlink_to(linked)
    native_directories = DirectorySet.scan_directories(make_plan(root, directories=(linked,))).list_native_directories()
    assert native_directories.index(str(linked)) < native_directories.index(str(root / "linked"))


def test_each_root_is_watched_in_its_own_way(tmp_path: Path) -> None:
    """A polled root inside another, or a name that is not UTF-8, does not affect other roots."""
    make_directories(tmp_path, "a/inner/deep", "b", "c")
    (tmp_path / "b" / os.fsdecode(b"x\xff")).touch()
    roots = tuple(tmp_path / name for name in ("a", "a/inner", "b", "c"))
    directory_set = DirectorySet.scan_directories(make_plan(*roots, polled={str(tmp_path / "a" / "inner"): ""}))
    assert list_native_directories(directory_set, tmp_path) == {"a", "c"}
    reasons = {group.root: group.reason for group in directory_set.groups if group.is_polled}
    assert reasons == {str(tmp_path / "a" / "inner"): "", str(tmp_path / "b"): NOT_UTF8}
    assert directory_set.is_polled(str(tmp_path / "b" / "y"))
    assert not directory_set.raises_events(str(tmp_path / "b" / "y"))
    assert directory_set.raises_events(str(tmp_path / "a" / "y"))
    assert not directory_set.raises_events(str(tmp_path / "away" / "y"))


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
    """It is the root that the message names, otherwise the root with the most directories."""
    make_directories(tmp_path, "a/big/bigger", "b", "away")
    directory_set = DirectorySet.scan_directories(
        make_plan(tmp_path / "a", tmp_path / "b", directories=(tmp_path / "away",))
    )
    assert directory_set.find_failed_root(reason.format(tmp_path)) == root.format(tmp_path)
