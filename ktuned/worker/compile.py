"""The compile operation: a group of units becomes sealed artifacts, or the outcomes that say why not."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from ktuned.backends import Backend, Build, Compiled, Registry, Unit
from ktuned.dependencies import ACCESSES, OBSERVER, FreshProcessNeeded
from ktuned.ipc import Places, Recipe, replies, requests, take_sight
from ktuned.model import BackendError, Observation, Outcome, Phase, extend_digest
from ktuned.spec import forget_modules, get_kernel_module
from ktuned.worker.imported_files import ImportedFiles
from ktuned.worker.inspect import check_digests, digests_of, files_of
from ktuned.worker.reply import Reply
from ktuned.worker.seal import seal
from ktuned.worker.trace import SourceChanged, Trace

TRIES = 3
"""Times that a unit is compiled whose files change meanwhile: a save takes less time than a compile."""

_imported = ImportedFiles()


def unit_of(
    registry: Registry, places: Places, kernel: requests.KernelRef, target: str, unit: requests.UnitRef
) -> Unit:
    """Return a unit as backends take it, with the paths of this machine."""
    return Unit(
        key=unit.key,
        build=registry.load(kernel.backend).build.from_plain(unit.build),
        sources=tuple(places.locate_file(kernel.project, source) for source in kernel.sources),
        kernel_file=places.locate_file(kernel.project, kernel.file),
        kernel=kernel.kernel,
        target=target,
        lowered=unit.lowered,
    )


def compile_units(registry: Registry, places: Places, request: requests.Compile, reply: Reply) -> replies.Empty:
    """Compile and seal the request's units, and send an item for each as it is ready.

    A unit whose sources or toolchain changed meanwhile is no result: the request fails with ``source_changed``. What
    was read besides the files that the daemon knows is sent with each unit, and has a part in its artifact's key.
    """
    kernel = request.kernel
    backend = registry.load(kernel.backend)
    into = places.locate_staging(request.staging)
    units = [unit_of(registry, places, kernel, request.target, unit) for unit in request.units]
    plugin = registry.plugin(kernel.backend)
    builds = {unit.key: unit.build for unit in units}
    recipes = {unit.key: Recipe(unit.build.to_plain(), unit.target, unit.kernel, plugin) for unit in units}
    for unit in units:
        _clear(into / unit.key)
    known = _begin(kernel, places)
    reply.phase(Phase.COMPILE)
    _check_toolchain(request.toolchain)
    trace = Trace(kernel, places)
    groups = [[unit] for unit in units] if backend.group_size == 1 else [units]
    compiled_units = chain.from_iterable(_compile(backend, group, into, trace) for group in groups)
    for number, compiled in enumerate(compiled_units, start=1):
        if request.announced and number == len(units) and compiled.outcome is None:
            reply.computed()
        check_digests(kernel, places)
        _check_toolchain(request.toolchain)
        observed = _observed(trace, units[0], known)
        # Another content of these names, which no key of the daemon's stands for, makes another artifact.
        key = extend_digest(compiled.key, observed) if observed else compiled.key
        outcome, message, content, size = compiled.outcome, compiled.message, "", 0
        if outcome is None:
            try:
                sealed, size = seal(
                    into / compiled.key,
                    places.locate_artifact(key),
                    key=key,
                    backend=backend.name,
                    facts=compiled.facts,
                    required=backend.required_files,
                    decisive=() if backend.runs_other_code(builds[compiled.key]) else backend.decisive_files,
                    recipe=recipes[compiled.key],
                )
                content = sealed.content
            except BackendError as error:
                outcome, message = Outcome.COMPILE_ERROR, error.message
        reply.item(
            replies.CompiledUnit(
                key=compiled.key,
                outcome=outcome,
                message=message,
                seconds=compiled.seconds,
                facts=dict(compiled.facts),
                content=content,
                bytes=size,
                artifact="" if key == compiled.key else key,
                observed=observed,
            ),
            hold_s=request.hold_s,
        )
    return replies.Empty()


def open_front_end(registry: Registry, places: Places, request: requests.OpenFrontEnd, reply: Reply) -> replies.Empty:
    """Import a library, or a kernel file, and its backend's compiler, for the units that are to be translated.

    Raises:
        BackendError: the library cannot be imported.
        KernelFileError: the file cannot be imported.
        SourceChanged: it is no longer the file that was inspected.
        FreshProcessNeeded: this process has another state of a library.
    """
    backend = registry.load(request.backend)
    backend.prepare()
    if request.library:
        build = None if request.build is None else backend.build.from_plain(request.build)
        _open_library(backend, request.library, build, reply)
    elif request.kernel is not None:
        _begin(request.kernel, places)
        reply.phase(Phase.COMPILE)
        get_kernel_module(places.locate_file(request.kernel.project, request.kernel.file))
    return replies.Empty()


def lower_unit(registry: Registry, places: Places, request: requests.Lower, reply: Reply) -> replies.Lowered:
    """Translate a unit's function; what is read for that besides the files that the daemon knows is sent with it.

    Of a library nothing is sent: a Build says which function it means, by a digest of its code.

    Raises:
        BackendError: the library cannot be imported.
        SourceChanged: a source or the toolchain changed meanwhile.
        FreshProcessNeeded: this process has another state of a library.
    """
    kernel = request.kernel
    backend = registry.load(kernel.backend)
    backend.prepare()
    unit = unit_of(registry, places, kernel, request.target, request.unit)
    library = request.unit.build.get("library")
    if library:
        _open_library(backend, library, unit.build, reply)
        reply.phase(Phase.COMPILE)
        _check_toolchain(request.toolchain)
        made, seconds = _timed_lower(backend, unit)
        _check_toolchain(request.toolchain)
        return _lowered(made, seconds, ())
    known = _begin(kernel, places)
    reply.phase(Phase.COMPILE)
    _check_toolchain(request.toolchain)
    trace = Trace(kernel, places)
    ACCESSES.begin_epoch()
    made, seconds = _timed_lower(backend, unit)
    check_digests(kernel, places)
    _check_toolchain(request.toolchain)
    observed = _observed(trace, unit, known)
    return _lowered(made, seconds, observed)


def _open_library(backend: Backend, library: Mapping[str, Any], build: Build | None, reply: Reply) -> None:
    """Have a library imported as it is on the disk now.

    Raises:
        BackendError: it cannot be imported.
        FreshProcessNeeded: what this process has imported is another state of it.
    """
    reply.phase(Phase.INSPECT)
    if _imported.changed():
        raise FreshProcessNeeded
    try:
        backend.open_library(library, build)
    finally:
        _imported.note()


def _timed_lower(backend: Backend, unit: Unit) -> tuple[bytes | Compiled, float]:
    started = time.perf_counter()
    made = backend.lower(unit)
    return made, time.perf_counter() - started


def _lowered(made: bytes | Compiled, seconds: float, observed: tuple[Observation, ...]) -> replies.Lowered:
    if isinstance(made, Compiled):
        return replies.Lowered(b"", made.outcome, made.message, seconds, observed)
    return replies.Lowered(made, None, "", seconds, observed)


def _begin(kernel: requests.KernelRef, places: Places) -> Mapping[Path, str]:
    """Forget a kernel's modules unless this process has them as they were digested; return the files' digests.

    A Build may name a function of the kernel file: it must be the one that was digested.
    """
    known = digests_of(kernel, places)
    ACCESSES.survives_load = True
    OBSERVER.check_trust(files_of(kernel, places))
    if not OBSERVER.has_loaded(places.locate_file(kernel.project, kernel.file), known):
        forget_modules()
    check_digests(kernel, places)
    return known


_read: dict[tuple[Path, ...], dict[Path, str]] = {}
"""What compiling some sources has read in this process: a precompiled header, or an import, is read once for many."""

MAX_REMEMBERED = 64
"""Kernels whose reads a process remembers."""


def _observed(trace: Trace, unit: Unit, known: Mapping[Path, str]) -> tuple[Observation, ...]:
    """Return what was read for a unit, or for another one of its sources before."""
    if (*unit.sources, unit.kernel_file) not in _read and len(_read) >= MAX_REMEMBERED:
        del _read[next(iter(_read))]
    read = _read.setdefault((*unit.sources, unit.kernel_file), {})
    ACCESSES.check_trust()
    read |= ACCESSES.files
    # Functions import modules when they are compiled, too.
    imported = {path: digest for path, digest in OBSERVER.files.items() if path not in known}
    executed = imported.keys() - read.keys()
    return trace.fresh({**read, **imported}, ACCESSES.variables, ACCESSES.unobserved, executed)


def _compile(backend: Backend, units: Sequence[Unit], into: Path, trace: Trace) -> Iterator[Compiled]:
    """Compile units, again where a file may have been another one while the compiler read it.

    Raises:
        SourceChanged: it changes each time.
    """
    doubtful: list[Compiled] = []
    for _ in range(TRIES):
        doubtful = []
        trace.begin_reading()
        ACCESSES.begin_epoch()
        for compiled in backend.compile(units, into):
            ACCESSES.check_trust()
            if trace.is_steady(ACCESSES.files):
                yield compiled
            else:
                doubtful.append(compiled)
        keys = {compiled.key for compiled in doubtful}
        units = [unit for unit in units if unit.key in keys]
        if not units:
            return
        for unit in units:
            _clear(into / unit.key)
    observed = trace.fresh(ACCESSES.files, {}, ())
    raise SourceChanged(f"a file that {units[0].kernel} reads changes all the while", observed)


def _clear(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


def _check_toolchain(files: Mapping[str, str]) -> None:
    """Check that the toolchain is the one that the artifacts' keys name, by the sights of its files.

    Raises:
        SourceChanged: it is not; what it makes must not be sealed under those keys.
    """
    for path, held in files.items():
        if take_sight(path) != held:
            raise SourceChanged(f"the toolchain changed: {path}")
