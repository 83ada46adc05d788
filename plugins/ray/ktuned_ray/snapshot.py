"""Snapshot of a project's root: its files by content, so that another machine can have the same.

It has all regular files below the root, up to limits, except the files of editors, version control and package
managers; and every file that a kernel's context lists, wherever it is.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from ktuned.ipc import DIRECTORY, LISTING, make_absolute, make_relative

MAX_FILES: Final = 8192
MAX_FILE_BYTES: Final = 32 << 20
MAX_BYTES: Final = 256 << 20
"""Limits of the files that travel in addition to a context's own: enough for sources and small data, but not for
checkpoints and build trees."""

_LEFT_OUT = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
"""Directories that are never part of a project's code. Nor are those whose names begin with a dot."""


class Snapshot(msgspec.Struct, frozen=True):
    """A root's files at one time: their SHA-256 by relative path, the executable ones, and the directories."""

    files: Mapping[str, str]
    executable: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()


class _SnapshotDraft(msgspec.Struct):
    files: dict[str, str] = msgspec.field(default_factory=dict)
    executable: list[str] = msgspec.field(default_factory=list)
    directories: list[str] = msgspec.field(default_factory=list)
    total: int = 0


class Snapshots:
    """Takes snapshots of one root. A file whose size, times and inode are the same is not read again."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}

    def take_snapshot(self, listed: Iterable[str] = ()) -> Snapshot:
        """Return the root's current files, and the files that a context has ``listed`` (relative paths). Blocks."""
        found = _SnapshotDraft()
        seen: dict[str, tuple[tuple[int, ...], str]] = {}
        for place in (*self._walk_files(self._root, found), *(make_absolute(name, self._root) for name in listed)):
            name = make_relative(place, self._root)
            if name not in found.files:
                self._add_file(name, place, found, seen)
        self._known = seen
        return Snapshot(found.files, tuple(found.executable), tuple(found.directories))

    def _walk_files(self, top: str, found: _SnapshotDraft) -> Iterator[str]:
        for directory, directories, files in os.walk(top):
            directories[:] = sorted(name for name in directories if not name.startswith("."))
            found.directories += (make_relative(os.path.join(directory, name), self._root) for name in directories)
            directories[:] = [name for name in directories if name not in _LEFT_OUT]
            for name in sorted(files):
                place = os.path.join(directory, name)
                if len(found.files) >= MAX_FILES or found.total >= MAX_BYTES or not _is_small(place):
                    continue
                yield place

    def _add_file(
        self, name: str, place: str, found: _SnapshotDraft, seen: dict[str, tuple[tuple[int, ...], str]]
    ) -> None:
        try:
            state = os.stat(place)
            if not stat.S_ISREG(state.st_mode):
                return
            looks = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
            known = self._known.get(place)
            if known is not None and known[0] == looks:
                digest = known[1]
            else:
                digest = hashlib.sha256(Path(place).read_bytes()).hexdigest()
        except OSError:
            return
        seen[place] = looks, digest
        found.files[name] = digest
        found.total += state.st_size
        if state.st_mode & 0o111:
            found.executable.append(name)


def holds_files(snapshot: Snapshot, digests: Mapping[str, str]) -> bool:
    """Return whether a snapshot has every file of a context, with the content that the context lists."""
    files = {name: held for name, held in digests.items() if held != DIRECTORY and not held.startswith(LISTING)}
    return all(snapshot.files.get(name, "") == digest for name, digest in files.items())


def _is_small(place: str) -> bool:
    try:
        return os.stat(place).st_size <= MAX_FILE_BYTES
    except OSError:
        return False
