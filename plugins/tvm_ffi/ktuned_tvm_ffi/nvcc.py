"""nvcc, the compiler for CUDA C++: it builds a library that launches its kernels."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ktuned.backends import compiler_files, on_path
from ktuned_tvm_ffi.compiler import Compiler, NoCompiler

CUDA_FLAGS = ("-std=c++17", "-O3", "--ptxas-options=-v", "-Xcompiler=-fPIC,-g0")
"""Standard flags; the assembler's report contains the resources of each kernel."""

INSTALL_HINT = "install the CUDA Toolkit's nvcc, or set CUDA_HOME or CUDACXX"

_TARGET = re.compile(r"sm_(\d+[af]?)")
_RELEASE = re.compile(r"release [\d.]+, V(\S+)")


@dataclass(frozen=True, slots=True)
class Nvcc(Compiler):
    """nvcc with its host compiler."""

    @classmethod
    def find(cls, wanted: str = "") -> Self:
        """Return ``wanted``, else ``$CUDACXX``, else the nvcc of ``$CUDA_HOME``, ``$CUDA_PATH``, the PATH, /usr/local.

        The host compiler is ``$NVCC_CCBIN``, else the compiler of C++ kernels.

        Raises:
            NoCompiler: there is none, or one of the two does not print its version.
        """
        asked = shlex.split(wanted or os.environ.get("CUDACXX", ""))
        command = asked or [path for path in _yield_candidates() if os.access(path, os.X_OK)][:1]
        if not command:
            raise NoCompiler("no nvcc on the PATH, in $CUDA_HOME or in /usr/local/cuda")
        try:
            output = subprocess.run(
                [*command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
            ).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            raise NoCompiler(f"nvcc {shlex.join(command)!r} does not run: {error}") from error
        host = Compiler.find(os.environ.get("NVCC_CCBIN", ""))
        release = _RELEASE.search(output)
        return cls(
            (*command, f"--compiler-bindir={host.command[0]}"),
            f"nvcc {release[1] if release else output.strip().splitlines()[-1]}; {host.version}",
        )

    @classmethod
    def list_files(cls) -> Iterator[Path]:
        """Yield the files that decide which nvcc and which host compiler are found, and the files of both compilers."""
        asked = shlex.split(os.environ.get("CUDACXX", ""))
        for path in asked[:1] or _yield_candidates():
            yield from on_path(path or "nvcc")
            beside = Path(path).resolve().parent
            yield from (beside / "ptxas", beside / "nvcc.profile", beside.parent / "nvvm" / "bin" / "cicc")
            if os.access(path, os.X_OK):
                break
        host = shlex.split(os.environ.get("NVCC_CCBIN", ""))
        yield from compiler_files(host) if host else Compiler.list_files()

    @property
    def is_gcc(self) -> bool:
        """False: nvcc takes no precompiled header, even if its host compiler is GCC."""
        return False

    def standard_flags(self, target: str) -> tuple[str, ...]:
        """Return the flags for ``target`` (``sm_90a``): only its machine code, as artifacts are for one target."""
        number = target.removeprefix("sm_")
        unique = () if "clang" in self.version.lower() else ("-Xcompiler=-fno-gnu-unique",)
        return (*CUDA_FLAGS, *unique, f"-gencode=arch=compute_{number},code=sm_{number}")

    def place_flags(self, directory: Path, name: str) -> tuple[str, ...]:
        """Return the flags that replace a directory by ``name`` in the binary, so that it contains no path.

        None for a directory with blanks: nvcc splits such a word.
        """
        flag = f"-ffile-prefix-map={directory}={name}"
        return () if any(map(str.isspace, flag)) else (f"-Xcompiler={flag}",)

    @property
    def quote_flags(self) -> tuple[str, ...]:
        """The flags by which nvcc finds quoted includes in the working directory."""
        return ("-I.",)

    def linker_flags(self, *flags: str) -> tuple[str, ...]:
        """Return flags for the linker in nvcc's form, and one against symbols named after temporary files."""
        return ("-Xlinker", ",".join((*flags, "-s")))


def is_gpu_target(target: str) -> bool:
    """Return whether a target is a GPU's."""
    return _TARGET.fullmatch(target) is not None


def _yield_candidates() -> Iterator[str]:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            yield os.path.join(os.environ[variable], "bin", "nvcc")
    yield shutil.which("nvcc") or ""
    yield "/usr/local/cuda/bin/nvcc"
