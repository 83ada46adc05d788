"""Front end: a worker that imports what users wrote, and lowers functions for the workers that compile.

A library may take long to import, so a front end serves it for hours. Imports cannot be undone. So when a file that was
imported has changed, by an upgrade or an edit of the library, the front end starts again as a fresh process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from time import monotonic, perf_counter
from typing import Any

from ktuned.backends import Backend, Build, Compiled, Registry, Unit
from ktuned.declaration import get_kernel_module
from ktuned.dependencies import ACCESSES, FreshProcessNeeded
from ktuned.ipc import Places, Sight, read_sight, replies, requests
from ktuned.model import Observation, Phase
from ktuned.worker.compile import check_toolchain, make_unit, observe_reads, require_inspected_code
from ktuned.worker.compiler_trace import CompilerTrace
from ktuned.worker.inspect import check_digests
from ktuned.worker.reply import Reply

LOOK_EVERY_S = 0.2
"""Interval between two looks: looking at 3,000 modules takes 5 ms, a tenth of the time that a config takes here."""


class ImportedFiles:
    """Remembers how the files of all imported modules looked when first seen; ``clock`` is in seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._seen: dict[str, Sight] = {}
        self._looked_at = -LOOK_EVERY_S

    def record_imports(self) -> None:
        """Record the files of modules that were imported since the last call."""
        for module in list(sys.modules.values()):
            # Not by getattr: a lazy module may import things when it is asked for an attribute.
            file = getattr(module, "__dict__", {}).get("__file__")
            if isinstance(file, str) and file not in self._seen:
                sight = read_sight(file)
                if sight is not None:
                    self._seen[file] = sight

    def find_changed_file(self) -> str:
        """Return a file that has changed since it was imported, or nothing. A file that is gone does not count."""
        now = self._clock()
        if now < self._looked_at + LOOK_EVERY_S:
            return ""
        self._looked_at = now
        return next((file for file, seen in self._seen.items() if read_sight(file) not in (None, seen)), "")


_imported = ImportedFiles()


def open_front_end(registry: Registry, places: Places, request: requests.OpenFrontEnd, reply: Reply) -> replies.Empty:
    """Import a backend's compiler, and a library or a kernel file, ahead of the units to be lowered.

    Raises:
        BackendError: the library cannot be imported.
        KernelFileError: the kernel file cannot be imported.
        SourceChanged: the kernel file is no longer the one that was inspected.
        FreshProcessNeeded: this process has imported another version of the library.
    """
    backend = registry.load(request.backend)
    backend.prepare()
    if request.library:
        build = None if request.build is None else backend.build.from_plain(request.build)
        _open_library(backend, request.library, build, reply)
    elif request.kernel is not None:
        require_inspected_code(request.kernel, places)
        reply.begin_phase(Phase.COMPILE)
        get_kernel_module(places.locate_file(request.kernel.project, request.kernel.file))
    return replies.Empty()


def lower_unit(registry: Registry, places: Places, request: requests.Lower, reply: Reply) -> replies.Lowered:
    """Lower a unit's function to the code that the backend compiles, and report the files that were read for it.

    For a function of a library no files are reported: its Build names it by a digest of its code.

    Raises:
        BackendError: the library cannot be imported.
        SourceChanged: a source or the toolchain has changed.
        FreshProcessNeeded: this process has imported another version of the library.
    """
    kernel = request.kernel
    backend = registry.load(kernel.backend)
    backend.prepare()
    unit = make_unit(registry, places, kernel, request.target, request.unit)
    library = request.unit.build.get("library")
    if library:
        _open_library(backend, library, unit.build, reply)
        reply.begin_phase(Phase.COMPILE)
        check_toolchain(request.toolchain)
        lowered, seconds = _time_lowering(backend, unit)
        check_toolchain(request.toolchain)
        return _make_lowered_reply(lowered, seconds, ())
    known_files = require_inspected_code(kernel, places)
    reply.begin_phase(Phase.COMPILE)
    check_toolchain(request.toolchain)
    trace = CompilerTrace(kernel, places)
    ACCESSES.begin_epoch()
    lowered, seconds = _time_lowering(backend, unit)
    check_digests(kernel, places)
    check_toolchain(request.toolchain)
    observed = observe_reads(trace, unit, known_files)
    return _make_lowered_reply(lowered, seconds, observed)


def _open_library(backend: Backend, library: Mapping[str, Any], build: Build | None, reply: Reply) -> None:
    """Import a library as it is on the disk now.

    Raises:
        BackendError: it cannot be imported.
        FreshProcessNeeded: a file that this process has imported has changed since.
    """
    reply.begin_phase(Phase.INSPECT)
    changed = _imported.find_changed_file()
    if changed:
        raise FreshProcessNeeded(f"{changed} has changed since it was imported")
    try:
        backend.open_library(library, build)
    finally:
        _imported.record_imports()


def _time_lowering(backend: Backend, unit: Unit) -> tuple[bytes | Compiled, float]:
    started = perf_counter()
    lowered = backend.lower(unit)
    return lowered, perf_counter() - started


def _make_lowered_reply(made: bytes | Compiled, seconds: float, observed: tuple[Observation, ...]) -> replies.Lowered:
    if isinstance(made, Compiled):
        return replies.Lowered(b"", made.outcome, made.message, seconds, observed)
    return replies.Lowered(made, None, "", seconds, observed)
