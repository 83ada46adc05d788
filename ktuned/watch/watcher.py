"""Watches the roots: turns events of the file system into inspections, and those into what changed."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from time import monotonic

import anyio
import anyio.to_thread
import structlog

from ktuned.catalog import Catalog, Changes, Survey, find_kernel_files, is_kernel_file, is_looked_into
from ktuned.ipc import stamp
from ktuned.model import KtunedError, Root
from ktuned.watch.inotify import Inotify
from ktuned.watch.polling import Snapshot
from ktuned.watch.trees import Trees

_log = structlog.get_logger()

DEBOUNCE_S = 0.05
"""Editors write a file in several steps, checkouts many files: events that lie this close together are one save."""

QUIET_S = 0.025
"""After this long without an event a save is over."""

POLL_S = 1.0
"""How often a root is looked at that raises no events, or that is not there yet."""

RETRY_S = 60.0
"""How often inotify is tried again after it had no more watches; meanwhile everything is polled."""

OnChanges = Callable[[Changes, bool], Awaitable[None]]
"""Takes what changed, and whether somebody saved it just now."""


class Watcher:
    """Watches what the catalog says is to be watched; ``notice`` says what keeps it from doing so well.

    ``caught_up`` is set once it is known what changed while nobody watched.
    """

    def __init__(self, catalog: Catalog, survey: Survey, on_changes: OnChanges) -> None:
        self._catalog = catalog
        self._survey = survey
        self._on_changes = on_changes
        self.caught_up = anyio.Event()
        self._taking = anyio.Lock()
        self._waiting: anyio.CancelScope | None = None
        self._is_due = False
        self._limit = ""
        self._overflows = 0
        self._refused = ""

    @property
    def notice(self) -> str:
        """What is not as it should be, in one line."""
        lost = f"lost file events {self._overflows} times and looked at everything again"
        lost = f"{lost}; raise fs.inotify.max_queued_events" if self._overflows else ""
        return "; ".join(filter(None, (self._limit, lost, self._refused)))

    def roots_changed(self) -> None:
        """Have the new set of roots watched."""
        self._is_due = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def run(self) -> None:
        """Watch until cancelled: by inotify, and by polling where a root says so or inotify is exhausted."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._poll)
            while True:
                try:
                    with Inotify() as inotify:
                        self._limit = ""
                        await self._follow(inotify)
                except OSError as error:
                    self._limit = f"watching by polling: {error.strerror}; raise fs.inotify.max_user_watches"
                    _log.warning("watch_failed", reason=str(error))
                    await anyio.sleep(RETRY_S)

    async def _follow(self, inotify: Inotify) -> None:
        """Take in what inotify tells.

        Raises:
            OSError: it has no more watches to give.
        """
        trees = Trees(inotify)
        while True:
            self._is_due = False
            roots = [root.path for root in self._catalog.roots if not root.polling]
            directories = self._catalog.directories()
            new, begun = await anyio.to_thread.run_sync(trees.cover, roots, directories)
            if new or begun:
                # What was saved between the last inspection and the start of the watching raised no event.
                await self._appear(new)
                await self._take(await self._changed_on_disk(begun))
                continue
            self.caught_up.set()
            changed, is_lost = await self._next(inotify, trees, is_missing=trees.missing(roots))
            if is_lost:
                self._overflows += 1
                _log.warning("events_lost")
                changed |= set(roots) | await self._changed_on_disk()
            await self._take(changed)

    async def _next(self, inotify: Inotify, trees: Trees, *, is_missing: bool) -> tuple[set[str], bool]:
        """Wait for the next save and return its paths, none after a while or when the roots changed."""
        if self._is_due:
            return set(), False
        with anyio.move_on_after(POLL_S if is_missing else None) as self._waiting:
            await anyio.wait_readable(inotify.descriptor)
        self._waiting = None
        changed, is_lost = trees.read()
        until = monotonic() + DEBOUNCE_S
        while changed and not is_lost and (left := until - monotonic()) > 0:
            with anyio.move_on_after(min(QUIET_S, left)) as quiet:
                await anyio.wait_readable(inotify.descriptor)
            if quiet.cancelled_caught:
                break
            more, is_lost = trees.read()
            changed |= more
        return changed, is_lost

    async def _poll(self) -> None:
        """Look again and again at what raises no events."""
        before: Snapshot | None = None
        while True:
            roots = [root.path for root in self._catalog.roots if root.polling or self._limit]
            if not roots:
                before = None
            else:
                now = await anyio.to_thread.run_sync(Snapshot.take, roots, {path for path, _ in self._catalog.stamps()})
                if before is None or now.roots != before.roots:
                    await self._appear(now.roots)
                else:
                    await self._take(now.differences(before))
                before = now
                self.caught_up.set()
            await anyio.sleep(POLL_S)

    async def _changed_on_disk(self, directories: Iterable[str] | None = None) -> set[str]:
        """Return the files that are not what was inspected: all, or those in some directories."""
        stamps = self._catalog.stamps()
        if directories is not None:
            chosen = set(directories)
            stamps = {entry for entry in stamps if os.path.dirname(entry[0]) in chosen}
        return await anyio.to_thread.run_sync(_changed, stamps)

    async def _appear(self, paths: Iterable[str]) -> None:
        """Look at roots that are watched from now on: they may not be what they were, though nobody saved them now."""
        for path in paths:
            root = self._catalog.root_of(path)
            if root is not None and root.path == path and os.path.isdir(path):
                async with self._taking:
                    try:
                        found = await self._survey.root(root)
                        await self._on_changes(found.changes, False)
                    except Exception as error:
                        self._refuse(error)

    async def _take(self, paths: set[str]) -> None:
        """Inspect what the changed paths concern, and pass on what that changed."""
        if not paths:
            return
        async with self._taking:
            # A generated header may lie where no kernel file is looked for.
            affected = self._catalog.dependents(paths)
            for path in paths:
                if not self._is_skipped(path):
                    affected.update(await self._kernel_files(path))
            for root, files in self._by_root(affected):
                present = [file for file in files if os.path.isfile(file)]
                try:
                    found = await self._survey.files(root, present, set(files) - set(present))
                    await self._on_changes(found.changes, True)
                    self._refused = ""
                except Exception as error:
                    self._refuse(error)

    def _refuse(self, error: Exception) -> None:
        # The files are what they are: the next save, or the next start, inspects them again.
        if isinstance(error, KtunedError):
            self._refused = f"a save was not taken in: {error.message}"
            _log.error("save_not_taken_in", reason=error.message, hint=error.hint)
        else:
            # What nobody thought of must not take those down who only look up.
            self._refused = f"a save was not taken in: {type(error).__name__}: {error}"
            _log.error("save_not_taken_in", reason=str(error), exc_info=error)

    async def _kernel_files(self, path: str) -> Iterable[str]:
        """Return the kernel files at or below a path; one that is gone, too."""
        root = self._catalog.root_of(path)
        assert root is not None
        if os.path.isdir(path):
            return await anyio.to_thread.run_sync(find_kernel_files, path, root.path)
        if not is_kernel_file(path):
            return ()
        return find_kernel_files(path, root.path) if os.path.exists(path) else (path,)

    def _is_skipped(self, path: str) -> bool:
        """Tell whether a path is none where a survey of its root would look."""
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


def _changed(stamps: set[tuple[str, str]]) -> set[str]:
    return {name for name, held in stamps if stamp(Path(name)) != held}
