"""From groups of units to artifacts: units that differ in their kernels' names alone are compiled as one program."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from ktuned.backends import Compiled, Unit
from ktuned.errors import Unsupported
from ktuned.model import Outcome
from ktuned.spec.ctokens import follow
from ktuned_nvrtc import headers, precompiled, program, resources
from ktuned_nvrtc.build import Build
from ktuned_nvrtc.program import Program, Refused

CUBIN_FILE = "kernel.cubin"
DESCRIPTION_FILE = "kernel.json"
SOURCES_DIRECTORY = "sources"

STANDARD_OPTIONS = ("--std=c++17",)
"""What every unit is compiled with, unless its flags say otherwise."""

_TARGET = re.compile(r"sm_(\d+)[af]?")


def compile_units(units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
    """Compile units, and yield one result for each.

    Those with the same sources, macros, flags and target are one program with several name expressions: its headers
    are parsed once. When it is refused, its halves are compiled apart, until the units at fault are alone.

    Raises:
        NoNvrtc: NVRTC is not installed.
        BackendError: NVRTC fails for a reason of its own.
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
            yield from _compile_group(source, group, into, spent_s=0.0)


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """A source file with the options of its group, and the user's files that it reads."""

    path: Path
    files: dict[Path, bytes]
    options: tuple[str, ...]

    @classmethod
    def of(cls, unit: Unit) -> _Source:
        """Return a unit's source and options.

        Raises:
            Refused: it names no source, or one that cannot be read.
            Unsupported: this NVRTC does not know the target.
        """
        if not unit.sources:
            raise Refused(f"the kernel {unit.kernel} names no sources")
        number = _TARGET.fullmatch(unit.target)
        known = program.supported_architectures()
        if number is None or int(number[1]) not in known:
            listed = ", ".join(f"sm_{architecture}" for architecture in known)
            raise Unsupported(f"NVRTC {program.full_version()} cannot compile for {unit.target!r}, only for {listed}")
        try:
            files = follow(unit.sources).contents
        except OSError as error:
            raise Refused(f"{error.filename}: error: {error.strerror}") from error
        build = cast(Build, unit.build)
        return cls(unit.sources[0], files, (*standard_options(unit.target, build.flags), *build.macros))

    def compile(self, entries: Sequence[str]) -> Program:
        """Compile the program for some of its kernels.

        Raises:
            Refused: it does not compile.
        """
        includes = headers.find(program.version())
        options = [*self.options, "-I.", *(f"-I{path}" for path in includes.directories if includes)] if includes else [*self.options, "-I."]
        if program.version() >= program.FIRST_WITH_PRECOMPILED_HEADERS and (kept := precompiled.of_this_process()):
            options += kept.options(self._key(options))
        # NVRTC looks for relative includes from where the process is; absolute paths would show in the binary.
        with contextlib.chdir(self.path.parent):
            return program.compile_program(self.path.read_bytes(), self.path.name, entries, options)
