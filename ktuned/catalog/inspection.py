"""Inspection of kernel files by workers; the results go into the catalog and the store."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping

import anyio
import anyio.to_thread
import structlog
from msgspec.structs import replace

from ktuned.catalog.catalog import Catalog, Changes, Inspection, make_root_environment
from ktuned.catalog.discovery import find_kernel_files, is_kernel_file
from ktuned.catalog.project_file import PROJECT_FILE, digest_project_file
from ktuned.catalog.roots import name_roots, remake_root
from ktuned.fleet import COURTESY_S, KILLS_EXCUSED, Fleet, is_outside_kill
from ktuned.ipc import Trust, Untrusted, make_absolute, make_relative, replies, requests
from ktuned.model import KernelInfo, Observation, Role, SettingsError, StoreError, WorkerError
from ktuned.protocol import FileError, Root
from ktuned.store import Store

_log = structlog.get_logger()

EMPTY = hashlib.sha256().hexdigest()
"""The stamp of an empty file."""

MANY_FILES = 50
"""Number of files from which a second worker is used: their inspection takes as long as a worker's start."""


MOST_AT_ONCE = 8
"""Most roots that are inspected at the same time: each has a worker with 30 MiB or more of imported modules."""


class FileInspector:
    """Inspects kernel files, those of a root one after the other. A file that ``trust`` refuses is an error.

    A root whose imports take long, or hang, does not delay other roots.

    If a root's project file has changed, it is applied first: ``probe`` looks at the new environment.
    """

    def __init__(
        self,
        catalog: Catalog,
        fleet: Fleet,
        store: Store,
        trust: Trust | None = None,
        *,
        probe: Callable[[Root], Awaitable[None]] | None = None,
    ) -> None:
        self.trust = trust or Trust()
        self._probe = probe
        self._catalog = catalog
        self._fleet = fleet
        self._store = store
        self._locks: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)
        self._turns = anyio.Semaphore(MOST_AT_ONCE)

    async def inspect_root(self, root: Root) -> Changes:
        """Inspect every kernel file of a root, including files that were named by their paths; return the changes."""
        files = await anyio.to_thread.run_sync(find_kernel_files, root.path)
        owned = self._catalog.select_files_of(root, files)
        owned += [
            file
            for file in self._catalog.list_kernel_files_of(root)
            if file not in owned and _is_kernel_file_by_path(file)
        ]
        gone = set(self._catalog.list_kernel_files_of(root)) - set(map(escape_path, owned)) - {_project_file(root)}
        return await self.inspect_files(root, owned, gone)

    async def inspect_files(self, root: Root, files: Iterable[str], gone: Iterable[str] = ()) -> Changes:
        """Inspect some kernel files of a root, and return the changes; ``gone`` are files that no longer exist.

        If the inspection of a file hangs, crashes or raises, that is an error of this file alone.
        """
        wanted, removed = sorted(set(files)), sorted(set(map(escape_path, gone)))
        project = _project_file(root)
        if project in wanted or project in removed:
            rest = [file for file in wanted if file != project], [file for file in removed if file != project]
            return await self._apply_project_file(root, *rest)
        async with self._locks[root.path], self._turns:
            # In a thread, because looking at a thousand files takes as long as a thousand lookups.
            refused = await anyio.to_thread.run_sync(self._find_refusals, wanted)
            trusted = [file for file in wanted if file not in refused]
            found = await self._inspect_files(root, trusted)
            inspections = [*refused.values(), *map(self._refuse_emptied_file, found)]
            changes = self._catalog.apply_inspections(inspections, removed)
            names = set(wanted)
            kernels = [kernel for kernel in self._catalog.kernels if kernel.file in names]
            if kernels or changes.removed:
                try:
                    await self._store.save_kernels(kernels, changes.removed)
                except StoreError as fault:
                    # This does no harm: the catalog has the kernels, and the next daemon inspects every file anyway.
                    _log.warning("record_kernels_failed", root=root.path, reason=fault.message)
        for error in changes.errors:
            _log.warning("kernel_file_wrong", path=error.path, line=error.line, reason=error.message)
        return changes

    async def observe_names(self, kernel: KernelInfo, names: Iterable[Observation]) -> tuple[Observation, ...]:
        """Look at names that a kernel has not learned; return nothing if its file does not declare it now."""
        root = self._catalog.find_root(kernel.file)
        if root is None:
            return ()
        wanted = {entry.name: entry for entry in names}
        found = await self._inspect_in_one_worker(root, [kernel.file], {kernel.kernel: tuple(wanted.values())})
        seen = [one for item in found for one in item.kernels if one.name == kernel.name]
        return tuple(entry for one in seen for name, entry in one.learned.items() if name in wanted)

    async def watch_root(self, root: Root) -> None:
        """Watch a root with its present settings.

        Raises:
            StoreError: the root cannot be recorded; nothing has changed.
        """
        if self._probe is not None:
            await self._probe(root)
        await self._store.projects.save_names({root.path: root.name})
        self._catalog.add_root(root)

    async def _apply_project_file(self, root: Root, files: list[str], gone: list[str]) -> Changes:
        """Apply a project file that has changed. A wrong project file changes nothing, and is reported as an error."""
        file = _project_file(root)
        others = {other.path: other.name for other in self._catalog.roots if other.path != root.path}
        try:
            again = await anyio.to_thread.run_sync(remake_root, root, None, self.trust)
        except (SettingsError, Untrusted) as error:
            digest = await anyio.to_thread.run_sync(digest_project_file, root.path)
            wrong = FileError(file, 0, error.message, error.hint)
            _log.warning("project_file_wrong", path=file, reason=error.message)
            self._catalog.record_project_file(root.path, digest, wrong)
            changes = await self.inspect_files(root, files, gone)
            return changes.combine_with(Changes(errors=(wrong,)))
        (again,) = name_roots([again], {root.path: root.name}, others.values())
        mended = Changes(mended=(file,) if any(error.path == file for error in self._catalog.errors) else ())
        if replace(again, asked=root.asked, project_digest=root.project_digest) == root:
            self._catalog.add_root(again)
            self._catalog.record_project_file(root.path, again.project_digest)
            return (await self.inspect_files(again, files, gone)).combine_with(mended)
        await self.watch_root(again)
        self._catalog.record_project_file(root.path, again.project_digest)
        _log.info("project_file_followed", path=file, name=again.name, python=again.python)
        try:
            changes = await self.inspect_root(again)
        except BaseException:
            # The kernels still belong to the earlier settings, so restore those; the file will be applied again.
            self._catalog.add_root(root)
            raise
        is_environment = make_root_environment(again) != make_root_environment(root)
        return changes.combine_with(replace(mended, is_environment=is_environment))

    def _find_refusals(self, files: list[str]) -> dict[str, Inspection]:
        return {file: wrong for file in files if (wrong := self._refuse_file(file))}

    def _refuse_file(self, file: str) -> Inspection | None:
        """Return the error for a file that must not be run, because another user could have written it.

        A file whose name is not UTF-8 is refused, too: neither workers nor clients could be told its name.
        """
        name = escape_path(file)
        if name != file:
            wrong = FileError(name, 0, f"{name}: the name is not UTF-8", "rename it")
            return Inspection(name, errors=(wrong,), stamps={name: ""})
        try:
            self.trust.check_file(file)
        except Untrusted as error:
            wrong = FileError(file, 0, error.message, error.hint)
            return Inspection(file, errors=(wrong,), stamps={file: ""})
        return None

    def _refuse_emptied_file(self, inspection: Inspection) -> Inspection:
        """Take a file that declared kernels and is empty now for a wrong one: an editor has begun to write it.

        So its kernels are served until it declares others, or is removed.
        """
        file = inspection.file
        if inspection.stamps.get(file) != EMPTY or all(kernel.file != file for kernel in self._catalog.kernels):
            return inspection
        wrong = FileError(file, 0, f"{file} is empty", "write it again, or remove it")
        return replace(inspection, errors=(wrong,))

    async def _inspect_files(self, root: Root, files: list[str]) -> list[Inspection]:
        """Inspect files, many of them by two workers."""
        if len(files) < MANY_FILES:
            return await self._inspect_in_one_worker(root, files)
        halves = files[::2], files[1::2]
        done: list[Inspection] = []

        async def inspect_half(half: list[str]) -> None:
            done.extend(await self._inspect_in_one_worker(root, half))

        async with anyio.create_task_group() as tasks:
            for half in halves:
                tasks.start_soon(inspect_half, half)
        # Sort by name: if two files declare the same kernel, the first has it.
        return sorted(done, key=lambda inspection: inspection.file)

    async def _inspect_in_one_worker(
        self, root: Root, files: list[str], names: Mapping[str, tuple[Observation, ...]] | None = None
    ) -> list[Inspection]:
        """Inspect files in one worker, which also looks at each kernel's learned names, or at ``names`` instead."""
        done: list[Inspection] = []
        environment = make_root_environment(root)
        kills = 0

        def make_path_relative(path: str) -> str:
            return make_relative(path, environment.cwd)

        while len(done) < len(files):
            rest = files[len(done) :]
            received: list[replies.InspectedFile] = []
            learned = self._catalog.find_learned_names(root, set(rest)) if names is None else names
            request = requests.Inspect(
                environment.project,
                tuple(map(make_path_relative, rest)),
                {
                    name: tuple(one.convert_places(make_path_relative) for one in entries)
                    for name, entries in learned.items()
                },
                root.name,
            )
            try:
                async with (
                    self._fleet.gate.hold_for_computing(COURTESY_S),
                    self._fleet.lend_worker(Role.INSPECT, environment) as worker,
                ):
                    await worker.send_request(request, self._fleet.deadlines, on_item=received.append)
                done += [_with_absolute_paths(item, root) for item in received]
            except WorkerError as error:
                done += [_with_absolute_paths(item, root) for item in received]
                if is_outside_kill(error) and kills < KILLS_EXCUSED:
                    kills += 1
                    continue
                # Blame the file that the worker was inspecting. The next worker continues after that file.
                if len(received) == len(rest):
                    break
                blamed = rest[len(received)]
                wrong = FileError(blamed, 0, f"{blamed}: {error.message}", error.hint)
                done.append(Inspection(blamed, errors=(wrong,), stamps={blamed: ""}))
        return done


def _is_kernel_file_by_path(path: str) -> bool:
    """Return whether a file is a kernel file because its path was given, as for programs that declare kernels."""
    return path.endswith(".py") and not is_kernel_file(path) and os.path.isfile(path)


def _project_file(root: Root) -> str:
    return os.path.join(root.path, PROJECT_FILE)


def escape_path(path: str) -> str:
    """Return a path as text. If it is not UTF-8, its bytes become escapes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _with_absolute_paths(item: replies.InspectedFile, root: Root) -> Inspection:
    """Return an inspected file with absolute paths, as the catalog has them."""

    def make_path_absolute(path: str) -> str:
        return make_absolute(path, make_root_environment(root).cwd)

    return Inspection(
        file=make_path_absolute(item.file),
        kernels=tuple(_locate_kernel(kernel, root, make_path_absolute) for kernel in item.kernels),
        errors=tuple(
            FileError(error.path, error.line, error.message, error.hint, error.excerpt) for error in item.errors
        ),
        stamps={make_path_absolute(path): digest for path, digest in item.digests.items()},
    )


def _locate_kernel(kernel: KernelInfo, root: Root, make_path_absolute: Callable[[str], str]) -> KernelInfo:
    """Return a kernel with its absolute paths, and its project's defaults where its file sets no budgets."""
    return replace(
        kernel.with_plan_defaults(root.defaults).convert_paths(make_path_absolute),
        learned={name: entry.convert_places(make_path_absolute) for name, entry in kernel.learned.items()},
    )
