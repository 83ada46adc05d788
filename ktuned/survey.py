"""Finds kernel files and has a worker inspect them; puts what it finds into the catalog and the store."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
import structlog

from ktuned.catalog import Catalog, Changes, FileError, Inspection, environment_of
from ktuned.errors import StoreError, WorkerError
from ktuned.fleet.kills import KILLS_EXCUSED, is_outside_kill
from ktuned.fleet.pool import Fleet
from ktuned.model import KernelInfo, Root
from ktuned.store import Store
from ktuned.trust import Trust, Untrusted

_log = structlog.get_logger()

SKIPPED_DIRECTORIES = frozenset({"__pycache__", "node_modules", "site-packages", "build", "dist"})
"""Directories that hold no one's own kernel files; so do all whose name starts with a dot, and virtual environments."""


def is_kernel_file(name: str) -> bool:
    """Tell whether a file is a kernel file by its name."""
    base = os.path.basename(name)
    return base.startswith("tune_") and base.endswith(".py")


def find_kernel_files(directory: str) -> list[str]:
    """Return every kernel file at or below a path, sorted. Blocks as long as the disk does."""
    if os.path.isfile(directory):
        return [directory] if is_kernel_file(directory) else []
    found = []
    for place, below, files in os.walk(directory):
        if "pyvenv.cfg" in files:
            below.clear()
            continue
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in SKIPPED_DIRECTORIES)
        found += [os.path.join(place, name) for name in files if is_kernel_file(name)]
    return sorted(found)


@dataclass(frozen=True, slots=True)
class Found:
    """What a survey saw, whether or not it changed anything."""

    changes: Changes
    files: tuple[str, ...]


class Survey:
    """Inspects kernel files, one root at a time; those that ``trust`` refuses are errors."""

    def __init__(
        self,
        catalog: Catalog,
        fleet: Fleet,
        store: Store,
        deadlines: Mapping[str, float],
        trust: Trust | None = None,
    ) -> None:
        self.trust = trust or Trust()
        self._catalog = catalog
        self._fleet = fleet
        self._store = store
        self._deadlines = deadlines
        self._lock = anyio.Lock()

    async def root(self, root: Root) -> Found:
        """Inspect every kernel file of a root."""
        files = await anyio.to_thread.run_sync(find_kernel_files, root.path)
        owned = [file for file in files if self._catalog.root_of(file) == root]
        gone = set(self._catalog.files_of(root)) - set(owned)
        return await self.files(root, owned, gone)

    async def files(self, root: Root, files: Iterable[str], gone: Iterable[str] = ()) -> Found:
        """Inspect some kernel files of a root; ``gone`` are those that no longer exist.

        A file whose inspection hangs, crashes or raises is an error of that file; the others go on.
        """
        wanted = sorted(set(files))
        removed = list(gone)
        async with self._lock:
            refused = [wrong for file in wanted if (wrong := self._refused(file))]
            trusted = sorted(set(wanted) - {one.file for one in refused})
            inspections = refused + await self._inspect(root, trusted)
            changes = self._catalog.apply(inspections, removed)
            kernels = [kernel for kernel in self._catalog.kernels if kernel.file in wanted]
            if kernels or changes.removed:
                try:
                    await self._store.save_kernels(kernels, changes.removed)
                except StoreError as fault:
                    # The catalog has them; the next daemon inspects every file anyway.
                    _log.warning("kernels_not_recorded", root=root.path, reason=fault.message)
        for error in changes.errors:
            _log.warning("kernel_file_wrong", path=error.path, line=error.line, reason=error.message)
        return Found(changes, tuple(wanted))

    def _refused(self, file: str) -> Inspection | None:
        """Return what is wrong with a file that somebody else could have written; it is not run to find out more."""
        try:
            self.trust.check_file(file)
        except Untrusted as error:
            wrong = FileError(file, 0, error.message, error.hint)
            return Inspection(file, errors=(wrong,), stamps={file: ""})
        return None

    async def _inspect(self, root: Root, files: list[str]) -> list[Inspection]:
        done: list[Inspection] = []
        kills = 0
        while len(done) < len(files):
            rest = files[len(done) :]
            received: list[dict[str, Any]] = []
            request = {"op": "inspect", "root": root.path, "project": root.name, "files": rest}
            try:
                async with self._fleet.lend("inspect", environment_of(root)) as worker:
                    await worker.call(request, self._deadlines, first_phase="inspect", on_item=received.append)
                done += map(_inspection, received)
            except WorkerError as error:
                done += map(_inspection, received)
                if is_outside_kill(error) and kills < KILLS_EXCUSED:
                    kills += 1
                    continue
                # The file that it was at is to blame; the next worker goes on behind it.
                if len(received) == len(rest):
                    break
                blamed = rest[len(received)]
                wrong = FileError(blamed, 0, f"{blamed}: {error.message}", error.hint)
                done.append(Inspection(blamed, errors=(wrong,), stamps={blamed: ""}))
        return done


def _inspection(item: Mapping[str, Any]) -> Inspection:
    return Inspection(
        file=item["file"],
        kernels=tuple(KernelInfo.from_wire(entry) for entry in item["kernels"]),
        errors=tuple(
            FileError(entry["path"], entry["line"], entry["message"], entry["hint"]) for entry in item["errors"]
        ),
        stamps=item["stamps"],
    )
