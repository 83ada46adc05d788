"""Intake: turns requests for paths and kernels, and saves that were seen, into jobs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread
import structlog

from ktuned.catalog import (
    MAX_DIRECTORIES,
    Admission,
    Buckets,
    Catalog,
    Changes,
    FileError,
    FileInspector,
    asked_again,
    check_extent,
    check_problem,
    environment_of,
    find_kernel_files,
    make_root,
    named,
    project_top,
    read_project,
)
from ktuned.devices import Machine
from ktuned.ipc import stamp
from ktuned.model import (
    LATENCY,
    MAX_PRIORITY,
    PRESETS,
    UNTIL,
    BackendError,
    Config,
    Job,
    KernelInfo,
    KtunedError,
    NotFound,
    Objective,
    Plan,
    Priority,
    Problem,
    Root,
    StoreError,
    UsageError,
    WorkerError,
    canonical,
)
from ktuned.scheduling.jobs import Jobs
from ktuned.store import Store
from ktuned.tuning import Publish, publish_winner, restore

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Wish:
    """A request's options besides the kernel; ``None`` leaves one to the kernel file."""

    problem: Problem | None = None
    device: str | None = None
    preset: str | None = None
    trials: int | None = None
    seconds: float | None = None
    strategy: str | None = None
    until: str | None = None
    objective: Objective | None = None
    seed: int | None = None
    priority: int = Priority.REQUESTED
    is_fixed: bool = False
    reason: str = "asked for"
    stale_only: bool = False
    any_plan: bool = False
    compile_only: bool = False
    arch: str | None = None
    configs: tuple[Config, ...] = ()
    again: bool = False

    def plan(self, declared: Plan) -> Plan:
        """Return the declared plan with what was wished for.

        Raises:
            UsageError: a wish cannot be followed; names its field.
        """
        if not 0 <= self.priority <= MAX_PRIORITY:
            raise UsageError(f"priority is {self.priority}", hint=f"give 0 to {MAX_PRIORITY}")
        if self.preset is not None and self.preset not in PRESETS:
            raise UsageError(f"there is no preset {self.preset!r}", hint=f"there are {', '.join(PRESETS)}")
        if self.until is not None and self.until not in UNTIL:
            raise UsageError(f"until is {self.until!r}", hint=f"give {' or '.join(UNTIL)}")
        if self.trials is not None and self.trials < 1:
            raise UsageError(f"trials is {self.trials}", hint="give at least 1")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise UsageError(f"seconds is {self.seconds}", hint="give more than 0")
        names = ("preset", "trials", "seconds", "strategy", "until", "seed")
        wished = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        wished |= {"configs": self.configs, "again": self.again}
        # By whatever a config is judged, it is compiled alike.
        objective = LATENCY if self.compile_only else declared.objective if self.objective is None else self.objective
        return replace(declared, **wished, objective=objective, compile_only=self.compile_only)


@dataclass(frozen=True, slots=True)
class Added:
    """A path that is watched now: its root, the kernels and errors there, and the changes since the last inspection."""

    root: Root
    kernels: list[KernelInfo]
    errors: list[FileError]
    changes: Changes


RETRY_S = 5.0
"""Interval at which a re-tuning is tried again that the store could not record."""


class Intake:
    """Turns paths, kernels and saves into jobs."""

    def __init__(
        self,
        *,
        admission: Admission,
        buckets: Buckets,
        catalog: Catalog,
        inspector: FileInspector,
        machine: Machine,
        store: Store,
        jobs: Jobs,
        publish: Publish,
        max_directories: int = MAX_DIRECTORIES,
    ) -> None:
        self._admission = admission
        self._buckets = buckets
        self._catalog = catalog
        self._inspector = inspector
        self._machine = machine
        self._store = store
        self._jobs = jobs
        self._publish = publish
        self._max_directories = max_directories
        self._put_off: dict[str, bool] = {}
        self._refusal = ""
        self._is_refused = anyio.Event()

    @property
    def notice(self) -> str:
        """One line about saves that the store could not record yet; empty if there are none."""
        return f"{', '.join(sorted(self._put_off))} is tuned again later: {self._refusal}" if self._put_off else ""

    async def run(self) -> None:
        """Make the re-tunings that could not be recorded, as soon as they can be; until cancelled."""
        while True:
            await self._is_refused.wait()
            _log.warning("retune_put_off", kernels=sorted(self._put_off), reason=self._refusal)
            while self._put_off:
                await anyio.sleep(RETRY_S)
                again, self._put_off = self._put_off, {}
                for name, saved in again.items():
                    with suppress(NotFound):
                        await self._retune(self._catalog.resolve(name), saved=saved)
            self._is_refused = anyio.Event()

    async def tune_path(
        self, path: str, python: str | None, wish: Wish, name: str | None = None
    ) -> tuple[list[Job], list[FileError]]:
        """Tune every kernel at or below a path, which from now on is watched; return the jobs and what is wrong there.

        With ``name``, a kernel's short or full one, only that kernel is tuned.

        Raises:
            UsageError: there is no kernel file, or far too many directories.
            NotFound: no kernel there has the name, and no file is wrong.
            Untrusted: another user could have put one there.
        """
        found = await self.add_path(path, python, measures=not wish.compile_only)
        kernels = [kernel for kernel in found.kernels if name in (None, kernel.kernel, kernel.name)]
        if not kernels and not found.errors:
            raise NotFound(
                f"{path} declares no kernel {name!r} when it is imported",
                hint="declare it at the top level, before the first call of ktuned.tune and outside of functions",
            )
        try:
            jobs = [job for kernel in kernels for job in await self.tune_kernel(kernel, wish)]
        finally:
            # After the wish: a re-tuning joins it, and not the other way about.
            await self._renew(found.changes, saved=False)
        return jobs, found.errors

    async def add_path(self, path: str, python: str | None, *, measures: bool = False) -> Added:
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
        is_new = self._catalog.root_of(place) is None
        if is_new:
            directory = await anyio.to_thread.run_sync(project_top, directory, self._inspector.trust)
        if is_new:
            await anyio.to_thread.run_sync(check_extent, directory, self._max_directories)
        root = await self._root_for(place, directory, python, measures=measures)
        if os.path.isfile(place):
            found = await self._inspector.inspect_files(root, [place])
        else:
            found = await self._inspector.inspect_files(root, await anyio.to_thread.run_sync(find_kernel_files, place))
        await self._outdate(found.changes)
        kernels = self._catalog.below(place)
        errors = self._catalog.errors_below(place)
        if not kernels and not errors:
            if is_new and not self._catalog.below(root.path):
                # What was asked for in error is not watched for ever.
                self._catalog.remove_root(root.path)
                await self._store.remove_root(root.path)
            raise UsageError(
                f"there is no kernel at {path}", hint="a kernel file is named tune_*.py and declares an @kernel"
            )
        return Added(root, kernels, errors, found.changes)

    async def _root_for(self, place: str, directory: str, python: str | None, *, measures: bool) -> Root:
        """Return the root of a path, with the interpreter that was asked for; ``directory`` becomes one if need be.

        Where a job that ``measures`` follows, its workers start beside the first look at the root.

        Raises:
            SettingsError: its project file cannot be followed.
        """
        known = self._catalog.root_of(place)
        if known is not None and python in (None, known.python):
            return known
        if known is not None:
            asked = replace(known, asked=replace(known.asked, python=python or ""))
            root = await anyio.to_thread.run_sync(asked_again, asked, None, self._inspector.trust)
            root = replace(known, python=root.python, asked=root.asked)
        else:
            project = await anyio.to_thread.run_sync(read_project, directory, self._inspector.trust)
            root = make_root(directory, python=python or "", project=project)
            taken = [other.name for other in self._catalog.roots]
            (root,) = named([root], self._store.projects.names(), taken)
        if measures:
            self._machine.expect_measuring(environment_of(root))
        await self._store.add_root(root)
        await self._inspector.adopt(root)
        return root

    async def tune_named(self, name: str, wish: Wish) -> tuple[list[Job], list[FileError]]:
        """Tune a kernel by its name, as its files are now: the watcher may not have seen the last save yet.

        Return the jobs, and what is wrong with its file.

        Raises:
            NotFound: there is no such kernel, or its file does not declare it any more.
            AmbiguousName: several projects have one.
            UsageError: it declares no problems and none was given, or the wish cannot be followed.
        """
        kernel = self._catalog.resolve(name)
        changes = await self._inspect_if_changed(kernel)
        try:
            jobs = await self.tune_kernel(self._catalog.resolve(kernel.name), wish)
        finally:
            # After the wish, as with a path.
            await self._renew(changes, saved=True)
        return jobs, self._catalog.errors_below(kernel.file)

    async def _inspect_if_changed(self, kernel: KernelInfo) -> Changes:
        """Inspect a kernel's file if a file that it depends on no longer holds what was inspected."""
        root = self._catalog.root_of(kernel.file)
        if root is None or not await anyio.to_thread.run_sync(_differs, kernel.stamps):
            return Changes()
        is_there = os.path.isfile(kernel.file)
        present, gone = ([kernel.file], []) if is_there else ([], [kernel.file])
        found = await self._inspector.inspect_files(root, present, gone)
        await self._outdate(found.changes)
        return found.changes

    async def tune_kernel(self, kernel: KernelInfo, wish: Wish) -> list[Job]:
        """Tune one kernel, or only compile it, for the wished problem or for all that it declares.

        Raises:
            UsageError: it declares none and none was given, or the wish cannot be followed.
        """
        plan = wish.plan(kernel.plan)
        objective = kernel.objective(plan.objective)
        if wish.problem is not None:
            check_problem(kernel, wish.problem)
        problems = kernel.problems if wish.problem is None else (await self._buckets.ask(kernel, wish.problem),)
        if not problems:
            raise UsageError(f"{kernel.name} declares no problems", hint="name one: `-p M=1024 …`")
        environment = self._catalog.environment(kernel)
        if not wish.compile_only:
            self._machine.expect_measuring(environment)
        await self._machine.probe(environment)
        await self._machine.check_strategy(environment, plan.strategy)
        if not self._machine.devices(environment, kernel.backend):
            # Perhaps what was missing has been installed since.
            await self._machine.probe(environment, again=True)
        jobs: dict[int, Job] = {}
        for problem in problems:
            await self._check_configs(kernel, problem, plan.configs)
            try:
                device = self._seat(kernel, wish)
            except BackendError as error:
                key = kernel.winner_key(problem, "", objective)
                job = await self._jobs.fail(
                    key, problem, reason=wish.reason, plan=plan, priority=wish.priority, error=error
                )
            else:
                if wish.stale_only and await self._is_fresh(kernel, problem, wish, objective):
                    continue
                arrival = await self._jobs.submit(
                    kernel.winner_key(problem, device, objective),
                    problem,
                    priority=wish.priority,
                    reason=wish.reason,
                    plan=plan,
                    is_fixed=wish.is_fixed,
                    any_plan=wish.any_plan,
                )
                job = arrival.job
            # Problems that differ in what does not enter the key are one job.
            jobs[job.id] = job
        return list(jobs.values())

    async def _representative(self, kernel: KernelInfo, problem: Problem) -> Problem:
        try:
            return await self._buckets.ask(kernel, problem)
        except (WorkerError, NotFound) as error:
            # A lookup asks again, and hears why not.
            _log.warning("bucket_not_known", kernel=kernel.name, reason=error.message)
            return problem

    async def _check_configs(self, kernel: KernelInfo, problem: Problem, configs: Sequence[Config]) -> None:
        """Check that the space holds the configs that are to be tried.

        Raises:
            UsageError: it does not hold one of them.
        """
        admitted = await self._admission.ask(kernel, problem, configs) if configs else []
        for config, is_admitted in zip(configs, admitted, strict=True):
            if is_admitted:
                continue
            knobs = kernel.extra.get("knobs") or ()
            strange = [knob for knob in config if knobs and knob not in knobs]
            missing = [knob for knob in knobs if knob not in config]
            why = "it is not in the space for this problem"
            if strange or missing:
                why = f"there is no knob {strange[0]!r}" if strange else f"it lacks {', '.join(missing)}"
            raise UsageError(
                f"{kernel.name} cannot try {canonical(config)}: {why}",
                hint=f"give a config of its space{f', with {chr(44).join(knobs)}' if knobs else ''}",
            )

    async def _is_fresh(self, kernel: KernelInfo, problem: Problem, wish: Wish, objective: Objective) -> bool:
        """Return whether a problem's winner holds in the context of now, and no job works on a better one."""
        environment = self._catalog.environment(kernel)
        if not self._machine.devices(environment, kernel.backend):
            return False
        device = self._machine.device(environment, kernel.backend, wish.device)
        context = self._machine.context(kernel, environment, problem, device)
        key = context.key_for(objective)
        winner = self._store.winner(key)
        is_open = any(job.key == key for job in self._jobs.live())
        if winner is None or winner.context != context or is_open:
            return False
        try:
            (is_admitted,) = await self._admission.ask(kernel, problem, [winner.config])
        except WorkerError:
            return False
        return is_admitted

    def _seat(self, kernel: KernelInfo, wish: Wish) -> str:
        """Return the model of the device that a wish means; where none is used, the target that is compiled for.

        Raises:
            BackendError: there is neither.
            NotFound: there are devices, but not that one.
        """
        environment = self._catalog.environment(kernel)
        if wish.compile_only and wish.arch is not None:
            return wish.arch
        if wish.compile_only or not self._machine.devices(environment, kernel.backend):
            return self._machine.target(environment, kernel.backend)
        return self._machine.device(environment, kernel.backend, wish.device).model

    async def drop_roots(self, roots: Iterable[Root]) -> None:
        """Forget roots that config.toml names no more; their results stay, for when they are named again."""
        for root in roots:
            gone = self._catalog.remove_root(root.path)
            try:
                await self._store.save_kernels([], gone.removed)
            except KtunedError as error:
                # The next daemon finds no root for them either.
                _log.warning("kernels_not_forgotten", root=root.path, reason=error.message)
            await self.react(gone, saved=False)

    async def look_around(self, roots: Iterable[Root]) -> None:
        """Inspect roots that are read otherwise than before; the watcher looks at those that are new."""
        for root in roots:
            await self._machine.probe(environment_of(root))
            if not os.path.isdir(root.path):
                continue
            try:
                found = await self._inspector.inspect_root(root)
                await self.react(found.changes, saved=False)
            except KtunedError as error:
                _log.error("root_not_inspected", root=root.path, reason=error.message, hint=error.hint)

    async def react(self, changes: Changes, *, saved: bool) -> None:
        """Publish changes, stop the jobs that they outdate, and re-tune the kernels that are in use.

        Those are the ones that were saved just now (``saved``), and those that have been tuned before.
        """
        await self._outdate(changes)
        await self._renew(changes, saved=saved)

    async def _outdate(self, changes: Changes) -> None:
        for name in changes.inspected:
            self._jobs.inspected(name)
        if not changes:
            return
        self._publish(
            "reloaded",
            added=list(changes.added),
            changed=list(changes.changed),
            replanned=list(changes.replanned),
            removed=list(changes.removed),
            mended=list(changes.mended),
            errors=[error.to_wire() for error in changes.errors],
        )
        for name in changes.removed:
            await self._jobs.supersede(name)
        for name in (*changes.changed, *changes.replanned):
            await self._jobs.stop_outdated(name)
            if name in changes.changed:
                self._publish("stale", kernel=name, digest=self._catalog.resolve(name).digest)

    async def _renew(self, changes: Changes, *, saved: bool) -> None:
        for name in (*changes.added, *changes.changed, *changes.replanned):
            await self._retune(self._catalog.resolve(name), saved=saved)

    async def _restore(self, kernel: KernelInfo, problem: Problem, objective: Objective) -> None:
        """Serve the best known config at once after an edit was undone or took the winner out of the space."""
        environment = self._catalog.environment(kernel)
        for device in self._machine.devices(environment, kernel.backend):
            context = self._machine.context(kernel, environment, problem, device)
            finalists = PRESETS[kernel.plan.preset].finalists
            try:
                winner = await restore(self._store, self._admission, kernel, problem, context, objective, finalists)
            except WorkerError as error:
                # Its job asks again.
                _log.warning("winner_not_restored", kernel=kernel.name, reason=error.message)
                continue
            if winner is not None:
                publish_winner(self._publish, kernel, winner, None)

    async def _retune(self, kernel: KernelInfo, *, saved: bool) -> None:
        winners = self._store.winners(kernel.name)
        tuned = {winner.context.problem for winner in winners}
        if not saved and not tuned:
            return
        known: dict[str, Problem] = {}
        for problem in kernel.problems:
            known.setdefault(canonical(kernel.specialized(problem)), problem)
        # A winner keeps only what enters its key; the whole problem is to be had from the job that tuned it.
        for job in self._store.jobs(kernel=kernel.name):
            with suppress(UsageError):
                check_problem(kernel, job.problem)
                problem = await self._representative(kernel, job.problem)
                key = canonical(kernel.specialized(problem))
                if key in tuned:
                    known.setdefault(key, problem)
        wish = Wish(
            priority=Priority.SAVED if saved else Priority.BACKGROUND,
            reason="saved" if saved else "changed while no daemon watched",
            any_plan=True,
        )
        for key, problem in known.items():
            try:
                for objective in _objectives(kernel, [won.objective for won in winners if won.context.problem == key]):
                    await self._restore(kernel, problem, objective)
                    await self.tune_kernel(kernel, replace(wish, problem=problem, objective=objective))
            except StoreError as error:
                self._put_off[kernel.name] = saved
                self._refusal = error.message
                self._is_refused.set()
                return
            except KtunedError as error:
                _log.warning("retune_refused", kernel=kernel.name, reason=error.message)


def _differs(stamps: Mapping[str, str]) -> bool:
    """Return whether a file no longer holds what its stamp says."""
    return any(stamp(Path(path)) != held for path, held in stamps.items())


def _objectives(kernel: KernelInfo, won: Iterable[Objective]) -> list[Objective]:
    """Return the declared objective, and those that a problem has winners by; not by metrics that are gone."""
    found = {kernel.objective(None): None}
    for objective in won:
        with suppress(UsageError):
            found[kernel.objective(objective)] = None
    return list(found)
