"""Compilation: units become sealed artifacts, or outcomes that say why not.

An artifact is found by its key, and the key stands for everything that decided its content. Under a wrong key, an
artifact would be used that does not belong to the present source. So a unit is sealed only if all of this holds:

- The files that the kernel was inspected with have the inspected digests, before compiling and afterwards.
- The toolchain's files look as they did when the daemon asked it for its fingerprint, before and afterwards.
- No other file that the compiler read (headers, imports, data) changed while it was read. If one may have changed, the
  unit is compiled again; after :data:`TRIES` times the request fails with ``source_changed``.

Files that were read and that the daemon does not know yet are sent with the unit, and become a part of the artifact's
key.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from ktuned.backends import Backend, Compiled, Registry, Unit
from ktuned.declaration import forget_modules
from ktuned.dependencies import ACCESSES, OBSERVER
from ktuned.ipc import Places, Recipe, read_sight_text, replies, requests
from ktuned.model import BackendError, Observation, Outcome, Phase, extend_digest
from ktuned.worker.compiler_trace import CompilerTrace
from ktuned.worker.inspect import check_digests, list_inspected_files, resolve_digests
from ktuned.worker.observations import SourceChanged
from ktuned.worker.reply import Reply
from ktuned.worker.seal import seal_artifact

TRIES = 3
"""How often a unit is compiled if its files keep changing. A save takes less time than a compile, so few are enough."""


def make_unit(
    registry: Registry, places: Places, kernel: requests.KernelRef, target: str, unit: requests.UnitRef
) -> Unit:
    """Return a unit as backends take it, with this machine's paths."""
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
    """Compile and seal the request's units, and send an item for each as soon as it is ready.

    Raises:
        SourceChanged: a source or the toolchain has changed; units that were sent before it are sealed and valid.
    """
    kernel = request.kernel
    backend = registry.load(kernel.backend)
    into = places.locate_staging(request.staging)
    units = [make_unit(registry, places, kernel, request.target, unit) for unit in request.units]
    plugin = registry.find_plugin_name(kernel.backend)
    recipes = {unit.key: Recipe(unit.build.to_plain(), unit.target, unit.kernel, plugin) for unit in units}
    for unit in units:
        _empty_directory(into / unit.key)
    known_files = require_inspected_code(kernel, places)
    reply.begin_phase(Phase.COMPILE)
    check_toolchain(request.toolchain)
    trace = CompilerTrace(kernel, places)
    groups = [[unit] for unit in units] if backend.group_size == 1 else [units]
    compiled_units = chain.from_iterable(_compile_steadily(backend, group, into, trace) for group in groups)
    for number, compiled in enumerate(compiled_units, start=1):
        if request.announced and number == len(units) and compiled.outcome is None:
            reply.announce_end_of_computing()
        check_digests(kernel, places)
        check_toolchain(request.toolchain)
        observed = observe_reads(trace, units[0], known_files)
        sealed = _seal_unit(backend, compiled, observed, into / compiled.key, places, recipes[compiled.key])
        reply.send_item(sealed, hold_s=request.hold_s)
    return replies.Empty()


def _seal_unit(
    backend: Backend,
    compiled: Compiled,
    observed: tuple[Observation, ...],
    directory: Path,
    places: Places,
    recipe: Recipe,
) -> replies.CompiledUnit:
    """Seal a unit that was compiled into a directory; return its outcome.

    The daemon's key does not cover the ``observed`` files, although the artifact depends on them. So the artifact gets
    the key that the daemon will ask for once it knows them: with each file once, and without the reasons.
    """
    sources = [entry for entry in observed if entry.is_source]
    key = extend_digest(compiled.key, sources) if sources else compiled.key
    unit = replies.CompiledUnit(
        key=compiled.key,
        outcome=compiled.outcome,
        message=compiled.message,
        seconds=compiled.seconds,
        facts=dict(compiled.facts),
        artifact="" if key == compiled.key else key,
        observed=observed,
    )
    if compiled.outcome is not None:
        return unit
    try:
        sealed, size = seal_artifact(
            directory,
            places.locate_artifact(key),
            key=key,
            backend=backend.name,
            facts=compiled.facts,
            required=backend.required_files,
            decisive=backend.decisive_files,
            recipe=recipe,
        )
    except BackendError as error:
        return replace(unit, outcome=Outcome.COMPILE_ERROR, message=error.message)
    return replace(unit, content=sealed.content, bytes=size)


def require_inspected_code(kernel: requests.KernelRef, places: Places) -> Mapping[Path, str]:
    """Make sure that imports give the inspected code; return the digests of the kernel's files.

    A Build may name a function of the kernel file, and it must be the function that was inspected. So modules that this
    process has imported with other content are dropped, and imported again when they are needed.

    Raises:
        SourceChanged: a file is no longer what was inspected.
    """
    known_files = resolve_digests(kernel, places)
    ACCESSES.survives_load = True
    OBSERVER.check_trust(list_inspected_files(kernel, places))
    if not OBSERVER.has_loaded(places.locate_file(kernel.project, kernel.file), known_files):
        forget_modules()
    check_digests(kernel, places)
    return known_files


_files_read: dict[tuple[Path, ...], dict[Path, str]] = {}
"""Files that this process has read while it compiled units of some sources. An imported module or a precompiled header
is read only once, for the first unit, but later units depend on it, too."""

MAX_REMEMBERED = 64
"""Most kernels in :data:`_files_read`."""


def observe_reads(trace: CompilerTrace, unit: Unit, known_files: Mapping[Path, str]) -> tuple[Observation, ...]:
    """Return what was read for a unit, or earlier for another unit with the same sources."""
    sources = (*unit.sources, unit.kernel_file)
    if sources not in _files_read and len(_files_read) >= MAX_REMEMBERED:
        del _files_read[next(iter(_files_read))]
    read = _files_read.setdefault(sources, {})
    ACCESSES.check_trust()
    read |= ACCESSES.files
    # Functions may import modules while they are compiled.
    imported = {path: digest for path, digest in OBSERVER.files.items() if path not in known_files}
    executed = imported.keys() - read.keys()
    return trace.list_observations({**read, **imported}, ACCESSES.variables, ACCESSES.unobserved, executed)


def _compile_steadily(backend: Backend, units: Sequence[Unit], into: Path, trace: CompilerTrace) -> Iterator[Compiled]:
    """Compile units, and compile those again whose files may have changed while the compiler read them.

    Raises:
        SourceChanged: a file changes each time.
    """
    doubtful: list[Compiled] = []
    for _ in range(TRIES):
        doubtful = []
        trace.record_input_states()
        ACCESSES.begin_epoch()
        for compiled in backend.compile(units, into):
            ACCESSES.check_trust()
            if trace.are_files_steady(ACCESSES.files):
                yield compiled
            else:
                doubtful.append(compiled)
        keys = {compiled.key for compiled in doubtful}
        units = [unit for unit in units if unit.key in keys]
        if not units:
            return
        for unit in units:
            _empty_directory(into / unit.key)
    observed = trace.list_observations(ACCESSES.files, {}, ())
    raise SourceChanged(f"a file that {units[0].kernel} reads keeps changing", observed)


def _empty_directory(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)


def check_toolchain(files: Mapping[str, str]) -> None:
    """Check that the toolchain's files look as they did when the artifacts' keys were made.

    Raises:
        SourceChanged: one does not. The artifacts of this toolchain must not be sealed under those keys.
    """
    for path, expected in files.items():
        if read_sight_text(path) != expected:
            raise SourceChanged(f"the toolchain changed: {path}")
