"""Finds the files that kernels depend on and that have changed since they were inspected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from time import time_ns
from typing import NamedTuple

from ktuned.ipc import ABSENT, Sight, read_sight, stamp_whole, stamps_agree


class SeenFile(NamedTuple):
    """A file's sight, and the SHA-256 of its bytes at that time (``ABSENT`` if it could not be read)."""

    sight: Sight | None
    digest: str


class Snapshot:
    """Compares files with the digests that their inspections recorded, and reads only those whose sight is new.

    An *entry* is a path with the digest that the catalog holds for it.
    """

    def __init__(self) -> None:
        self._seen: dict[str, SeenFile] = {}
        self._accepted: dict[tuple[str, str], str] = {}

    def look_at_files(self, paths: Iterable[str]) -> dict[str, SeenFile]:
        """Return the present state of each file. Blocks as long as the disk does."""
        return {path: self._look_at_file(path) for path in paths}

    def find_differing_paths(self, entries: Iterable[tuple[str, str]], seen: Mapping[str, SeenFile]) -> set[str]:
        """Return the paths whose digest is neither the recorded one nor one that was accepted instead."""
        return {
            path
            for path, held in entries
            if not stamps_agree(held, seen[path].digest) and self._accepted.get((path, held)) != seen[path].digest
        }

    def accept_differences(self, entries: Iterable[tuple[str, str]], seen: Mapping[str, SeenFile]) -> None:
        """Accept that entries differ from the present state (``seen``) of files whose inspection has just failed.

        The recorded digests are still those from before the failed inspection, and inspecting the same bytes again
        would fail again. A file that has changed meanwhile will be inspected.
        """
        for path, held in entries:
            then = seen.get(path)
            if then is not None and not stamps_agree(held, then.digest) and read_sight(path) == then.sight:
                self._accepted[path, held] = then.digest

    def prune_entries(self, entries: Iterable[tuple[str, str]]) -> None:
        """Forget all files and entries but these."""
        kept = set(entries)
        paths = {path for path, _ in kept}
        self._seen = {path: seen for path, seen in self._seen.items() if path in paths}
        self._accepted = {entry: digest for entry, digest in self._accepted.items() if entry in kept}

    def _look_at_file(self, path: str) -> SeenFile:
        now_ns = time_ns()
        sight = read_sight(path)
        known = self._seen.get(path)
        if known is not None and known.sight == sight:
            return known
        # The sight is taken before the bytes are read, so a change between the two shows in the next sight.
        seen = SeenFile(sight, ABSENT if sight is None else stamp_whole(Path(path)))
        if sight is None or sight.is_settled(now_ns):
            self._seen[path] = seen
        else:
            self._seen.pop(path, None)
        return seen
