"""The backend for PyTorch functions: its ``Build``, compiling, and loading.

Most configs leave no code: torch compiles a function when it is called, on the device that it is called on. Only
Inductor's code for the CPU can be compiled ahead and persisted. For all others the artifact says why not (the constants
below), and the lane compiles when it binds the kernel.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from ktuned import backends
from ktuned.backends import (
    COMPILING_VARIABLES,
    Absence,
    Absent,
    Compiled,
    Unit,
    compiler_files,
    cpu,
    cut_message,
    find_version,
    torch_cuda_devices,
)
from ktuned.declaration import functions
from ktuned.model import Device, KernelFileError, Outcome, Unsupported
from ktuned_torch import inductor
from ktuned_torch.bound_function import TorchKernel, bind_arguments, explain_unsupported
from ktuned_torch.build import Build

KERNEL_FILE = "kernel.json"
CODE_FILE = "inductor.bin"

EAGER = "an eager function is only imported; not persistable: re-made on load"
ON_DEVICE = "Inductor compiles for CUDA on the device itself, which lanes own; not persistable: re-made on load"
ON_LANE = "Inductor chooses by timing, which only a lane does undisturbed; not persistable: re-made on load"
NO_LAYOUTS = "the shapes that it is compiled for are not known before it is bound; not persistable: re-made on load"
NO_CODE = "the backend of torch.compile keeps no code; not persistable: re-made on load"


class Torch(backends.Backend):
    """PyTorch functions, eager or through ``torch.compile``, on the CPU and on CUDA."""

    name = "torch"
    api_version = 1
    build = Build
    compiling_variables = (*COMPILING_VARIABLES, "PYTORCH_*", "TORCHINDUCTOR_*", "TORCH_*", "TRITON_*")
    required_files = (KERNEL_FILE,)
    needs_kernel_file = True
    reads_strides = True

    def fingerprint(self) -> Mapping[str, str]:
        """Return the versions of torch, Triton, this plugin and the C++ compiler that Inductor calls."""
        return {
            "torch": find_version("torch") or "none",
            "triton": find_version("triton") or "none",
            "compiler": _read_compiler_version(),
            "ktuned-torch": find_version("ktuned-torch") or "none",
        }

    def toolchain_files(self) -> Iterable[Path]:
        """Return the files of the C++ compiler that Inductor calls."""
        return compiler_files(_find_compiler_command())

    def devices(self) -> Sequence[Device] | Absent:
        """Return the GPUs that this torch is built for, followed by this machine's CPU."""
        if find_spec("torch") is None:
            return Absent(Absence.NO_LIBRARY, "torch is not installed", "pip install torch")
        gpus = torch_cuda_devices()
        return (*(() if isinstance(gpus, Absent) else gpus), cpu.device())

    def compile(self, units: Sequence[Unit], into: Path) -> Iterator[Compiled]:
        """Find each unit's function and, for the CPU, compile it with one call on zeros."""
        for unit in units:
            started = time.perf_counter()
            try:
                facts = _compile_unit(unit, into / unit.key)
            except Exception as error:
                seconds = time.perf_counter() - started
                if reason := str(error) if isinstance(error, Unsupported) else explain_unsupported(error):
                    yield Compiled(unit.key, Outcome.UNSUPPORTED, reason, seconds)
                else:
                    yield Compiled(unit.key, Outcome.COMPILE_ERROR, _render_error(error), seconds)
            else:
                yield Compiled(unit.key, seconds=time.perf_counter() - started, facts=facts)

    def load(self, artifact: Path, unit: Unit, device: Device) -> TorchKernel:
        """Import the unit's function, and give torch its persisted code, if there is any.

        Without persisted code the function is compiled again when the kernel is bound.

        Raises:
            Unsupported: it was compiled for another target than this device's.
        """
        if device.target != unit.target:
            raise Unsupported(f"compiled for {unit.target}, and {device.name} is {device.target}")
        build = cast(Build, unit.build)
        function = functions.find_function(str(build.function), unit.kernel_file)
        if build.compile is not None:
            function = inductor.compile_function(function, build.compile)
            if (code := artifact / CODE_FILE).is_file():
                inductor.provide_code(code.read_bytes())
        # On CUDA an eager function may launch Triton kernels, which are compiled at their first launch.
        is_made_on_call = build.compile is not None or device.kind == "cuda"
        return TorchKernel(function, build, is_made_on_call=is_made_on_call)


def _compile_unit(unit: Unit, artifact: Path) -> dict[str, Any]:
    """Compile a unit into the directory ``artifact`` and return its facts.

    Raises:
        Unsupported: the unit is for another CPU.
        Exception: any error of finding or compiling the function.
    """
    build = cast(Build, unit.build)
    is_for_cpu = unit.target.startswith(cpu.TARGET_PREFIX)
    if is_for_cpu and unit.target != cpu.target():
        raise Unsupported(f"the target is {unit.target}; this is {cpu.target()}")
    code, reason = b"", EAGER
    if build.compile is None and (source := _find_source(unit)) is not None:
        _check_syntax(source)
    else:
        function = functions.find_function(str(build.function), unit.kernel_file)
    if build.compile is not None:
        function = inductor.compile_function(function, build.compile)
        if not is_for_cpu:
            reason = ON_DEVICE
        elif inductor.chooses_by_timing(build.compile):
            reason = ON_LANE
        else:
            code = _compile_for_cpu(function, build)
            reason = NO_CODE if build.layouts else NO_LAYOUTS
    facts = {"persisted": True} if code else {"persisted": False, "reason": reason}
    # With the unit's key, which stands for the function's code: equal artifacts count as equal kernels.
    description = {"key": unit.key, "kernel": unit.kernel, **build.to_plain(), **facts}
    (artifact / KERNEL_FILE).write_text(json.dumps(description, indent=1, sort_keys=True) + "\n")
    if code:
        (artifact / CODE_FILE).write_bytes(code)
    return facts


def _find_source(unit: Unit) -> Path | None:
    """Return the declared source that is the module of a unit's function; None if no source is."""
    module, _, _ = str(cast(Build, unit.build).function).rpartition(":")
    return next((source for source in unit.sources if source.stem == module), None)


def _check_syntax(source: Path) -> None:
    """Check a module that nothing need be made of. It is not imported: it may be a candidate, which is not trusted.

    Raises:
        KernelFileError: its syntax is wrong.
    """
    try:
        compile(source.read_bytes(), source.name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        place = f"{source.name}:{getattr(error, 'lineno', None) or 1}"
        raise KernelFileError(f"{place}: {type(error).__name__}: {getattr(error, 'msg', error)}") from error


def _compile_for_cpu(function: Callable[..., Any], build: Build) -> bytes:
    """Compile for this CPU and the Build's layouts, and return the code to persist; empty if a layout is missing."""
    if any(name not in build.layouts for name in build.tensors):
        return b""
    tensors = {name: inductor.make_zeros(layout) for name, layout in build.layouts.items()}
    return inductor.collect_code(bind_arguments(function, build, tensors))


def _render_error(error: Exception) -> str:
    """Return an error's message, capped, with its type if that adds information."""
    message = str(error).strip()
    text = message if isinstance(error, KernelFileError | LookupError) else f"{type(error).__name__}: {message}"
    return cut_message(text)


def _find_compiler_command() -> list[str]:
    return shlex.split(os.environ.get("CXX", "")) or ["g++"]


def _read_compiler_version() -> str:
    """Return the version line of the C++ compiler that Inductor calls: ``$CXX``, else g++."""
    command = _find_compiler_command()
    try:
        output = subprocess.run(
            [*command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return output.partition("\n")[0]
