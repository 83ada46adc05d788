"""The backend: how ktuned compiles CuTe DSL functions and loads their artifacts."""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from ktuned import backends
from ktuned.backends import (
    DEFAULT_TARGET,
    Absence,
    Absent,
    Compiled,
    Launch,
    Unit,
    compile_singly,
    compiler_files,
    runs_on,
    torch_cuda_devices,
)
from ktuned.model import BackendError, Device, Scalar, Unsupported
from ktuned_cutedsl.build import Build
from ktuned_cutedsl.compiler import LIBRARY_FILE, CompileError, compile_unit
from ktuned_cutedsl.linker import (
    FLAGS,
    INSTALL_HINT,
    LINKERS,
    Linker,
    LinkError,
    NoLinker,
    NoRuntime,
    find_runtime_library,
)
from ktuned_cutedsl.signature import make_runtime_arguments

REINSTALL_HINT = "pip install nvidia-cutlass-dsl apache-tvm-ffi"


class CuteDslKernel(backends.Kernel):
    """A function of a loaded ``kernel.so``."""

    def __init__(self, function: Any, args: tuple[Scalar, ...]) -> None:
        self._function = function
        self._args = args

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a call of the function on ``tensors``, which launches on torch's current stream.

        Raises:
            KeyError: ``args`` names a tensor that ``inputs`` does not declare.
        """
        return cast(Launch, functools.partial(self._function, *make_runtime_arguments(self._args, tensors)))


class CuteDsl(backends.Backend):
    """CuTe DSL functions; compiles on machines without a GPU, runs on torch's CUDA tensors."""

    name = "cutedsl"
    api_version = 1
    build = Build
    required_files = (LIBRARY_FILE,)
    decisive_files = (LIBRARY_FILE,)
    default_target = DEFAULT_TARGET

    def fingerprint(self) -> Mapping[str, str]:
        """Return the versions of CuTe DSL, tvm-ffi and this plugin, CuTe DSL's environment, and the linker's flags."""
        environment = {name: value for name, value in os.environ.items() if name.startswith("CUTE_DSL_")}
        return {
            "nvidia-cutlass-dsl": version("nvidia-cutlass-dsl"),
            "apache-tvm-ffi": version("apache-tvm-ffi"),
            "ktuned-cutedsl": version("ktuned-cutedsl"),
            "environment": " ".join(f"{name}={value}" for name, value in sorted(environment.items())),
            "flags": " ".join(FLAGS),
        }

    def toolchain_files(self) -> Iterable[Path]:
        """Yield the linker's files, and CuTe DSL's runtime library."""
        chosen = shlex.split(os.environ.get("CC", ""))
        for command in [chosen] if chosen else [[name] for name in LINKERS]:
            yield from compiler_files(command)
            if shutil.which(command[0]):
                break
        with suppress(NoRuntime):
            yield find_runtime_library()

    def devices(self) -> Sequence[Device] | Absent:
        """Return the GPUs that this process may use, or the reason for their absence."""
        gpus = torch_cuda_devices()
        if isinstance(gpus, Absent):
            return gpus
        try:
            find_runtime_library()
            Linker.find()
        except NoRuntime as error:
            return Absent(Absence.NO_LIBRARY, str(error), REINSTALL_HINT)
        except NoLinker as error:
            return Absent(Absence.NO_COMPILER, str(error), INSTALL_HINT)
        return gpus

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Compile each unit in this process, and link it with the system's linker.

        Raises:
            BackendError: there is no linker, or it fails; CuTe DSL is incomplete; the disk is full.
        """
        try:
            linker = Linker.find()
            # Imported before the first unit, so that no unit's time includes the import.
            import_module("cutlass.cute")
            yield from compile_singly(units, into, functools.partial(compile_unit, linker=linker), CompileError)
        except NoLinker as error:
            raise BackendError(str(error), hint=INSTALL_HINT) from error
        except NoRuntime as error:
            raise BackendError(str(error), hint=REINSTALL_HINT) from error
        except ModuleNotFoundError as error:
            raise BackendError(f"CuTe DSL cannot be imported: {error}", hint=REINSTALL_HINT) from error
        except LinkError as error:
            raise BackendError(str(error)) from error

    def load(self, artifact: Path, unit: Unit, device: Device) -> CuteDslKernel:
        """Load ``kernel.so`` after its runtime library, and look up the function; CuTe DSL is not imported.

        Raises:
            Unsupported: it was compiled for another architecture than this device's.
            BackendError: CuTe DSL's runtime library is not installed.
        """
        if not runs_on(unit.target, device.target):
            raise Unsupported(f"compiled for {unit.target}, and {device.name} is {device.target}")
        import tvm_ffi

        build = cast(Build, unit.build)
        try:
            # Once the library is loaded, kernel.so finds it by name, wherever it is installed here.
            ctypes.CDLL(str(find_runtime_library()))
        except NoRuntime as error:
            raise BackendError(str(error), hint=REINSTALL_HINT) from error
        module = tvm_ffi.load_module(str((artifact / LIBRARY_FILE).resolve()))
        return CuteDslKernel(module.get_function(build.symbol), build.args)
