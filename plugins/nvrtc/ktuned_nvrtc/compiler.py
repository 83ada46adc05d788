"""Compiler of groups of units: units that differ only in their kernels' names are one program."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from ktuned.backends import Compiled, Resources, Unit, compile_together, ptxas
from ktuned.model import Outcome, Unsupported
from ktuned.spec import follow
from ktuned_nvrtc import headers, precompiled, program
from ktuned_nvrtc.build import Build, name_expressions, three
from ktuned_nvrtc.program import Program, Refused

CUBIN_FILE = "kernel.cubin"
DESCRIPTION_FILE = "kernel.json"
SOURCES_DIRECTORY = "sources"

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
            yield from compile_together(group, partial(_compile, source, into=into), Refused)


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
    """A source, the user's files that it includes, itself among them, and the options of its group."""

    path: Path
    files: Mapping[Path, bytes]
    options: tuple[str, ...]

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
        own = [unit.sources[0].parent / flag.removeprefix("-I") for flag in build.flags if flag.startswith("-I")]
        try:
            files = follow(unit.sources, own).contents
        except OSError as error:
            raise Refused(f"{error.filename}: error: {error.strerror}") from error
        found = headers.find(program.version())
        includes = (f"-I{directory}" for directory in found.directories) if found else ()
        options = (f"--gpu-architecture={unit.target}", *standard_options(), "-I.", *build.flags, *build.macros)
        return cls(next(iter(files)), files, (*options, *includes))

    def compile(self, entries: Sequence[str]) -> Program:
        """Compile the program for some of its kernels.

        Raises:
            Refused: it does not compile.
        """
        # Relative includes start at the working directory; an absolute path would appear in the binary (__FILE__).
        with contextlib.chdir(self.path.parent):
            options = (*self.options, *precompiled.options(self._prefix_key, len(entries)))
            compiled = program.compile_program(self.files[self.path], self.path.name, entries, options)
        precompiled.tell(self._prefix_key, compiled.heap_bytes_wanted)
        return compiled

    @property
    def _prefix_key(self) -> str:
        """Dependencies of a precompiled header, except the source's leading lines, which NVRTC compares itself."""
        texts = [str(self.path).encode(), *map(str.encode, self.options)]
        texts += [hashlib.sha256(content).digest() for path, content in self.files.items() if path != self.path]
        return hashlib.sha256(b"\0".join(texts)).hexdigest()

    def copy(self, into: Path) -> None:
        """Copy the compiled sources, keeping their relative paths."""
        root = Path(os.path.commonpath([path.parent for path in self.files]))
        for path, content in self.files.items():
            target = into / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


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
    return {
        "lowered": symbol,
        "options": list(source.options),
        "kernels_in_cubin": sum(not name.startswith("&") for name in compiled.symbols),
        **(asdict(used[symbol]) if symbol in used else {}),
    }
