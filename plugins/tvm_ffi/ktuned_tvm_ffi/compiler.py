"""The system's C++ compiler, which runs as a child process: its flags, its commands and its messages.

No path may enter a binary, and no date: equal sources give equal bytes wherever they are compiled.
"""

from __future__ import annotations

import errno
import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ktuned.backends import compiler_files, move_error_first
from ktuned.model import BackendError

STANDARD_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-g0")
"""Standard flags; ``-g0`` because debugging data contains paths."""

MAX_OUTPUT_BYTES = 1_000_000
"""Limit for the output that is read: one wrong template argument can make a compiler write hundreds of MB."""

INSTALL_HINT = "apt install g++, or set CXX"

_CANDIDATES = ("c++", "g++", "clang++")
ERROR = re.compile(
    r"\berror\s*:|\bfatal\s*:|undefined reference|multiple definition|cannot find -l|internal compiler error"
)


class NoCompiler(Exception):
    """No C++ compiler can be found."""


class CompileError(Exception):
    """The compiler or the linker failed; the message is its own, capped, with the first error first."""


@dataclass(frozen=True, slots=True)
class ObjectFile:
    """One compiled source.

    Attributes:
        path: the object file.
        sources: all files that it was made of.
        command: the compiler's command line.
        output: what the compiler printed.
    """

    path: Path
    sources: tuple[Path, ...]
    command: str
    output: str


@dataclass(frozen=True, slots=True)
class Compiler:
    """A compiler's command and its version line."""

    command: tuple[str, ...]
    version: str

    @classmethod
    def find(cls, wanted: str = "") -> Self:
        """Return ``wanted``, else ``$CXX`` when it is set, else the first of c++, g++, clang++ on the PATH.

        Raises:
            NoCompiler: none of them exists, or it does not print its version.
        """
        asked = shlex.split(wanted or os.environ.get("CXX", ""))
        command = tuple(asked or [name for name in _CANDIDATES if shutil.which(name)][:1])
        if not command:
            raise NoCompiler(f"no C++ compiler ({', '.join(_CANDIDATES)}) on the PATH")
        try:
            output = subprocess.run(
                [*command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
            ).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise NoCompiler(f"the C++ compiler {shlex.join(command)!r} does not run: {error}") from error
        return cls(command, output.partition("\n")[0])

    @classmethod
    def list_files(cls) -> Iterator[Path]:
        """Yield the files that decide which compiler :meth:`find` returns, and that compiler's own files."""
        asked = shlex.split(os.environ.get("CXX", ""))
        for command in [asked] if asked else [[name] for name in _CANDIDATES]:
            yield from compiler_files(command)
            if shutil.which(command[0]):
                return

    @property
    def is_gcc(self) -> bool:
        """True for GCC, whose flags and precompiled headers differ from Clang's."""
        return "clang" not in self.version.lower()

    @property
    def dialect_flags(self) -> tuple[str, ...]:
        """Flags that only this compiler needs.

        GCC makes the static variables of inline functions and templates unique in the whole process, so two configs
        loaded into one worker would share them.
        """
        return ("-fno-gnu-unique",) if self.is_gcc else ()

    def standard_flags(self, target: str) -> tuple[str, ...]:
        """Return the flags that every unit for ``target`` is compiled with."""
        return (*STANDARD_FLAGS, *self.dialect_flags)

    def place_flags(self, directory: Path, name: str) -> tuple[str, ...]:
        """Return the flags that replace a directory by ``name`` in the binary, so that it contains no path."""
        return (f"-ffile-prefix-map={directory}={name}",)

    @property
    def quote_flags(self) -> tuple[str, ...]:
        """The flags that add the working directory to the search path of quoted includes."""
        return ("-iquote", ".")

    def linker_flags(self, *flags: str) -> tuple[str, ...]:
        """Return flags for the linker as this compiler passes them on."""
        return (",".join(("-Wl", *flags)),)

    def include_flags(self) -> tuple[str, ...]:
        """Return the flags that find tvm-ffi's headers, and keep their path out of the binary."""
        include = _tvm_ffi_directory() / "include"
        return ("-isystem", str(include), *self.place_flags(include, "tvm_ffi"))

    def compile_source(
        self, source: Path, into: Path, *, flags: Sequence[str], macros: Sequence[str], prelude: Path | None, base: Path
    ) -> ObjectFile:
        """Compile one source into an object file, with the source's name relative to ``base``.

        Raises:
            CompileError: it does not compile.
        """
        depends = into.with_suffix(".d")
        is_ours = source.parent == into.parent
        # A generated source includes the user's by name, and its own path must not enter the binary.
        ours = (*self.quote_flags, *self.place_flags(source.parent, ".")) if is_ours else ()
        name = str(source) if is_ours else os.path.relpath(source, base)
        command = (
            *self.command, *flags, *macros, *ours, *self.include_flags(),
            *(("-include", str(prelude)) if prelude else ()),
            "-MD", "-MF", str(depends), "-c", name, "-o", str(into),
        )  # fmt: skip
        output = self.run_command(command, base)
        scratches = {scratch.parent for scratch in (into, prelude) if scratch}
        read = (path for path in parse_prerequisites(depends.read_text(), base) if path.parent not in scratches)
        return ObjectFile(into, tuple(read), shlex.join(command), output)

    def link_objects(self, objects: Sequence[Path], into: Path, *, flags: Sequence[str], base: Path) -> str:
        """Link object files to a shared library; return the command.

        Raises:
            CompileError: it does not link.
        """
        library = _tvm_ffi_directory() / "lib"
        # -Bsymbolic: a kernel's own functions take precedence over those of loaded libraries.
        command = (
            *self.command, "-shared", "-o", str(into), *map(str, objects), *flags, *self.linker_flags("-Bsymbolic"),
            f"-L{library}", "-ltvm_ffi",
        )  # fmt: skip
        self.run_command(command, base)
        return shlex.join(command)

    def run_command(self, command: Sequence[str], directory: Path) -> str:
        """Run one command of this compiler to its end, as a child in this process's group; return its output.

        Raises:
            CompileError: it exits with a status other than 0.
            BackendError: the disk is full, which must not be recorded as the source's result.
        """
        code, output = self._run_and_read(command, directory)
        if code != 0:
            if os.strerror(errno.ENOSPC) in output:
                raise BackendError(
                    f"the disk is full for the C++ compiler: {output.strip().splitlines()[0]}",
                    hint=f"free some space in {tempfile.gettempdir()} and in ktuned's home and cache",
                )
            raise CompileError(move_error_first(output, ERROR) or f"{command[0]} exited with {code} and no message")
        return output

    def _run_and_read(self, command: Sequence[str], directory: Path) -> tuple[int, str]:
        # SOURCE_DATE_EPOCH fixes __DATE__ and __TIME__: equal sources give equal bytes.
        environment = {**os.environ, "LC_ALL": "C", "SOURCE_DATE_EPOCH": "0"}
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                command,
                check=False,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            output.seek(0)
            return done.returncode, output.read(MAX_OUTPUT_BYTES).decode(errors="replace")


def parse_prerequisites(rule: str, base: Path) -> list[Path]:
    r"""Return a make rule's files: ``target: file file``, a ``\`` before line ends and blanks, ``$$`` for ``$``."""
    _, _, files = rule.replace("\\\n", " ").partition(": ")
    names = re.findall(r"(?:\\.|[^\s\\])+", files.partition("\n")[0])
    return [Path(os.path.normpath(base / re.sub(r"\\(.)", r"\1", name).replace("$$", "$"))) for name in names]


@functools.cache
def _tvm_ffi_directory() -> Path:
    # Not imported: importing tvm_ffi imports torch, which a compile worker does not need.
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("apache-tvm-ffi, which ktuned-tvm-ffi requires, is not installed", name="tvm_ffi")
    return Path(spec.origin).parent
