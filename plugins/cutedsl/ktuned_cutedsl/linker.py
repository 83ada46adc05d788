"""Links CuTe DSL's object files to shared libraries, and finds the libraries that these need."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

LINKERS = ("cc", "gcc", "clang")
INSTALL_HINT = "apt install gcc, or set CC"

FLAGS = ("-shared", "-Wl,--build-id=none", "-Wl,--no-undefined")

MAX_MESSAGE_CHARS = 1000
"""Limit for a linker's message."""

RUNTIME = "libcute_dsl_runtime.so"


class NoLinker(Exception):
    """There is no C compiler to link with; the message names the places searched."""


class NoRuntime(Exception):
    """A library that a compiled function needs is not installed."""


@dataclass(frozen=True)
class Linker:
    """C compiler that links: ``$CC``, else the first of :data:`LINKERS` on the PATH."""

    command: tuple[str, ...]

    @classmethod
    def find(cls) -> Linker:
        """Return the linker.

        Raises:
            NoLinker: there is none.
        """
        chosen = os.environ.get("CC", "")
        command = tuple(shlex.split(chosen))
        if command and shutil.which(command[0]):
            return cls(command)
        if command:
            raise NoLinker(f"no C compiler to link with: CC={chosen!r} cannot be run")
        for name in LINKERS:
            if path := shutil.which(name):
                return cls((path,))
        raise NoLinker(f"no C compiler to link with: none of {', '.join(LINKERS)} is on the PATH")

    def link_library(self, directory: Path, source: str, target: str) -> None:
        """Link an object file to a shared library; both names are relative to ``directory``, to keep paths out of it.

        Raises:
            LinkError: the linker failed; the message is its own.
            NoRuntime: a library is missing.
        """
        libraries = (find_runtime_library(), find_tvm_ffi_library())
        command = [*self.command, *FLAGS, "-o", target, source, *map(str, libraries)]
        # In this process's group, so that it is killed with this process.
        done = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip()[:MAX_MESSAGE_CHARS]
            raise LinkError(f"{self.command[0]} cannot link the kernel: {message}")


class LinkError(Exception):
    """The linker failed."""


def find_runtime_library() -> Path:
    """Return CuTe DSL's runtime library, which every compiled function needs, without importing CuTe DSL.

    Raises:
        NoRuntime: nvidia-cutlass-dsl is not installed.
    """
    for listed in os.environ.get("CUTE_DSL_LIBS", "").split(os.pathsep):
        if listed.endswith(RUNTIME):
            return Path(listed)
    spec = importlib.util.find_spec("cutlass")
    if spec is not None and spec.origin is not None:
        for parent in Path(spec.origin).parents:
            if libraries := sorted([*parent.glob(f"cu*/lib/{RUNTIME}"), *parent.glob(f"lib/{RUNTIME}")]):
                return libraries[-1]
    raise NoRuntime(f"{RUNTIME} is not installed")


def find_tvm_ffi_library() -> Path:
    """Return apache-tvm-ffi's library, without importing it.

    Raises:
        NoRuntime: apache-tvm-ffi is not installed.
    """
    spec = importlib.util.find_spec("tvm_ffi")
    library = Path(spec.origin).parent / "lib/libtvm_ffi.so" if spec is not None and spec.origin is not None else None
    if library is None or not library.is_file():
        raise NoRuntime("libtvm_ffi.so is not installed")
    return library
