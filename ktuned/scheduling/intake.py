"""Intake of requests: paths and names, looked at as they are now, become kernels and their jobs."""

from __future__ import annotations

import ast
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import anyio.to_thread
import msgspec

from ktuned.catalog import (
    MAX_DIRECTORIES,
    PROJECT_FILE,
    Catalog,
    Changes,
    FileInspector,
    asked_again,
    check_extent,
    environment_of,
    find_kernel_files,
    guess_backend,
    is_below,
    make_root,
    name_roots,
    project_top,
    read_project,
)
from ktuned.devices import Machine
from ktuned.ipc import stamp, stamps_agree
from ktuned.model import Job, KernelInfo, KtunedError, NotFound, Plan, Root, UsageError
from ktuned.protocol import FileError
from ktuned.scheduling.gone_roots import GoneRoots
from ktuned.scheduling.job_requests import JobRequests, TuningRequest
from ktuned.scheduling.renewal import Renewal
from ktuned.store import Store


class AddedRoot(msgspec.Struct, frozen=True):
    """A path that is watched now: its root, the kernels and errors there, and the changes since the last inspection.

    ``is_new`` if nothing watched it before.
    """

    root: Root
    kernels: list[KernelInfo]
    errors: list[FileError]
    changes: Changes
    is_new: bool = False


class Intake:
    """Takes requests in: each sees its files as they are now, whether or not the watcher has."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        inspector: FileInspector,
        machine: Machine,
        store: Store,
        requests: JobRequests,
        renewal: Renewal,
        gone_roots: GoneRoots,
        max_directories: int = MAX_DIRECTORIES,
    ) -> None:
        self._catalog = catalog
        self._inspector = inspector
        self._machine = machine
        self._store = store
        self._requests = requests
        self._renewal = renewal
        self._gone_roots = gone_roots
        self._naming = anyio.Lock()
        self._max_directories = max_directories

    async def tune_path(
        self, path: str, python: str | None, request: TuningRequest, name: str | None = None
    ) -> tuple[list[Job], list[FileError]]:
        """Watch a path from now on and tune every kernel below it; return the jobs, and errors in kernel files.

        With ``name``, a kernel's short or full one, only that kernel is tuned.

        Raises:
            UsageError: there is no kernel file, or far too many directories.
            NotFound: no kernel there has the name, and no file is wrong.
            Untrusted: another user could have put one there.
        """
        # What no kernel file could make valid is refused before anything is looked at.
        request.apply_to_plan(Plan())
        found = await self.add_path(path, python, measures=not request.compile_only)
        kernels = [kernel for kernel in found.kernels if name in (None, kernel.kernel, kernel.name)]
        # What a file no longer declares because of its error cannot be tuned before that is mended.
        kernels = [kernel for kernel in kernels if not self._catalog.file_fault(kernel)]
        try:
            if not kernels and not found.errors:
                raise NotFound(
                    f"{path} declares no kernel {name!r} when it is imported",
                    hint="declare it at the top level, before the first call of ktuned.tune and outside of functions",
                )
            if request.strategy is not None:
                # Also where no kernel can be read yet.
                environment = environment_of(found.root)
                await self._machine.environments.probe_environment(environment)
                await self._machine.environments.check_strategy(environment, request.strategy)
            planned = [job for kernel in kernels for job in await self._requests.plan_jobs(kernel, request)]
        except KtunedError:
            if found.is_new:
                # What was asked for in error is not watched for ever.
                await self._renewal.forget_root(found.root)
            raise
        try:
            jobs = await self._requests.submit_jobs(planned, request)
        finally:
            # After the request: a re-tuning joins it, and not the other way about.
            await self._renewal.retune_changed(found.changes, saved=False)
        return jobs, found.errors

    async def add_path(self, path: str, python: str | None, *, measures: bool = False) -> AddedRoot:
        """Inspect and watch every kernel at or below a path; ``measures`` says that tuning follows at once.

        Raises:
            UsageError: there is no kernel file, or far too many directories.
            Untrusted: another user could have put one there.
        """
        place = os.path.realpath(path)
        if not os.path.exists(place):
            raise UsageError(f"{path} does not exist", hint="give a kernel file (tune_*.py) or a directory of them")
        if os.path.isfile(place) and not place.endswith(".py"):
            raise UsageError(f"{path} is no kernel file", hint="kernel files are Python: tune_*.py, or any by its path")
        directory = place if os.path.isdir(place) else os.path.dirname(place)
        self._inspector.trust.check_directory(directory)
        known = self._catalog.root_of(place)
        top = await anyio.to_thread.run_sync(project_top, directory, self._inspector.trust)
        # A project inside of a watched one has kernels of its own.
        is_inner = known is not None and top != known.path and is_below(top, known.path)
        if known is None or (is_inner and os.path.isfile(os.path.join(top, PROJECT_FILE))):
            known = None
            await anyio.to_thread.run_sync(check_extent, top, self._max_directories)
        files = [place] if os.path.isfile(place) else await anyio.to_thread.run_sync(find_kernel_files, place)
        root = await self._find_or_make_root(known, top, python, measured=files if measures else [])
        found = await self._inspector.inspect_files(root, files)
        await self._renewal.outdate_jobs(found.changes, saved=False)
        kernels = self._catalog.kernels_below(place)
        errors = self._catalog.errors_below(place)
        if not kernels and not errors:
            if known is None and not self._catalog.kernels_below(root.path):
                # What was asked for in error is not watched for ever.
                await self._renewal.forget_root(root)
            hint = "a kernel file is named tune_*.py and declares an @kernel"
            if os.path.isfile(place) and (name := await anyio.to_thread.run_sync(_find_undecorated_kernel, place)):
                hint = f"its function {name!r} has no decorator: write @kernel(…) above it"
            raise UsageError(f"there is no kernel at {path}", hint=hint)
        return AddedRoot(root, kernels, errors, found.changes, is_new=known is None)

    async def _find_or_make_root(
        self, known: Root | None, directory: str, python: str | None, *, measured: list[str]
    ) -> Root:
        """Return the ``known`` root with the interpreter that was asked for; without one ``directory`` becomes one.

        Where jobs follow that measure kernels of files, their workers start beside the first look at the root.

        Raises:
            SettingsError: its project file cannot be followed.
        """
        if known is not None and python in (None, known.python):
            return known
        if known is not None:
            asked = replace(known, asked=replace(known.asked, python=python or ""))
            root = await anyio.to_thread.run_sync(asked_again, asked, None, self._inspector.trust)
            root = replace(known, python=root.python, asked=root.asked)
        else:
            project = await anyio.to_thread.run_sync(read_project, directory, self._inspector.trust)
            root = make_root(directory, python=python or "", project=project)
            await self._gone_roots.free_name(root)
        async with self._naming:
            if known is None:
                # Of two that are added at once, the store has both, and the catalog perhaps none yet.
                others = [*self._catalog.roots, *self._store.load_roots()]
                taken = [other.name for other in others if other.path != root.path]
                (root,) = name_roots([root], self._store.projects.load_names(), taken)
            await self._store.add_root(root)
        if measured:
            backend = await anyio.to_thread.run_sync(guess_backend, measured)
            self._machine.environments.prepare_first_job(environment_of(root), backend)
        await self._inspector.adopt_root(root)
        return root

    async def tune_named(
        self, name: str, request: TuningRequest, directory: str | None = None
    ) -> tuple[list[Job], list[FileError]]:
        """Tune a kernel by its name, as its files are now: the watcher may not have seen the last save yet.

        ``directory`` decides which project a short name means. Return the jobs, and what is wrong with its file.

        Raises:
            NotFound: there is no such kernel, or its file does not declare it any more.
            AmbiguousName: several projects have one.
            UsageError: it declares no problems and none was given, or the request cannot be followed.
        """
        kernel = self._catalog.resolve_kernel(name, directory)
        changes = await self._inspect_if_changed(kernel)
        try:
            kernel = self._catalog.resolve_kernel(kernel.name)
            # What the file no longer declares because of its error cannot be tuned before that is mended.
            jobs = [] if self._catalog.file_fault(kernel) else await self._requests.request_jobs(kernel, request)
        finally:
            # After the request, as with a path.
            await self._renewal.retune_changed(changes, saved=True)
        return jobs, self._catalog.errors_below(kernel.file)

    async def _inspect_if_changed(self, kernel: KernelInfo) -> Changes:
        """Inspect a kernel's file if a file that it depends on no longer holds what was inspected."""
        root = self._catalog.root_of(kernel.file)
        # With an error in its file a kernel is as it was before: a mended file holds what its stamps say.
        is_known = not self._catalog.file_fault(kernel)
        if root is None or (is_known and not await anyio.to_thread.run_sync(_file_differs, kernel.stamps)):
            return Changes()
        is_there = os.path.isfile(kernel.file)
        present, gone = ([kernel.file], []) if is_there else ([], [kernel.file])
        found = await self._inspector.inspect_files(root, present, gone)
        await self._renewal.outdate_jobs(found.changes, saved=True)
        return found.changes


def _file_differs(stamps: Mapping[str, str]) -> bool:
    """Return whether a file no longer holds what its stamp says."""
    return any(not stamps_agree(held, stamp(Path(path))) for path, held in stamps.items())


def _find_undecorated_kernel(path: str) -> str:
    """Return the name of a function that looks like a kernel function, (p, c), and has no decorator."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ""
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    found = (one.name for one in functions if not one.decorator_list and len(one.args.args) == 2)
    return next(found, "")
