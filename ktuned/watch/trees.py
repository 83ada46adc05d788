"""Which directories are watched: whole trees for the roots, single ones for what kernels depend on elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from ktuned.catalog import is_looked_into, walk
from ktuned.watch.inotify import Happening, Inotify, Mask

_GONE = Mask.DELETE_SELF | Mask.MOVE_SELF | Mask.UNMOUNT
_LEFT = Mask.MOVED_FROM | Mask.DELETE


class Trees:
    """The watches of one inotify instance, by directory; turns its events into paths."""

    def __init__(self, inotify: Inotify) -> None:
        self._inotify = inotify
        self._watches: dict[str, int] = {}
        self._directories: dict[int, str] = {}
        self._roots: set[str] = set()

    def cover(self, roots: Iterable[str], directories: Iterable[str]) -> tuple[list[str], list[str]]:
        """Watch these roots and these single directories; return the roots, and the directories, that are new.

        A root that does not exist is left out; of a single directory that does not, the nearest above it is watched.

        Raises:
            OSError: there are no more watches to be had.
        """
        wanted = set(roots)
        for root in self._roots - wanted:
            self._leave(root)
            for outer in self._roots:
                if _is_at_or_below(root, outer):
                    self._enter(outer)
        new = [root for root in sorted(wanted - self._roots) if os.path.isdir(root)]
        for root in new:
            self._enter(root)
            self._roots.add(root)
        begun = []
        for directory in directories:
            if directory not in self._watches:
                nearest = _nearest(directory)
                if nearest not in self._watches:
                    self._watch(nearest)
                    begun += [directory] if nearest in self._watches else []
        return new, begun

    def missing(self, roots: Iterable[str]) -> bool:
        """Tell whether a root is not watched, because it is not there."""
        return any(root not in self._roots for root in roots)

    def read(self) -> tuple[set[str], bool]:
        """Return the paths that changed, at once, and whether events were lost.

        Raises:
            OSError: there are no more watches to be had for a directory that is new.
        """
        found: set[str] = set()
        is_lost = False
        for happening in self._inotify.read():
            if happening.mask & Mask.OVERFLOW:
                is_lost = True
                continue
            path = self._path(happening)
            if path is not None:
                found.add(path)
        return found, is_lost

    def _path(self, happening: Happening) -> str | None:
        """Return the path that an event is about, if it changed; follows what happens to directories."""
        directory = self._directories.get(happening.watch)
        if directory is None:
            return None
        if happening.mask & Mask.IGNORED:
            self._drop(directory)
            return None
        if happening.mask & _GONE:
            self._leave(directory)
            return directory
        path = os.path.join(directory, happening.name)
        if happening.mask & _LEFT:
            self._leave(path)
            return path
        if happening.mask & (Mask.CREATE | Mask.MOVED_TO):
            if os.path.isdir(path):
                if is_looked_into(happening.name) and any(_is_at_or_below(path, root) for root in self._roots):
                    self._enter(path)
            elif happening.mask & Mask.CREATE and not _is_linked(path):
                # Its writer is still to close it.
                return None
        return path

    def _enter(self, top: str) -> None:
        for directory, _ in walk(top):
            self._watch(directory)

    def _watch(self, directory: str) -> None:
        # What vanished meanwhile is told of by its parent.
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            number = self._inotify.watch(directory)
            # A directory that two paths lead to has one watch, which tells of the first.
            self._directories.setdefault(number, directory)
            self._watches[directory] = number

    def _leave(self, top: str) -> None:
        for directory in [top, *(one for one in self._watches if one.startswith(f"{top}/"))]:
            number = self._watches.get(directory)
            if number is not None and self._directories.get(number) == directory:
                self._inotify.forget(number)
            self._drop(directory)

    def _drop(self, directory: str) -> None:
        self._roots.discard(directory)
        number = self._watches.pop(directory, None)
        if number is not None and self._directories.get(number) == directory:
            del self._directories[number]


def _nearest(directory: str) -> str:
    while not os.path.isdir(directory) and directory != "/":
        directory = os.path.dirname(directory)
    return directory


def _is_linked(path: str) -> bool:
    """Tell whether a new name stands for a file that nobody needs to write: a link to one."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return os.path.islink(path) or found.st_nlink > 1


def _is_at_or_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(f"{directory}/")
