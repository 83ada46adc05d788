"""Compiler of groups of units: units that differ only in their kernels' names are one program."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, cast

from ktuned.backends import Compiled, Resources, Unit, compile_together, cuda_headers, occupancy_fact, ptxas
from ktuned.dependencies import find_installed_place
from ktuned.model import Outcome, Unsupported
from ktuned_nvrtc import precompiled, program
from ktuned_nvrtc.build import Build, name_expressions, three
from ktuned_nvrtc.program import Program, Refused

CUBIN_FILE = "kernel.cubin"
DESCRIPTION_FILE = "kernel.json"
SOURCES_DIRECTORY = "sources"

MAX_REMEMBERED = 64
"""Keys whose observations a process remembers: more than it keeps precompiled headers of."""

_TARGET = re.compile(r"sm_(\d+)[af]?")


def compile_units(units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
    """Compile units, and yield one result for each.

    Units with the same sources, macros, flags and target are one program with several name expressions: its headers
    are parsed once. If NVRTC refuses it, its halves are compiled separately, until the faulty units are alone.

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
            source = _Source.of(group[0])
        except Unsupported as error:
            yield from (Compiled(unit.key, Outcome.UNSUPPORTED, error.message) for unit in group)
        except Refused as error:
            yield from (Compiled(unit.key, Outcome.COMPILE_ERROR, str(error)) for unit in group)
        else:
            compiling = partial(_compile, source, into=into)
            yield from compile_together(group, compiling, Refused)


def standard_options() -> tuple[str, ...]:
    """Return the standard options that this NVRTC supports; a unit's flags may override them.

    Raises:
        NoNvrtc: it is not installed.
    """
    options = ["--std=c++17", "--ptxas-options=-v"]
    if program.version() >= program.FIRST_WITH_CACHE:
        options.append("--no-cache")  # artifacts are cached by ktuned, and results from NVRTC's cache have no report
    if program.version() >= program.FIRST_WITH_SEED:
        options.append("--frandom-seed=ktuned")  # otherwise names of internal symbols vary
    return tuple(options)


@dataclass(frozen=True, slots=True)
class _Source:
    """A source, the options of its group, and the user's headers that its last compile has read."""

    path: Path
    content: bytes
    options: tuple[str, ...]
    headers: set[Path] = field(default_factory=set)

    @classmethod
    def of(cls, unit: Unit) -> _Source:
        """Return a unit's source and options.

        Raises:
            Refused: it names no source, or an unreadable one.
            Unsupported: this NVRTC does not support the target.
        """
        if not unit.sources:
            raise Refused(f"the kernel {unit.kernel} names no sources")
        number = _TARGET.fullmatch(unit.target)
        known = program.supported_architectures()
        if number is None or int(number[1]) not in known:
            listed = ", ".join(f"sm_{architecture}" for architecture in known)
            raise Unsupported(f"NVRTC {program.full_version()} compiles for {listed}, not for {unit.target!r}")
        build = cast(Build, unit.build)
        path = unit.sources[0]
        try:
            content = path.read_bytes()
        except OSError as error:
            raise Refused(f"{error.filename}: error: {error.strerror}") from error
        found = cuda_headers.find(program.version())
        includes = (f"-I{directory}" for directory in found.directories) if found else ()
        options = (f"--gpu-architecture={unit.target}", *standard_options(), "-I.", *build.flags, *build.macros)
        return cls(path, content, (*options, *includes))

    def compile(self, entries: Sequence[str]) -> Program:
        """Compile the program for some of its kernels.

        Raises:
            Refused: it does not compile.
        """
        # Relative includes start at the working directory; an absolute path would appear in the binary (__FILE__).
        base = self.path.parent
        self.headers.clear()
        with contextlib.chdir(base), tempfile.TemporaryDirectory(prefix="ktuned-nvrtc-") as scratch:
            trace = Path(scratch, "trace")
            # Only a traced compile shows whether a precompiled header still holds.
            is_traced = program.version() >= program.FIRST_WITH_TRACE
            kept = precompiled.options(self._prefix_key, len(entries)) if is_traced else ()
            options = (*self.options, *kept, *program.trace_option(trace))
            compiled = program.compile_program(self.content, self.path.name, entries, options)
            precompiled.tell(self._prefix_key, compiled.heap_bytes_wanted)
            read = (_path(base / name) for name in program.traced_headers(trace))
            self.headers.update(path for path in read if path.is_file() and _is_users(path))
        # A header that is precompiled is in the trace of the program that it was made with.
        self.headers.update(_remembered(self._key, self.headers) if kept else ())
        return compiled

    @property
    def _prefix_key(self) -> str:
        """What a precompiled header was made of, except the source's leading lines, which NVRTC compares itself."""
        known = _headers.get(self._key, {})
        changed = {path: digest for path in known if (digest := _digest(path)) != known[path]}
        texts = [f"{path} {changed[path]}" for path in sorted(changed)]
        return hashlib.sha256("\0".join([self._key, *texts]).encode()).hexdigest()

    @property
    def _key(self) -> str:
        return "\0".join((str(self.path), *self.options))

    def copy(self, into: Path) -> None:
        """Copy the compiled sources, keeping their relative paths."""
        files = {self.path: self.content, **{path: path.read_bytes() for path in self.headers}}
        root = Path(os.path.commonpath([path.parent for path in files]))
        for path, content in files.items():
            target = into / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


_headers: dict[str, dict[Path, str]] = {}
"""The headers that compiles in this process have read, by source and options, with what they held at first."""


def _path(path: Path) -> Path:
    return Path(os.path.normpath(path))


def _is_users(path: Path) -> bool:
    """Return whether a header is the user's, and not of the system, a toolkit or an installed package."""
    return not str(path).startswith(("/usr/", "/opt/")) and find_installed_place(str(path)) is None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _remembered(key: str, read: Collection[Path]) -> Collection[Path]:
    """Add to the headers of a key, and return all; the oldest key makes room."""
    if key not in _headers and len(_headers) >= MAX_REMEMBERED:
        del _headers[next(iter(_headers))]
    known = _headers.setdefault(key, {})
    known |= {path: _digest(path) for path in read if path not in known}
    return list(known)


def _compile(source: _Source, units: Sequence[Unit], *, into: Path) -> Mapping[str, Mapping[str, Any]]:
    """Compile units of one source as one program, fill their artifacts and return their facts by key.

    Raises:
        Refused: it does not compile.
    """
    # Sorted: the same units give the same bytes in any order.
    compiled = source.compile(sorted({name for unit in units for name in name_expressions(cast(Build, unit.build))}))
    used = ptxas.parse(compiled.log)
    return {unit.key: _save(compiled, used, source, unit, into / unit.key) for unit in units}


def _save(
    compiled: Program, used: Mapping[str, Resources], source: _Source, unit: Unit, artifact: Path
) -> dict[str, Any]:
    """Fill an artifact and return its facts."""
    build = cast(Build, unit.build)
    symbol = compiled.symbols[build.entry]
    description: dict[str, Any] = {
        "entry": build.entry,
        "lowered": symbol,
        "target": unit.target,
        "grid": three(build.grid),
        "block": three(build.block),
        "cluster": three(build.cluster),
        "shared_bytes": build.shared_bytes,
    }
    if build.constants:
        description["constants"] = {name: compiled.symbols[f"&{name}"] for name in sorted(build.constants)}
    (artifact / CUBIN_FILE).write_bytes(compiled.cubin)
    (artifact / DESCRIPTION_FILE).write_text(json.dumps(description, indent=1, sort_keys=True))
    source.copy(artifact / SOURCES_DIRECTORY)
    resources = used.get(symbol)
    shared_bytes = build.shared_bytes + (resources.static_shared_bytes if resources else 0)
    return {
        "lowered": symbol,
        "options": list(source.options),
        "dynamic_shared_bytes": build.shared_bytes,
        **(asdict(resources) if resources else {}),
        **(occupancy_fact(unit.target, prod(build.block), resources.registers, shared_bytes) if resources else {}),
    }
