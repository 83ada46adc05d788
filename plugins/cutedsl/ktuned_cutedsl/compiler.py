"""From a unit to its artifact: traces, compiles, exports and links a CuTe DSL function, without a GPU.

A failure that is the config's fault is a :class:`CompileError` or ``Unsupported``; a full disk is a ``BackendError``.
"""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from ktuned.backends import Unit, cubin, cut_message, lend_scratch_directory, occupancy_fact
from ktuned.declaration import functions, iterate_causes, locate_user_line
from ktuned.model import KernelFileError, Unsupported
from ktuned_cutedsl import limits, resources
from ktuned_cutedsl.build import Build
from ktuned_cutedsl.linker import Linker
from ktuned_cutedsl.signature import ArgumentMismatch, make_compile_arguments

LIBRARY_FILE = "kernel.so"
CUBIN_FILE = "kernel.cubin"
_OBJECT_FILE = "kernel.o"

_TARGET = re.compile(r"sm_\d+[af]?")
_NOT_THEIRS = frozenset({"cutlass", "inspect"})
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class CompileError(Exception):
    """The function cannot be compiled; the message is CuTe DSL's, or names the mismatch."""


def compile_unit(unit: Unit, artifact: Path, linker: Linker) -> dict[str, Any]:
    """Compile a unit into the directory ``artifact`` and return its facts.

    Raises:
        CompileError: the function cannot be found or compiled.
        Unsupported: the target cannot run it.
        BackendError: the failure is not the config's fault.
    """
    if not _TARGET.fullmatch(unit.target):
        raise Unsupported(f"CuTe DSL compiles for NVIDIA GPUs (sm_90a), not for {unit.target}")
    if unit.sources:
        raise CompileError("a cutedsl kernel has no sources: imports of the kernel file are followed without them")
    build = cast(Build, unit.build)
    try:
        function = functions.find_function(str(build.function), unit.kernel_file)
    except (KernelFileError, LookupError) as error:
        raise CompileError(str(error)) from error
    with lend_scratch_directory("cute") as scratch:
        return _compile_function(function, build, unit.target, artifact, linker, scratch)


def _compile_function(
    function: Callable[..., Any], build: Build, target: str, artifact: Path, linker: Linker, scratch: Path
) -> dict[str, Any]:
    compiled = _trace_and_compile(function, build, target)
    compiled.export_to_c(str(scratch / _OBJECT_FILE), function_name=build.symbol)
    data = (scratch / _OBJECT_FILE).read_bytes()
    binaries = list(cubin.cubins(data))
    kernels = [kernel for binary in binaries for kernel in cubin.kernels(binary)]
    launched = resources.read_launches(compiled.ir_module)
    if reason := limits.explain_unlaunchable(target, kernels, launched):
        raise Unsupported(reason)
    linker.link_library(scratch, _OBJECT_FILE, LIBRARY_FILE)
    shutil.move(scratch / LIBRARY_FILE, artifact / LIBRARY_FILE)
    for index, binary in enumerate(binaries):
        (artifact / (f"{index}.{CUBIN_FILE}" if index else CUBIN_FILE)).write_bytes(binary)
    return {
        "function": build.symbol,
        "target": target,
        "kernels": [asdict(kernel) for kernel in kernels],
        "launches": [asdict(launch) for launch in launched],
        **_summarise_resources(target, kernels, launched),
    }


def _summarise_resources(
    target: str, kernels: list[cubin.Kernel], launches: list[resources.Launch]
) -> dict[str, float]:
    """Return a sole kernel's resources, and its occupancy if its launch is known; nothing for several kernels."""
    if len(kernels) != 1:
        return {}
    (kernel,) = kernels
    facts: dict[str, float] = {
        "registers": kernel.registers,
        "stack_bytes": kernel.stack_bytes,
        "static_shared_bytes": kernel.shared_bytes,
    }
    if len(launches) != 1 or None in launches[0].block:
        return facts
    (launch,) = launches
    threads = math.prod(size or 1 for size in launch.block)
    shared_bytes = kernel.shared_bytes + (launch.shared_bytes or 0)
    return facts | occupancy_fact(target, threads, kernel.registers, shared_bytes)


def _trace_and_compile(function: Callable[..., Any], build: Build, target: str) -> Any:
    """Return the result of ``cute.compile``.

    Raises:
        CompileError: the Build does not match the function; CuTe DSL, or the function during tracing, raised.
        Unsupported: the function raised it during tracing.
    """
    from cutlass import cute

    # Our options come last, to override the user's.
    options = f"{build.options} --enable-tvm-ffi --gpu-arch {target}"
    try:
        called, arguments = make_compile_arguments(function, build)
        return cute.compile(called, **arguments, options=options)
    except ArgumentMismatch as error:
        raise CompileError(str(error)) from error
    except MemoryError:
        raise
    except Exception as error:
        for cause in iterate_causes(error):
            if isinstance(cause, Unsupported):
                raise cause from error
        raise CompileError(_render_error(error)) from error


def _render_error(error: Exception) -> str:
    """Return an error's message without colours, capped, with the error itself in its first line."""
    message = _COLOURS.sub("", str(error)).strip()
    if not type(error).__module__.startswith("cutlass."):
        # An error of user code during tracing; CuTe DSL's own errors contain their place.
        message = f"{locate_user_line(error, _NOT_THEIRS)}{type(error).__name__}: {message}"
    return cut_message(message)
