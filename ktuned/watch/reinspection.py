"""Reinspection: finds the kernel files that paths which may have changed affect, and inspects them again.

A path leads to the kernel files that depend on it (:mod:`ktuned.catalog.dependencies`). They are inspected only if the
bytes of a file that they depend on differ from what their last inspection recorded: a file that is touched, or saved
twice, costs nothing. Both a link and its target count.

An inspection runs user code, which may take a minute to import. Meanwhile files are looked at every 0.5 s. So a file
that is saved during the inspection becomes suspect at once, and lookups do not call its old winner ``fresh``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import time_ns
from typing import NamedTuple

import anyio
import anyio.to_thread
import msgspec
import structlog

from ktuned.catalog import (
    Catalog,
    Changes,
    FileInspector,
    escape_path,
    find_kernel_files,
    is_kernel_file,
    may_hold_kernel_files,
)
from ktuned.ipc import ABSENT, Sight, follow_links, read_sight, stamp_whole, stamps_agree
from ktuned.model import KtunedError
from ktuned.protocol import Root


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


_log = structlog.get_logger()

OnChanges = Callable[[Changes, bool], Awaitable[None]]
"""Takes the changes of an inspection, and whether they were saved just now."""

PATIENCE_S = 0.3
"""If an inspection takes longer, files that are saved meanwhile become suspect before it ends."""

LOOK_S = 0.5
"""Interval at which all files are looked at during a long inspection, when no events are processed."""


class Reinspection(msgspec.Struct, eq=False):
    """Inspects files that differ from the catalog; ``notice`` says why the last inspection failed, if it did.

    ``on_doubts_changed`` is called when files are found that must be inspected, and again after their inspection,
    because answers that depend on them are stale meanwhile.
    """

    catalog: Catalog
    inspector: FileInspector
    on_changes: OnChanges
    notice: str = ""
    _snapshot: Snapshot = msgspec.field(default_factory=Snapshot)
    _seen: frozenset[str] = msgspec.field(default_factory=frozenset)
    _under_way: frozenset[str] = msgspec.field(default_factory=frozenset)

    async def prune_stamps(self, entries: set[tuple[str, str]]) -> None:
        """Forget the stamps of all files but these."""
        await anyio.to_thread.run_sync(self._snapshot.prune_entries, entries)

    async def find_affected_kernel_files(self, paths: Iterable[str]) -> set[str]:
        """Return the kernel files to inspect because of paths with events."""
        changed = set(paths)
        if not changed:
            return set()
        # Look at dependencies first: a generated header may lie where kernel files are not looked for.
        differing = await self.find_differing_paths(
            self.catalog.list_inspected_stamps(self.catalog.find_dependents(changed))
        )
        affected = self.catalog.find_dependents(differing)
        if linked := await anyio.to_thread.run_sync(_resolve_links, changed):
            alike = self.catalog.find_dependents(linked) - affected
            recorded = {file: {path for path, _ in self.catalog.list_inspected_stamps({file})} for file in alike}
            affected |= await anyio.to_thread.run_sync(_find_kernel_files_behind_links, recorded, linked)
        if self._seen:
            # An edit that was undone leaves nothing to inspect.
            await self._mark_suspects()
        for path in changed:
            if os.path.isdir(path) and not self._is_never_searched(path):
                root = self.catalog.find_root(path)
                assert root is not None
                found = await anyio.to_thread.run_sync(find_kernel_files, path, root.path)
                affected.update(filter(self.is_new_or_gone, found))
            elif self.is_new_or_gone(path):
                affected.add(path)
        return affected

    async def find_differing_paths(self, entries: set[tuple[str, str]]) -> set[str]:
        """Return the paths of entries that differ from what was inspected."""
        seen = await anyio.to_thread.run_sync(self._snapshot.look_at_files, {path for path, _ in entries})
        return self._snapshot.find_differing_paths(entries, seen)

    def is_new_or_gone(self, path: str) -> bool:
        """Return whether a path is a new kernel file, or an inspected kernel file that is gone."""
        if not is_kernel_file(path) or os.path.isdir(path) or self._is_never_searched(path):
            return False
        is_known = self.catalog.has_inspected(escape_path(path))
        if not os.path.exists(path):
            return is_known
        root = self.catalog.find_root(path)
        return not is_known and root is not None and bool(find_kernel_files(path, root.path))

    async def inspect_new_roots(self, paths: Iterable[str]) -> None:
        """Inspect newly watched roots. Their files may have changed, but were not saved just now."""
        async with self._look_for_suspects_meanwhile():
            for path in sorted(paths):
                root = self.catalog.find_root(path)
                if root is not None and root.path == path and os.path.isdir(path):
                    try:
                        await self.on_changes(await self.inspector.inspect_root(root), False)
                    except Exception as error:
                        self._record_failure(error)

    async def inspect_files(self, affected: set[str]) -> None:
        """Inspect kernel files, and pass on the changes."""
        by_root = self._by_root(affected)
        if not by_root:
            return
        for _, files in by_root:
            self.catalog.mark_suspect_files({*files})
        async with self._look_for_suspects_meanwhile():
            for root, files in by_root:
                # While a project file's kernels are not inspected yet, noting the project file must clear no doubt.
                self._under_way = frozenset(files)
                seen = await self._look_at_files(files)
                present = [file for file in files if os.path.isfile(file)]
                try:
                    changes = await self.inspector.inspect_files(root, present, set(files) - set(present))
                    self._snapshot.accept_differences(self.catalog.list_inspected_stamps(set(files)), seen)
                    self.catalog.clear_suspect_files({*files})
                    await self.on_changes(changes, True)
                    self.notice = ""
                except Exception as error:
                    self._seen |= {*files}
                    self._record_failure(error)
                finally:
                    self._under_way = frozenset()

    @asynccontextmanager
    async def _look_for_suspects_meanwhile(self) -> AsyncIterator[None]:
        """Look for further suspects while the block runs, because user code may take a minute to import."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look_repeatedly)
            yield
            tasks.cancel_scope.cancel()
        if self._seen:
            # Events for files that must still be inspected will follow.
            await self._mark_suspects()

    async def _look_repeatedly(self) -> None:
        await anyio.sleep(PATIENCE_S)
        while True:
            await self._mark_suspects()
            await anyio.sleep(LOOK_S)

    async def _mark_suspects(self) -> None:
        """Mark all files as suspect that differ from what was inspected, and unmark those that no longer do."""
        found = frozenset(
            self.catalog.find_dependents(await self.find_differing_paths(self.catalog.list_inspected_stamps()))
        )
        if found != self._seen:
            self.catalog.clear_suspect_files(self._seen - found - self._under_way)
            self.catalog.mark_suspect_files(found)
            self._seen = found

    async def _look_at_files(self, files: Iterable[str]) -> dict[str, SeenFile]:
        """Return the present state of kernel files and of all their dependencies."""
        entries = self.catalog.list_inspected_stamps(set(files))
        return await anyio.to_thread.run_sync(self._snapshot.look_at_files, {*files, *(path for path, _ in entries)})

    def _record_failure(self, error: Exception) -> None:
        # The next survey will find the files again.
        if isinstance(error, KtunedError):
            self.notice = f"a saved file was not inspected: {error.message}"
            _log.error("inspection_failed", reason=error.message, hint=error.hint)
        else:
            # An unexpected error must not end a daemon that answers lookups.
            self.notice = f"a saved file was not inspected: {type(error).__name__}: {error}"
            _log.error("inspection_failed", reason=str(error), exc_info=error)

    def _is_never_searched(self, path: str) -> bool:
        """Return whether kernel files are not looked for at a path."""
        root = self.catalog.find_root(path)
        if root is None:
            return True
        return not all(map(may_hold_kernel_files, path[len(root.path) :].strip("/").split("/")))

    def _by_root(self, files: set[str]) -> list[tuple[Root, list[str]]]:
        grouped: dict[str, tuple[Root, list[str]]] = {}
        for file in sorted(files):
            root = self.catalog.find_root(file)
            if root is not None:
                grouped.setdefault(root.path, (root, []))[1].append(file)
        return list(grouped.values())


def _resolve_links(paths: set[str]) -> set[str]:
    """Return the paths that are links, or lie behind a link."""
    return {path for path in paths if os.path.realpath(path) != path}


def _find_kernel_files_behind_links(recorded: Mapping[str, set[str]], linked: set[str]) -> set[str]:
    """Return the kernel files that depend on a path, at or below a link, which leads to a file that is not recorded.

    Such a path has become a link to the same content, and edits of the link's target must be noticed from now on.
    """
    return {
        file
        for file, paths in recorded.items()
        for path in paths
        if not linked.isdisjoint(map(str, (Path(path), *Path(path).parents)))
        and not paths.issuperset(map(str, follow_links(Path(path))))
    }
