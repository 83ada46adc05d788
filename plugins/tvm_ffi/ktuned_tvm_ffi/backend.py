"""The backend: what its ``Build`` says, where it runs, how a unit becomes ``kernel.so`` and is loaded again."""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, cast

from ktuned import backends, cpu
from ktuned.backends import Absence, Absent, Compiled, Launch, Unit
from ktuned.errors import BackendError, Unsupported
from ktuned.model import Device, Outcome, Scalar
from ktuned_tvm_ffi.compiler import INSTALL_HINT, STANDARD_FLAGS, Compiler, NoCompiler, Refused
from ktuned_tvm_ffi.prelude import precompiled

KERNEL_FILE = "kernel.so"
SOURCES_DIRECTORY = "sources"
CXX_SUFFIXES = frozenset({".cc", ".cpp", ".cxx", ".c++", ".C"})

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Build(backends.Build):
    """How to compile and call one config of a C++ kernel.

    Attributes:
        function: the name that a source exports with ``TVM_FFI_DLL_EXPORT_TYPED_FUNC``.
        args: what the function is called with, in order: a string names a tensor of ``inputs``, a number is itself.
        defines: preprocessor macros; ``True`` defines the bare name, ``False`` leaves it undefined.
        flags: more flags for the compiler, each one a word; they may override the standard ones. Relative paths
            in them start at the first source's directory.

    Raises:
        ValueError: ``function`` or a macro's name is not an identifier.
    """

    backend: ClassVar[str] = "tvm_ffi"

    function: str
    args: tuple[Scalar, ...]
    defines: Mapping[str, Scalar] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (self.function, *self.defines):
            if not _IDENTIFIER.fullmatch(name):
                raise ValueError(f"{name!r} is not a C++ identifier")

    @property
    def macros(self) -> tuple[str, ...]:
        """The ``-D`` flags, sorted by name, so that the order of ``defines`` never changes a binary."""
        return tuple(
            f"-D{name}" if value is True else f"-D{name}={value}"
            for name, value in sorted(self.defines.items())
            if value is not False
        )


class TvmFfiKernel(backends.Kernel):
    """A function of a loaded ``kernel.so``."""

    def __init__(self, function: Any, args: tuple[Scalar, ...]) -> None:
        self._function = function
        self._args = args

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a call of the function on ``tensors``: anything that speaks DLPack, torch's among them.

        The tensors are converted here, once: a call that converts three torch tensors itself takes the host
        about twice as long.

        Raises:
            KeyError: ``args`` names a tensor that ``inputs`` does not make.
        """
        import tvm_ffi

        bound: list[Any] = []
        for arg in self._args:
            if isinstance(arg, str) and arg not in tensors:
                raise KeyError(f"args names the tensor {arg!r}; inputs makes {', '.join(sorted(tensors)) or 'none'}")
            bound.append(tvm_ffi.from_dlpack(tensors[arg]) if isinstance(arg, str) else arg)
        return cast(Launch, functools.partial(self._function, *bound))


class TvmFfi(backends.Backend):
    """C++ through the system's compiler; the kernel is called through apache-tvm-ffi on CPU tensors."""

    name = "tvm_ffi"
    api_version = 1
    build = Build
    required_files = (KERNEL_FILE,)

    def fingerprint(self) -> Mapping[str, str]:
        """Return the compiler's version line, those of tvm-ffi and of this plugin, and the standard flags."""
        try:
            compiler = Compiler.find().version
        except NoCompiler:
            compiler = "none"
        return {
            "compiler": compiler,
            "apache-tvm-ffi": version("apache-tvm-ffi"),
            "ktuned-tvm-ffi": version("ktuned-tvm-ffi"),
            "flags": " ".join(STANDARD_FLAGS),
        }

    def devices(self) -> Sequence[Device] | Absent:
        """Return this machine's CPU as ``cpu:0``, or that there is no compiler."""
        try:
            Compiler.find()
        except NoCompiler as error:
            return Absent(Absence.NO_COMPILER, str(error), INSTALL_HINT)
        return (cpu.device(),)

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Compile each unit with the C++ compiler, which runs as a child in this process's group.

        Raises:
            BackendError: there is no compiler, or no room for what it writes.
        """
        try:
            compiler = Compiler.find()
        except NoCompiler as error:
            raise BackendError(str(error), hint=INSTALL_HINT) from error
        for unit in units:
            started = time.perf_counter()
            try:
                facts = _compile(compiler, unit, into / unit.key)
            except Unsupported as error:
                yield Compiled(unit.key, Outcome.UNSUPPORTED, error.message)
            except Refused as error:
                seconds = time.perf_counter() - started
                yield Compiled(unit.key, Outcome.COMPILE_ERROR, str(error), seconds)
            else:
                yield Compiled(unit.key, seconds=time.perf_counter() - started, facts=facts)

    def load(self, artifact: Path, unit: Unit, device: Device) -> TvmFfiKernel:
        """Load ``kernel.so`` and look its function up.

        Raises:
            Unsupported: it was compiled for another target than this device's.
        """
        if device.target != unit.target:
            raise Unsupported(f"compiled for {unit.target}, and {device.name} is {device.target}")
        import tvm_ffi

        build = cast(Build, unit.build)
        module = tvm_ffi.load_module(str((artifact / KERNEL_FILE).resolve()))
        return TvmFfiKernel(module.get_function(build.function), build.args)


def _compile(compiler: Compiler, unit: Unit, artifact: Path) -> dict[str, Any]:
    """Fill ``artifact`` and return its facts.

    Raises:
        Refused: the compiler or the linker said no.
        Unsupported: the unit is for another CPU than this one, and the compiler aims at this one.
    """
    if unit.target != cpu.target():
        raise Unsupported(f"the target is {unit.target}; the compiler here aims at {cpu.target()}")
    if not unit.sources:
        raise Refused(f"the kernel {unit.kernel} names no sources")
    for source in unit.sources:
        if source.suffix not in CXX_SUFFIXES:
            raise Refused(f"{source.name}: not a C++ source; its name must end in {', '.join(sorted(CXX_SUFFIXES))}")
    build = cast(Build, unit.build)
    base = unit.sources[0].parent
    flags = (*STANDARD_FLAGS, *compiler.dialect_flags, *build.flags)
    prelude = precompiled(compiler, flags)
    commands: list[str] = []
    headers: set[Path] = set()
    with tempfile.TemporaryDirectory(prefix="ktuned-cc-") as scratch:
        objects = []
        for index, source in enumerate(unit.sources):
            built = compiler.compile(source, Path(scratch, f"{index}.o"), flags=flags, macros=build.macros,
                                     prelude=prelude, base=base)  # fmt: skip
            objects.append(built.path)
            headers.update(built.headers)
            commands.append(built.command)
        commands.append(compiler.link(objects, artifact / KERNEL_FILE, flags=flags, base=base))
    if f"__tvm_ffi_{build.function}\0".encode() not in (artifact / KERNEL_FILE).read_bytes():
        raise Refused(
            f"{unit.sources[0].name}: error: nothing exports {build.function!r}; "
            f"add TVM_FFI_DLL_EXPORT_TYPED_FUNC({build.function}, …)"
        )
    _copy_sources({*unit.sources, *headers}, artifact / SOURCES_DIRECTORY)
    return {"command": commands}


def _copy_sources(files: set[Path], into: Path) -> None:
    """Copy what was compiled, keeping the files' places relative to each other."""
    root = Path(os.path.commonpath([path.parent for path in files]))
    for path in files:
        target = into / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
