"""A backend for real compiles that take 30 ms: plain C through the system's compiler, called with ctypes.

Its tensors are NumPy's, because importing torch costs each worker 2 s of CPU.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ktuned.backends.contract import Backend, Compiled, Kernel, Launch, Unit
from ktuned.backends.contract import Build as AnyBuild
from ktuned.model.device import Device
from ktuned.model.keys import DeviceModel, DeviceName, Target
from ktuned.model.values import Outcome

# How Python says that a module is not there, as where torch is not installed.
sys.modules.setdefault("torch", None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Build(AnyBuild):
    """A call of the sources' ``run`` with the addresses of ``args`` and the shape of the first one."""

    backend: ClassVar[str] = "cc"
    defines: Mapping[str, int]
    args: tuple[str, ...] = ("y", "x")
    flags: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.args

    @property
    def options(self) -> tuple[str, ...]:
        """Return the compiler's options."""
        return (*(f"-D{name}={value}" for name, value in self.defines.items()), *self.flags)


class CcKernel(Kernel):
    def __init__(self, library: Path, args: Sequence[str]) -> None:
        self._run = ctypes.CDLL(str(library)).run
        # A launch that returns a number says that it has timed itself.
        self._run.restype = None
        self._args = args

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        bound = [tensors[name] for name in self._args]
        addresses = [ctypes.c_void_p(tensor.ctypes.data) for tensor in bound]
        sizes = [ctypes.c_long(size) for size in bound[0].shape]
        return lambda: self._run(*addresses, *sizes)


def _find_compiler() -> str:
    return os.environ.get("AUTHOR_CC", "/usr/bin/cc")


class Cc(Backend):
    name = "cc"
    build = Build
    required_files = ("kernel.so",)
    decisive_files = ("kernel.so",)

    def fingerprint(self) -> Mapping[str, str]:
        """Return nothing: the digest of the compiler's file is enough."""
        return {}

    def toolchain_files(self) -> Iterable[Path]:
        return [Path(_find_compiler())]

    def devices(self) -> Sequence[Device]:
        return [Device(DeviceName("cpu:0"), DeviceModel("Some CPU"), Target("native"), {})]

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Compile each unit, and append a line for it to ``CC_LOG``."""
        for unit in units:
            build = unit.build
            assert isinstance(build, Build)
            began = time.perf_counter()
            base, library = unit.sources[0].parent, into / unit.key / "kernel.so"
            command = [_find_compiler(), "-O1", "-g0", "-shared", "-fPIC", *build.options, "-o", str(library)]
            names = [os.path.relpath(source, base) for source in unit.sources]
            done = subprocess.run([*command, *names], cwd=base, capture_output=True, text=True)
            with open(os.environ["CC_LOG"], "a", encoding="utf-8") as log:
                log.write(f"{unit.kernel}\n")
            seconds = time.perf_counter() - began
            if done.returncode:
                errors = [line for line in done.stderr.splitlines() if "error" in line]
                yield Compiled(unit.key, Outcome.COMPILE_ERROR, "\n".join(errors), seconds)
            else:
                yield Compiled(unit.key, seconds=seconds)

    def load(self, artifact: Path, unit: Unit, device: Device) -> Kernel:
        assert isinstance(unit.build, Build)
        return CcKernel(artifact / "kernel.so", unit.build.args)
