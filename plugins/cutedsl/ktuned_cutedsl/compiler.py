"""Compiler of one unit into its artifact: traces, compiles, exports and links a function, without a GPU."""

from __future__ import annotations

import errno
import math
import re
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from ktuned.backends import Unit, cubin, occupancy_fact
from ktuned.model import BackendError, KernelFileError, Unsupported
from ktuned.spec import functions, iterate_causes, locate_user_line
from ktuned_cutedsl import limits, resources
from ktuned_cutedsl.build import Build
from ktuned_cutedsl.linker import Linker
from ktuned_cutedsl.signature import Misfit, compile_arguments

LIBRARY_FILE = "kernel.so"
CUBIN_FILE = "kernel.cubin"
_OBJECT_FILE = "kernel.o"

MAX_MESSAGE_CHARS = 4000
"""Length of CuTe DSL's message that is kept: its first lines name the fault and its place."""

_TARGET = re.compile(r"sm_\d+[af]?")
_NOT_THEIRS = frozenset({"cutlass", "inspect"})
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Refused(Exception):
    """The function cannot be compiled; the message is CuTe DSL's, or names the mismatch."""


def compile_unit(unit: Unit, artifact: Path, linker: Linker) -> dict[str, Any]:
    """Fill ``artifact`` and return its facts.

    Raises:
        Refused: the function cannot be found or compiled.
        Unsupported: the target cannot run it.
        BackendError: the failure is not the config's.
    """
    if not _TARGET.fullmatch(unit.target):
        raise Unsupported(f"CuTe DSL compiles for NVIDIA GPUs (sm_90a), not for {unit.target}")
    if unit.sources:
        raise Refused("a cutedsl kernel has no sources: imports of the kernel file are followed without them")
    build = cast(Build, unit.build)
    try:
        function = functions.find_function(str(build.function), unit.kernel_file)
    except (KernelFileError, LookupError) as error:
        raise Refused(str(error)) from error
    try:
        with tempfile.TemporaryDirectory(prefix="ktuned-cute-") as scratch:
            return _compile(function, build, unit.target, artifact, linker, Path(scratch))
    except OSError as error:
        if error.errno in _DISK_IS_FULL:
            raise BackendError(f"no room to compile in: {error}", hint="free some space") from error
        raise


def _compile(
    function: Callable[..., Any], build: Build, target: str, artifact: Path, linker: Linker, scratch: Path
) -> dict[str, Any]:
    compiled = _trace_and_compile(function, build, target)
    compiled.export_to_c(str(scratch / _OBJECT_FILE), function_name=build.symbol)
    data = (scratch / _OBJECT_FILE).read_bytes()
    binaries = list(cubin.cubins(data))
    found = [kernel for binary in binaries for kernel in cubin.kernels(binary)]
    launched = resources.launches(compiled.ir_module)
    if why := limits.why_not(target, found, launched):
        raise Unsupported(why)
    linker.link(scratch, _OBJECT_FILE, LIBRARY_FILE)
    shutil.move(scratch / LIBRARY_FILE, artifact / LIBRARY_FILE)
    for index, binary in enumerate(binaries):
        (artifact / (f"{index}.{CUBIN_FILE}" if index else CUBIN_FILE)).write_bytes(binary)
    return {
        "function": build.symbol,
        "target": target,
        "kernels": [asdict(kernel) for kernel in found],
        "launches": [asdict(launch) for launch in launched],
        **_resources(target, found, launched),
    }


def _resources(target: str, kernels: list[cubin.Kernel], launches: list[resources.Launch]) -> dict[str, float]:
    """Return the resources of a sole kernel as the config's own, and its occupancy where its launch is known."""
    if len(kernels) != 1:
        return {}
    (kernel,) = kernels
    found: dict[str, float] = {
        "registers": kernel.registers,
        "stack_bytes": kernel.stack_bytes,
        "static_shared_bytes": kernel.shared_bytes,
    }
    if len(launches) != 1 or None in launches[0].block:
        return found
    (launch,) = launches
    threads = math.prod(size or 1 for size in launch.block)
    shared_bytes = kernel.shared_bytes + (launch.shared_bytes or 0)
    return found | occupancy_fact(target, threads, kernel.registers, shared_bytes)


def _trace_and_compile(function: Callable[..., Any], build: Build, target: str) -> Any:
    """Return the result of ``cute.compile``.

    Raises:
        Refused: the Build does not match the function; CuTe DSL, or the function during tracing, raised.
        Unsupported: the function raised it during tracing.
    """
    from cutlass import cute

    # Ours come last, to override the user's options.
    options = f"{build.options} --enable-tvm-ffi --gpu-arch {target}"
    try:
        called, arguments = compile_arguments(function, build)
        return cute.compile(called, **arguments, options=options)
    except Misfit as error:
        raise Refused(str(error)) from error
    except MemoryError:
        raise
    except Exception as error:
        for cause in iterate_causes(error):
            if isinstance(cause, Unsupported):
                raise cause from error
        raise Refused(_words(error)) from error


def _words(error: Exception) -> str:
    """Return the failure, its first line naming the fault, without colours and capped."""
    said = _COLOURS.sub("", str(error)).strip()
    if not type(error).__module__.startswith("cutlass."):
        # An error of user code during tracing; CuTe DSL's own errors contain their place.
        said = f"{locate_user_line(error, _NOT_THEIRS)}{type(error).__name__}: {said}"
    return said if len(said) <= MAX_MESSAGE_CHARS else said[: MAX_MESSAGE_CHARS - 1] + "…"
