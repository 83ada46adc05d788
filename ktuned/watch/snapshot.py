"""Stamps of the files that kernels depend on: which of them no longer hold what was inspected."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import time_ns
from typing import NamedTuple

from ktuned.ipc import ABSENT, stamp, stamps_agree

SETTLED_NS = 2_000_000_000
"""The coarsest clock of a common file system (FAT): a file that changed more recently may change again within the same
tick, and keep its stamp."""


class Stamp(NamedTuple):
    """The state of a file or directory as ``stat`` shows it: once settled, equal stamps mean equal contents."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    def is_settled(self, now_ns: int) -> bool:
        """Return whether any later change gives another stamp, for a stamp that was taken after ``now_ns``."""
        return self.changed_ns < now_ns - SETTLED_NS


def stamp_of_path(path: str) -> Stamp | None:
    """Return the stamp of what a path leads to, or ``None`` if there is nothing."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class FileSight(NamedTuple):
    """A file's stamp, and the SHA-256 of the bytes that it held then (``ABSENT`` if it could not be read)."""

    stamp: Stamp | None
    digest: str


class Snapshot:
    """Compares files with the digests that their inspections recorded, and reads only those whose stamp is new.

    An *entry* is a path with the digest that the catalog holds for it.
    """

    def __init__(self) -> None:
        self._sights: dict[str, FileSight] = {}
        self._accepted: dict[tuple[str, str], str] = {}

    def look_at_files(self, paths: Iterable[str]) -> dict[str, FileSight]:
        """Return how each file is now. Blocks as long as the disk does."""
        return {path: self._look_at_file(path) for path in paths}

    def differing_paths(self, entries: Iterable[tuple[str, str]], sights: Mapping[str, FileSight]) -> set[str]:
        """Return the paths whose digest is not the recorded one, nor one that was accepted in its place."""
        return {
            path
            for path, held in entries
            if not stamps_agree(held, sights[path].digest) and self._accepted.get((path, held)) != sights[path].digest
        }

    def accept_differences(self, entries: Iterable[tuple[str, str]], sights: Mapping[str, FileSight]) -> None:
        """Let entries differ from files that have just been inspected, as ``sights`` had shown them.

        The inspection failed, so that the recorded digests are still those from before it: to inspect the same bytes
        again would fail again. A file that has changed meanwhile is left to be inspected.
        """
        for path, held in entries:
            sight = sights.get(path)
            if sight is not None and not stamps_agree(held, sight.digest) and stamp_of_path(path) == sight.stamp:
                self._accepted[path, held] = sight.digest

    def prune_entries(self, entries: Iterable[tuple[str, str]]) -> None:
        """Forget all files and entries but these."""
        kept = set(entries)
        paths = {path for path, _ in kept}
        self._sights = {path: sight for path, sight in self._sights.items() if path in paths}
        self._accepted = {entry: digest for entry, digest in self._accepted.items() if entry in kept}

    def _look_at_file(self, path: str) -> FileSight:
        now_ns = time_ns()
        found = stamp_of_path(path)
        known = self._sights.get(path)
        if known is not None and known.stamp == found:
            return known
        # The stamp is older than the bytes: a change between the two shows in the next stamp.
        sight = FileSight(found, ABSENT if found is None else stamp(Path(path)))
        if found is None or found.is_settled(now_ns):
            self._sights[path] = sight
        else:
            self._sights.pop(path, None)
        return sight
