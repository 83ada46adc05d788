"""Watches the roots: turns events of the file system into inspections, and those into what changed."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import structlog
import watchfiles

from ktuned.catalog import Catalog, Changes, is_below
from ktuned.errors import KtunedError
from ktuned.manifest import file_digest
from ktuned.model import Root
from ktuned.survey import SKIPPED_DIRECTORIES, Survey, find_kernel_files, is_kernel_file

_log = structlog.get_logger()

DEBOUNCE_MS = 50
"""Editors write a file in several steps; events that lie this close together are one save."""

STEP_MS = 20
_WAKE_MS = 1_000
_RETRY_S = 1.0

OnChanges = Callable[[Changes], Awaitable[None]]


class Watcher:
    """Watches what the catalog says is to be watched; ``notice`` says what keeps it from doing so well."""

    def __init__(self, catalog: Catalog, survey: Survey, on_changes: OnChanges) -> None:
        self._catalog = catalog
        self._survey = survey
        self._on_changes = on_changes
        self._restart = anyio.Event()
        self._polling = False
        self.notice = ""

    def roots_changed(self) -> None:
        """Have the new set of roots watched."""
        self._restart.set()

    async def run(self) -> None:
        """Watch until cancelled; a failure of the watching itself is retried, by polling where inotify is exhausted."""
        while True:
            self._restart = anyio.Event()
            paths = self._paths()
            if not paths:
                await self._restart.wait()
                continue
            try:
                await self._watch(paths)
            except FileNotFoundError:
                # A directory went while the watching began: what is left is watched.
                continue
            except (OSError, RuntimeError) as error:
                self.notice = f"watching by polling: {error}; raise fs.inotify.max_user_watches"
                self._polling = True
                _log.warning("watch_failed", reason=str(error))
                await anyio.sleep(_RETRY_S)

    def _paths(self) -> list[str]:
        wanted = {root.path for root in self._catalog.roots} | self._catalog.outside_directories()
        present = sorted(path for path in wanted if os.path.isdir(path))
        return [path for path in present if not any(path != other and is_below(path, other) for other in present)]

    async def _watch(self, paths: list[str]) -> None:
        caught_up = False
        watching = watchfiles.awatch(
            *paths,
            watch_filter=None,
            debounce=DEBOUNCE_MS,
            step=STEP_MS,
            rust_timeout=_WAKE_MS,
            yield_on_timeout=True,
            stop_event=self._restart,
            force_polling=self._polling or None,
            recursive=True,
        )
        async for events in watching:
            if not caught_up:
                # What was saved between the last inspection and the start of the watching raised no event.
                caught_up = True
                await self._take(await anyio.to_thread.run_sync(_changed_on_disk, self._catalog.stamps()))
            if events:
                await self._take({path for _, path in events})
            if self._paths() != paths:
                # A header in a directory that nobody depended on before, or a root that came or went.
                self._restart.set()

    async def _take(self, paths: set[str]) -> None:
        """Inspect what the changed paths concern, and pass on what that changed."""
        # A generated header may lie where no kernel file is looked for.
        affected = self._catalog.dependents(paths)
        for path in paths:
            if self._is_skipped(path):
                continue
            if is_kernel_file(path):
                affected.add(path)
            elif os.path.isdir(path):
                affected.update(await anyio.to_thread.run_sync(find_kernel_files, path))
        for root, files in self._by_root(affected):
            present = [file for file in files if os.path.isfile(file)]
            try:
                found = await self._survey.files(root, present, set(files) - set(present))
                await self._on_changes(found.changes)
            except KtunedError as error:
                # The files are what they are: the next save, or the next start, inspects them again.
                self.notice = f"a save was not taken in: {error.message}"
                _log.error("save_not_taken_in", reason=error.message, hint=error.hint)

    def _is_skipped(self, path: str) -> bool:
        """Tell whether a path is none where a survey of its root would look."""
        root = self._catalog.root_of(path)
        if root is None:
            return True
        parts = path[len(root.path) :].split("/")
        return any(part.startswith(".") or part in SKIPPED_DIRECTORIES for part in parts)

    def _by_root(self, files: set[str]) -> list[tuple[Root, list[str]]]:
        grouped: dict[str, tuple[Root, list[str]]] = {}
        for file in sorted(files):
            root = self._catalog.root_of(file)
            if root is not None:
                grouped.setdefault(root.path, (root, []))[1].append(file)
        return list(grouped.values())


def _changed_on_disk(stamps: set[tuple[str, str]]) -> set[str]:
    return {name for name, stamp in stamps if _stamp(Path(name)) != stamp}


def _stamp(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError:
        return ""
