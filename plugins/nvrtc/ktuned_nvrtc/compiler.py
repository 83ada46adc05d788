"""Compiles units with NVRTC; units that differ only in their kernels' names are one program.

Headers dominate the time of a compile, so they are parsed once for a group of units. In a process's later compiles, a
precompiled header saves even that. Before NVRTC uses one, it checks only the source's leading lines, not the content of
the headers. So :class:`_Source` remembers the content of each header, and a changed header leads to another key
(``_prefix_key``). This needs NVRTC's trace of the files that it reads; without it no precompiled header is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, cast

from ktuned.backends import (
    Compiled,
    Resources,
    Unit,
    compile_together,
    cuda_headers,
    occupancy_fact,
    ptxas,
    write_sources,
)
from ktuned.dependencies import is_users_header
from ktuned.model import Outcome, Unsupported
from ktuned_nvrtc import precompiled, program
from ktuned_nvrtc.build import Build, list_name_expressions
from ktuned_nvrtc.description import Description
from ktuned_nvrtc.program import CompileError, Program

CUBIN_FILE = "kernel.cubin"
DESCRIPTION_FILE = "kernel.json"
SOURCES_DIRECTORY = "sources"

MAX_REMEMBERED = 64
"""Most sources whose headers a process remembers; it keeps fewer precompiled headers than that."""

_TARGET = re.compile(r"sm_(\d+)[af]?")


def compile_units(units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
    """Compile units, and yield one result for each.

    Units with the same sources, macros, flags and target are one program with several name expressions. If it does not
    compile, its halves are compiled separately, until the faulty units are alone.

    Raises:
        NoNvrtc: NVRTC is not installed.
        BackendError: NVRTC has an internal failure.
    """
    into = into.resolve()
    groups: dict[tuple[Any, ...], list[Unit]] = {}
    for unit in units:
        build = cast(Build, unit.build)
        groups.setdefault((unit.sources, build.macros, build.flags, unit.target), []).append(unit)
    for group in groups.values():
        try:
            source = _Source.from_unit(group[0])
        except Unsupported as error:
            yield from (Compiled(unit.key, Outcome.UNSUPPORTED, error.message) for unit in group)
        except CompileError as error:
            yield from (Compiled(unit.key, Outcome.COMPILE_ERROR, str(error)) for unit in group)
        else:
            compiling = partial(_compile_group, source, into=into)
            yield from compile_together(group, compiling, CompileError)


def list_standard_options() -> tuple[str, ...]:
    """Return the standard options that this NVRTC supports; a unit's flags may override them.

    Raises:
        NoNvrtc: it is not installed.
    """
    options = ["--std=c++17", "--ptxas-options=-v"]
    if program.read_version() >= program.FIRST_WITH_CACHE:
        options.append("--no-cache")  # ktuned keeps artifacts itself, and results from NVRTC's cache have no report
    if program.read_version() >= program.FIRST_WITH_SEED:
        options.append("--frandom-seed=ktuned")  # otherwise the names of internal symbols vary
    return tuple(options)


@dataclass(frozen=True, slots=True)
class _Source:
    """A source, the options of its group, and the user's headers that its last compile read."""

    path: Path
    content: bytes
    options: tuple[str, ...]
    headers: set[Path] = field(default_factory=set)

    @classmethod
    def from_unit(cls, unit: Unit) -> _Source:
        """Return a unit's source and options.

        Raises:
            CompileError: the unit names no source, or an unreadable one.
            Unsupported: this NVRTC does not support the target.
        """
        if not unit.sources:
            raise CompileError(f"the kernel {unit.kernel} names no sources")
        number = _TARGET.fullmatch(unit.target)
        architectures = program.list_architectures()
        if number is None or int(number[1]) not in architectures:
            listed = ", ".join(f"sm_{architecture}" for architecture in architectures)
            raise Unsupported(f"NVRTC {program.read_full_version()} compiles for {listed}, not for {unit.target!r}")
        build = cast(Build, unit.build)
        path = unit.sources[0]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CompileError(f"{error.filename}: error: {error.strerror}") from error
        cuda = cuda_headers.find(program.read_version())
        includes = (f"-I{directory}" for directory in cuda.directories) if cuda else ()
        options = (f"--gpu-architecture={unit.target}", *list_standard_options(), "-I.", *build.flags, *build.macros)
        return cls(path, content, (*options, *includes))

    def compile_entries(self, entries: Sequence[str]) -> Program:
        """Compile the program for some of its kernels.

        Raises:
            CompileError: it does not compile.
        """
        # In the source's directory and by its relative name: an absolute path would appear in the binary (__FILE__).
        base = self.path.parent
        self.headers.clear()
        with contextlib.chdir(base), tempfile.TemporaryDirectory(prefix="ktuned-nvrtc-") as scratch:
            trace = Path(scratch, "trace")
            # Only a trace shows from which headers a precompiled header was made.
            is_traced = program.read_version() >= program.FIRST_WITH_TRACE
            header_options = precompiled.choose_options(self._prefix_key, len(entries)) if is_traced else ()
            options = (*self.options, *header_options, *program.make_trace_option(trace))
            compiled = program.compile_program(self.content, self.path.name, entries, options)
            precompiled.record_result(self._prefix_key, compiled.heap_bytes_wanted)
            read = (_normalise_path(base / name) for name in program.read_traced_headers(trace))
            self.headers.update(path for path in read if path.is_file() and is_users_header(path))
        # The trace lacks the headers inside a precompiled header: add the headers of earlier compiles.
        self.headers.update(_remember_headers(self._key, self.headers) if header_options else ())
        return compiled

    @property
    def _prefix_key(self) -> str:
        """Stands for everything in a precompiled header except the source's leading lines, which NVRTC compares."""
        first_digests = _headers.get(self._key, {})
        changed = {path: digest for path in first_digests if (digest := _digest_file(path)) != first_digests[path]}
        texts = [f"{path} {changed[path]}" for path in sorted(changed)]
        return hashlib.sha256("\0".join([self._key, *texts]).encode()).hexdigest()

    @property
    def _key(self) -> str:
        return "\0".join((str(self.path), *self.options))


_headers: dict[str, dict[Path, str]] = {}
"""The headers that compiles in this process read, by source and options, each with the digest of its first content."""


def _normalise_path(path: Path) -> Path:
    return Path(os.path.normpath(path))


def _digest_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _remember_headers(key: str, read: Collection[Path]) -> Collection[Path]:
    """Add to the remembered headers of a key and return all of them; if there are too many keys, drop the oldest."""
    if key not in _headers and len(_headers) >= MAX_REMEMBERED:
        del _headers[next(iter(_headers))]
    digests = _headers.setdefault(key, {})
    digests |= {path: _digest_file(path) for path in read if path not in digests}
    return list(digests)


def _compile_group(source: _Source, units: Sequence[Unit], *, into: Path) -> Mapping[str, Mapping[str, Any]]:
    """Compile units of one source as one program, write their artifacts and return their facts by key.

    Raises:
        CompileError: the program does not compile.
    """
    # Sorted, so that the same units give the same bytes in any order.
    compiled = source.compile_entries(
        sorted({name for unit in units for name in list_name_expressions(cast(Build, unit.build))})
    )
    used = ptxas.parse(compiled.log)
    return {unit.key: _write_artifact(compiled, used, source, unit, into / unit.key) for unit in units}


def _write_artifact(
    compiled: Program, used: Mapping[str, Resources], source: _Source, unit: Unit, artifact: Path
) -> dict[str, Any]:
    """Write one unit's artifact and return its facts."""
    build = cast(Build, unit.build)
    description = Description.from_compiled(build, unit, compiled.symbols)
    (artifact / CUBIN_FILE).write_bytes(compiled.cubin)
    (artifact / DESCRIPTION_FILE).write_text(description.to_json())
    sources = {source.path: source.content, **{path: path.read_bytes() for path in source.headers}}
    write_sources(sources, artifact / SOURCES_DIRECTORY)
    resources = used.get(description.lowered)
    shared_bytes = build.shared_bytes + (resources.static_shared_bytes if resources else 0)
    return {
        "lowered": description.lowered,
        "options": list(source.options),
        "dynamic_shared_bytes": build.shared_bytes,
        **(resources.to_facts() if resources else {}),
        **(occupancy_fact(unit.target, prod(build.block), resources.registers, shared_bytes) if resources else {}),
    }
