"""Intake of requests: turns paths and names, by the present state of the files, into kernels and jobs.

The intake also has the watched roots: a request for a new path adds a root, and roots are forgotten again. Their
results stay, under their projects' names.

======================================  ===============================================================================
a request drops it                      the root is forgotten at once
its directory has been gone for a day   the root is forgotten: disks are unplugged, and mounts are down, for less
another directory takes its name        the root is forgotten at once, so that a project that has moved keeps its name,
                                        and with it its results
======================================  ===============================================================================

The time since which a directory is gone is kept in the store, because a daemon without work ends long before a day is
over. Roots in ``config.toml`` are forgotten only when a daemon starts and the file no longer names them.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from time import monotonic, time

import anyio
import anyio.to_thread
import msgspec
import structlog
from msgspec import structs

from ktuned.answers import Knowledge
from ktuned.catalog import (
    MAX_DIRECTORIES,
    PROJECT_FILE,
    Changes,
    FileInspector,
    ForeignNames,
    check_extent,
    find_kernel_files,
    find_project_top,
    guess_backend,
    is_below,
    make_root,
    make_root_environment,
    name_roots,
    read_project,
    remake_root,
)
from ktuned.ipc import read_regular_file, stamp_whole, stamps_agree
from ktuned.model import FrozenStruct, KernelInfo, KtunedError, NotFound, Plan, StoreError, UsageError
from ktuned.protocol import FileError, Job, Root
from ktuned.scheduling.job_requests import JobRequests, TuningRequest
from ktuned.scheduling.renewal import Renewal

GONE_S = 86_400.0
"""Absence after which a root is forgotten. An unplugged disk or a broken network file system returns sooner."""

LOOK_S = 600.0
"""Interval of checks, each of which takes a few system calls."""

MAX_SHOWN = 8
"""Most forgotten roots that the notice names."""

TOLD_S = 86_400.0
"""How long that notice is shown."""

_log = structlog.get_logger()


class AddedRoot(FrozenStruct):
    """A path that is watched now.

    Attributes:
        root: The root that the path is in.
        kernels: The kernels at or below the path.
        errors: The errors in its kernel files.
        changes: The changes since the last inspection.
        is_new: Whether the path was not watched before.
    """

    root: Root
    kernels: list[KernelInfo]
    errors: list[FileError]
    changes: Changes
    is_new: bool = False


class Intake(msgspec.Struct, eq=False):
    """Takes requests in, and forgets roots.

    Each request sees the present state of its files, even if the watcher has not seen it yet.

    Args:
        list_configured: Returns the paths of the roots in ``config.toml``.
    """

    known: Knowledge
    inspector: FileInspector
    foreign_names: ForeignNames
    requests: JobRequests
    renewal: Renewal
    list_configured: Callable[[], Collection[str]]
    max_directories: int = MAX_DIRECTORIES
    _forgotten: dict[str, float] = {}
    _naming: anyio.Lock = msgspec.field(default_factory=anyio.Lock)

    async def tune_path(
        self, path: str, python: str | None, request: TuningRequest, name: str | None = None
    ) -> tuple[list[Job], list[FileError]]:
        """Watch a path from now on and tune every kernel below it; return the jobs, and errors in kernel files.

        With ``name``, the short or full name of a kernel, only that kernel is tuned.

        Raises:
            UsageError: There is no kernel file, or there are far too many directories.
            NotFound: No kernel there has the name, and no kernel file has an error.
            Untrusted: Another user could have put a kernel file there.
        """
        # A request with invalid options is refused before any file is read.
        request.apply_to_plan(Plan())
        found = await self.add_path(path, python, measures=not request.compile_only)
        kernels = [kernel for kernel in found.kernels if name in (None, kernel.kernel, kernel.name)]
        # A kernel whose file has an error cannot be tuned before the file is repaired.
        kernels = [kernel for kernel in kernels if not self.known.catalog.find_file_fault(kernel)]
        try:
            if not kernels and not found.errors:
                raise NotFound(
                    f"{path} declares no kernel {name!r} when it is imported",
                    hint="declare it at the top level, before the first call of ktuned.tune and outside of functions",
                )
            if request.is_judged and len(kernels) > 1:
                names = ", ".join(kernel.kernel for kernel in kernels)
                raise UsageError(f"{path} has {len(kernels)} kernels: {names}", hint="judge one of them, by its name")
            if request.strategy is not None:
                # Check the strategy even if no kernel can be read yet.
                environment = make_root_environment(found.root)
                await self.known.machine.environments.probe_environment(environment)
                await self.known.machine.environments.check_strategy(environment, request.strategy)
            if request.problem is None:
                # A kernel without problems is tuned for those of lookups. It does not keep the others from being tuned.
                kernels = [kernel for kernel in kernels if kernel.problems] or kernels
            planned = [job for kernel in kernels for job in await self.requests.plan_jobs(kernel, request)]
        except KtunedError:
            if found.is_new:
                # A path that was given by mistake must not be watched for ever.
                await self.forget_root(found.root)
            raise
        try:
            jobs = await self.requests.submit_jobs(planned, request)
        finally:
            # After the request, so that a re-tuning joins the requested job, and not the other way about.
            await self.renewal.retune_changed_kernels(found.changes, saved=False)
        return jobs, found.errors

    async def add_path(self, path: str, python: str | None, *, measures: bool = False) -> AddedRoot:
        """Inspect and watch every kernel at or below a path; ``measures`` if jobs that measure them follow at once.

        Raises:
            UsageError: There is no kernel file, or there are far too many directories.
            Untrusted: Another user could have put a kernel file there.
        """
        place = os.path.realpath(path)
        if not os.path.exists(place):
            raise UsageError(f"{path} does not exist", hint="give a kernel file (tune_*.py) or a directory of them")
        if os.path.isfile(place) and not place.endswith(".py"):
            raise UsageError(
                f"{path} is not a kernel file", hint="kernel files are Python: tune_*.py, or any by its path"
            )
        directory = place if os.path.isdir(place) else os.path.dirname(place)
        self.inspector.trust.check_directory(directory)
        known = self.known.catalog.find_root(place)
        top = await anyio.to_thread.run_sync(find_project_top, directory, self.inspector.trust)
        # A project inside a watched project becomes a root of its own.
        is_inner = known is not None and top != known.path and is_below(top, known.path)
        if known is None or (is_inner and os.path.isfile(os.path.join(top, PROJECT_FILE))):
            known = None
            await anyio.to_thread.run_sync(check_extent, top, self.max_directories)
        files = [place] if os.path.isfile(place) else await anyio.to_thread.run_sync(find_kernel_files, place)
        root = await self._find_or_make_root(known, top, python, measured=files if measures else [])
        changes = await self.inspector.inspect_files(root, files)
        await self.renewal.replace_outdated_jobs(changes, saved=False)
        if known is None:
            await self._learn_from_checkouts(place)
        kernels = self.known.catalog.list_kernels_below(place)
        errors = self.known.catalog.list_errors_below(place)
        if not kernels and not errors:
            if known is None and not self.known.catalog.list_kernels_below(root.path):
                # A path that was given by mistake must not be watched for ever.
                await self.forget_root(root)
            hint = "a kernel file is named tune_*.py and declares an @kernel"
            if os.path.isfile(place) and (name := await anyio.to_thread.run_sync(_find_undecorated_kernel, place)):
                hint = f"its function {name!r} has no decorator: write @kernel(…) above it"
            raise UsageError(f"there is no kernel at {path}", hint=hint)
        return AddedRoot(root, kernels, errors, changes, is_new=known is None)

    async def _learn_from_checkouts(self, place: str) -> None:
        """Learn what other checkouts of new kernels have learned, if a winner of theirs then holds here.

        Otherwise the first compile would show these names, and until then no checkout's winner would hold here. A
        project that was moved is a checkout, too: its kernels are gone, and what they have learned is kept.
        """
        catalog = self.known.catalog
        for kernel in catalog.list_kernels_below(place):
            for learned in catalog.list_learned_elsewhere(kernel):
                names = [structs.replace(entry, digest="", meaning="", places=()) for entry in learned]
                try:
                    named = await self.foreign_names.look_at_names(kernel, names)
                    if named.digest != kernel.digest and self.known.store.list_winners_elsewhere(named):
                        await self.foreign_names.learn_names(kernel, named)
                        break
                except KtunedError as error:
                    _log.info("compare_checkouts_failed", kernel=kernel.name, reason=error.message)

    async def _find_or_make_root(
        self, known: Root | None, directory: str, python: str | None, *, measured: list[str]
    ) -> Root:
        """Return the ``known`` root with the requested interpreter; without a known root, make one of ``directory``.

        If jobs that measure kernels of the files ``measured`` follow, their workers start during the first inspection.

        Raises:
            SettingsError: The root's project file is not valid.
        """
        if known is not None and python in (None, known.python):
            return known
        if known is not None:
            asked = structs.replace(known, asked=structs.replace(known.asked, python=python or ""))
            root = await anyio.to_thread.run_sync(remake_root, asked, None, self.inspector.trust)
            root = structs.replace(known, python=root.python, asked=root.asked)
        else:
            project = await anyio.to_thread.run_sync(read_project, directory, self.inspector.trust)
            root = make_root(directory, python=python or "", project=project)
            await self._forget_missing_namesakes(root)
        async with self._naming:
            if known is None:
                # Look in the store, too: a root that is added at the same time may not be in the catalog yet.
                others = [*self.known.catalog.roots, *self.known.store.load_roots()]
                taken = [other.name for other in others if other.path != root.path]
                (root,) = name_roots([root], self.known.store.projects.load_names(), taken)
            await self.known.store.add_root(root)
        if measured:
            backend = await anyio.to_thread.run_sync(guess_backend, measured)
            self.known.machine.environments.prepare_first_job(make_root_environment(root), backend)
        await self.inspector.watch_root(root)
        return root

    async def tune_named(
        self, name: str, request: TuningRequest, directory: str | None = None
    ) -> tuple[list[Job], list[FileError]]:
        """Tune a kernel by its name; return the jobs, and the errors in its file.

        The file is inspected again if it has changed, because the watcher may not have seen the last save yet.
        ``directory`` decides which project a short name means.

        Raises:
            NotFound: There is no such kernel, or its file does not declare it any more.
            AmbiguousName: Several projects have a kernel of this name.
            UsageError: The kernel declares no problems and none was given, or an option of the request is not valid.
        """
        kernel = self.known.catalog.resolve_kernel(name, directory)
        changes = await self._inspect_if_changed(kernel)
        try:
            kernel = self.known.catalog.resolve_kernel(kernel.name)
            # A kernel whose file has an error cannot be tuned before the file is repaired.
            jobs = (
                [] if self.known.catalog.find_file_fault(kernel) else await self.requests.request_jobs(kernel, request)
            )
        finally:
            # After the request, as in `tune_path`.
            await self.renewal.retune_changed_kernels(changes, saved=True)
        return jobs, self.known.catalog.list_errors_below(kernel.file)

    async def _inspect_if_changed(self, kernel: KernelInfo) -> Changes:
        """Inspect a kernel's file again if one of the files that it depends on has changed since its inspection."""
        root = self.known.catalog.find_root(kernel.file)
        # If its file has an error, the catalog has the kernel as before the error, stamps included. So a repaired file
        # may look unchanged.
        is_known = not self.known.catalog.find_file_fault(kernel)
        if root is None or (is_known and not await anyio.to_thread.run_sync(_file_differs, kernel.stamps)):
            return Changes()
        is_there = os.path.isfile(kernel.file)
        present, gone = ([kernel.file], []) if is_there else ([], [kernel.file])
        changes = await self.inspector.inspect_files(root, present, gone)
        await self.renewal.replace_outdated_jobs(changes, saved=True)
        return changes

    # Watched roots

    @property
    def notice(self) -> str:
        """One line about the roots that were forgotten today, and are not watched again; empty if there are none."""
        watched = {root.path for root in self.known.catalog.roots}
        forgotten = [
            path for path, when in self._forgotten.items() if path not in watched and monotonic() - when < TOLD_S
        ]
        if not forgotten:
            return ""
        shown = ", ".join(forgotten[-MAX_SHOWN:])
        return f"no longer watched, because the directory is gone: {shown}; `ktuned add PATH` watches one again"

    def is_configured(self, root: Root) -> bool:
        """Return whether ``config.toml`` names a root."""
        return root.path in self.list_configured()

    async def forget_root(self, root: Root) -> None:
        """Stop watching a root that a request had added.

        Raises:
            StoreError: This cannot be recorded; the root is still watched.
        """
        await self.known.store.remove_root(root.path)
        changes = self.known.catalog.remove_root(root.path)
        try:
            await self.known.store.save_kernels([], changes.removed)
        except KtunedError as error:
            # No harm is done: the next daemon finds no root for these kernels.
            _log.warning("forget_kernels_failed", root=root.path, reason=error.message)
        await self.renewal.react_to_changes(changes, saved=False)

    async def check_missing_periodically(self) -> None:
        """Check the roots every :data:`LOOK_S`, until cancelled."""
        while True:
            try:
                await self.check_missing_roots(time())
            except StoreError as error:
                _log.warning("check_missing_roots_failed", reason=error.message)
            await anyio.sleep(LOOK_S)

    async def check_missing_roots(self, now: float) -> None:
        """Record which directories are gone, and forget the roots whose directories have been gone for a day.

        Raises:
            StoreError: This cannot be recorded; nothing is forgotten.
        """
        missing = await self._list_missing_roots(self.known.catalog.roots)
        before = self.known.store.load_absences()
        # The day starts again when a directory comes back, and for all of them when the clock is set back.
        since = {root.path: min(before.get(root.path, now), now) for root in missing}
        if since != before:
            await self.known.store.save_absences(since)
        for root in missing:
            if now - since[root.path] >= GONE_S:
                await self._forget_missing_root(root)

    async def _forget_missing_namesakes(self, new: Root) -> None:
        """Forget an older root with the project name of a new root, if the older root's directory is gone.

        Raises:
            StoreError: This cannot be recorded; nothing is forgotten.
        """
        namesakes = [root for root in self.known.catalog.roots if root.name == new.name and root.path != new.path]
        for root in await self._list_missing_roots(namesakes):
            await self._forget_missing_root(root)

    async def _list_missing_roots(self, roots: Iterable[Root]) -> list[Root]:
        """Return the roots without a directory. They are checked in a thread, as a network file system may hang."""
        requested = [root for root in roots if not self.is_configured(root)]
        return await anyio.to_thread.run_sync(
            lambda: [root for root in requested if not os.path.isdir(root.path)], abandon_on_cancel=True
        )

    async def _forget_missing_root(self, root: Root) -> None:
        await self.forget_root(root)
        self._forgotten[root.path] = monotonic()
        _log.warning("root_forgotten", root=root.path)


def _file_differs(stamps: Mapping[str, str]) -> bool:
    """Return whether a file has changed since it was stamped."""
    return any(not stamps_agree(held, stamp_whole(Path(path))) for path, held in stamps.items())


def _find_undecorated_kernel(path: str) -> str:
    """Return the name of a function with two parameters, like a kernel function's (p, c), and without a decorator."""
    try:
        tree = ast.parse(read_regular_file(path))
    except (OSError, SyntaxError, ValueError):
        return ""
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    found = (one.name for one in functions if not one.decorator_list and len(one.args.args) == 2)
    return next(found, "")
