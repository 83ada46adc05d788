"""Reinspection: from paths that may have changed to kernel files whose meaning has.

A path leads to the kernel files that depend on it (:mod:`ktuned.catalog.dependencies`). They are inspected only if the
bytes of a file that they depend on differ from what their last inspection recorded: a file that is touched, or saved
twice, costs nothing. Links are followed to both ends.

An inspection runs user code, which may take a minute to import. Meanwhile files are looked at every 0.5 s, so that what
is saved during it is suspect at once, and lookups do not call its old winner ``fresh``.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from ktuned.catalog import (
    Catalog,
    Changes,
    FileInspector,
    find_kernel_files,
    is_kernel_file,
    is_looked_into,
    printable_path,
)
from ktuned.ipc import follow_links
from ktuned.model import KtunedError, Root
from ktuned.watch.snapshot import SeenFile, Snapshot

_log = structlog.get_logger()

OnChanges = Callable[[Changes, bool], Awaitable[None]]
"""Takes the changes of an inspection, and whether they were saved just now."""

PATIENCE_S = 0.3
"""Inspections that take longer are not waited for: what is saved meanwhile is suspect, too."""

LOOK_S = 0.5
"""Interval at which all files are looked at during a long inspection, in which no event is followed."""


class Reinspection:
    """Inspects what differs from the catalog; ``notice`` says why the last inspection failed, if it did.

    ``doubts_changed`` is called when the catalog knows of files that are to be inspected, and when they were: answers
    that depend on them are stale meanwhile.
    """

    def __init__(
        self, catalog: Catalog, inspector: FileInspector, on_changes: OnChanges, doubts_changed: Callable[[], None]
    ) -> None:
        self.notice = ""
        self._doubts_changed = doubts_changed
        self._catalog = catalog
        self._inspector = inspector
        self._on_changes = on_changes
        self._snapshot = Snapshot()
        self._seen: frozenset[str] = frozenset()
        self._under_way: frozenset[str] = frozenset()

    async def prune_stamps(self, entries: set[tuple[str, str]]) -> None:
        """Forget the stamps of all files but these."""
        await anyio.to_thread.run_sync(self._snapshot.prune_entries, entries)

    async def affected_kernel_files(self, paths: Iterable[str]) -> set[str]:
        """Return the kernel files to inspect because of paths that something happened to."""
        changed = set(paths)
        if not changed:
            return set()
        # A generated header may lie where no kernel file is looked for.
        differing = await self.differing_paths(self._catalog.inspected_stamps(self._catalog.find_dependents(changed)))
        affected = self._catalog.find_dependents(differing)
        if linked := await anyio.to_thread.run_sync(_paths_behind_links, changed):
            alike = self._catalog.find_dependents(linked) - affected
            recorded = {file: {path for path, _ in self._catalog.inspected_stamps({file})} for file in alike}
            affected |= await anyio.to_thread.run_sync(_led_elsewhere, recorded, linked)
        if self._seen:
            # An edit that was taken back leaves nothing to inspect.
            await self._look_for_suspects()
        for path in changed:
            if os.path.isdir(path) and not self._is_skipped(path):
                root = self._catalog.root_of(path)
                assert root is not None
                found = await anyio.to_thread.run_sync(find_kernel_files, path, root.path)
                affected.update(filter(self.is_news, found))
            elif self.is_news(path):
                affected.add(path)
        return affected

    async def differing_paths(self, entries: set[tuple[str, str]]) -> set[str]:
        """Return the paths of entries that are not what was inspected."""
        seen = await anyio.to_thread.run_sync(self._snapshot.look_at_files, {path for path, _ in entries})
        return self._snapshot.differing_paths(entries, seen)

    def is_news(self, path: str) -> bool:
        """Return whether a kernel file came that was not inspected, or went that was."""
        if not is_kernel_file(path) or os.path.isdir(path) or self._is_skipped(path):
            return False
        is_known = self._catalog.has_inspected(printable_path(path))
        if not os.path.exists(path):
            return is_known
        root = self._catalog.root_of(path)
        return not is_known and root is not None and bool(find_kernel_files(path, root.path))

    async def inspect_new_roots(self, paths: Iterable[str]) -> None:
        """Inspect roots that are watched from now on: they may have changed, but were not saved just now."""
        async with self._keep_looking():
            for path in sorted(paths):
                root = self._catalog.root_of(path)
                if root is not None and root.path == path and os.path.isdir(path):
                    try:
                        found = await self._inspector.inspect_root(root)
                        await self._on_changes(found.changes, False)
                    except Exception as error:
                        self._record_failure(error)

    async def inspect_files(self, affected: set[str]) -> None:
        """Inspect kernel files, and pass on what that changed."""
        by_root = self._by_root(affected)
        if not by_root:
            return
        for _, files in by_root:
            self._catalog.suspect_files(files)
        self._doubts_changed()
        async with self._keep_looking():
            for root, files in by_root:
                # What is noted of a project file before its kernels are inspected clears no doubt.
                self._under_way = frozenset(files)
                seen = await self._look_at_files(files)
                present = [file for file in files if os.path.isfile(file)]
                try:
                    found = await self._inspector.inspect_files(root, present, set(files) - set(present))
                    self._snapshot.accept_differences(self._catalog.inspected_stamps(set(files)), seen)
                    self._catalog.clear_files(files)
                    await self._on_changes(found.changes, True)
                    # For those that an edit changed nothing about.
                    self._doubts_changed()
                    self.notice = ""
                except Exception as error:
                    self._seen |= {*files}
                    self._record_failure(error)
                finally:
                    self._under_way = frozenset()

    @asynccontextmanager
    async def _keep_looking(self) -> AsyncIterator[None]:
        """Look for further suspects while a block takes long: user code may take a minute to import."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._look_repeatedly)
            yield
            tasks.cancel_scope.cancel()
        if self._seen:
            # What is still to be inspected has its event under way.
            await self._look_for_suspects()

    async def _look_repeatedly(self) -> None:
        await anyio.sleep(PATIENCE_S)
        while True:
            await self._look_for_suspects()
            await anyio.sleep(LOOK_S)

    async def _look_for_suspects(self) -> None:
        """Have all files suspected that differ from what was inspected, and no longer those that did and do not."""
        found = frozenset(self._catalog.find_dependents(await self.differing_paths(self._catalog.inspected_stamps())))
        if found != self._seen:
            self._catalog.clear_files(self._seen - found - self._under_way)
            self._catalog.suspect_files(found)
            self._seen = found
            self._doubts_changed()

    async def _look_at_files(self, files: Iterable[str]) -> dict[str, SeenFile]:
        """Return how kernel files are now, and all that they depend on."""
        entries = self._catalog.inspected_stamps(set(files))
        return await anyio.to_thread.run_sync(self._snapshot.look_at_files, {*files, *(path for path, _ in entries)})

    def _record_failure(self, error: Exception) -> None:
        # The next survey finds the files as they are.
        if isinstance(error, KtunedError):
            self.notice = f"a save was not taken in: {error.message}"
            _log.error("save_not_taken_in", reason=error.message, hint=error.hint)
        else:
            # An unexpected error must not end a daemon that answers lookups.
            self.notice = f"a save was not taken in: {type(error).__name__}: {error}"
            _log.error("save_not_taken_in", reason=str(error), exc_info=error)

    def _is_skipped(self, path: str) -> bool:
        """Return whether kernel files are not looked for at a path."""
        root = self._catalog.root_of(path)
        if root is None:
            return True
        return not all(map(is_looked_into, path[len(root.path) :].strip("/").split("/")))

    def _by_root(self, files: set[str]) -> list[tuple[Root, list[str]]]:
        grouped: dict[str, tuple[Root, list[str]]] = {}
        for file in sorted(files):
            root = self._catalog.root_of(file)
            if root is not None:
                grouped.setdefault(root.path, (root, []))[1].append(file)
        return list(grouped.values())


def _paths_behind_links(paths: set[str]) -> set[str]:
    """Return the paths that are links, or lie behind one."""
    return {path for path in paths if os.path.realpath(path) != path}


def _led_elsewhere(recorded: Mapping[str, set[str]], linked: set[str]) -> set[str]:
    """Return the kernel files of which a path at or below a link leads to a file that is not recorded.

    It has become a link, with the same content: an edit where it leads must be seen.
    """
    return {
        file
        for file, paths in recorded.items()
        for path in paths
        if not linked.isdisjoint(map(str, (Path(path), *Path(path).parents)))
        and not paths.issuperset(map(str, follow_links(Path(path))))
    }
