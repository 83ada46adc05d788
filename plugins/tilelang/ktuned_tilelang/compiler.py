"""From a unit to its artifact: TileLang's own compiler, aimed at any architecture, with no GPU."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from ktuned.backends import Unit, compute_target, cubin, launch_limits, occupancy_fact
from ktuned.model import BackendError, KernelFileError, Unsupported
from ktuned.spec import iterate_causes, locate_user_line
from ktuned_tilelang.artifact import RECIPE_FILE, SIGNATURE_FILE, check_version
from ktuned_tilelang.build import Build
from ktuned_tilelang.elaboration import Misfit, elaborate
from ktuned_tilelang.execution import CODE_FILES, PARAMETERS_FILE
from ktuned_tilelang.lowering import CALLEE_ALLOCATES, Lowered, generate
from ktuned_tilelang.recipe import Recipe

MAX_MESSAGE_CHARS = 4000
"""Limit of a kept message; its first line names the error."""

_TARGET = re.compile(r"sm_(\d+)(\d)[af]?")
_COMPILER_ERROR = re.compile(r"^.*(?:\berror\b|fatal).*$", re.MULTILINE)
_BEHIND_THE_SOURCE = "Compilation error:\n"
"""TileLang shows the whole generated source before this, and what the compiler said after it."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NOT_THEIRS = frozenset({"tilelang", "tvm", "tvm_ffi", "inspect", "contextlib"})
_DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Refused(Exception):
    """The function cannot be compiled; the message is TileLang's own, or says what does not fit."""


def prepare() -> None:
    """Do what each process must do once before it compiles: seconds, which are no unit's.

    Raises:
        ImportError: TileLang is not installed, is broken, or is another one than this plugin knows.
    """
    tilelang: Any = importlib.import_module("tilelang")
    check_version(tilelang.__version__)
    importlib.import_module("tilelang.jit.adapter")


def compile_unit(unit: Unit, artifact: Path) -> dict[str, Any]:
    """Fill ``artifact`` and return its facts.

    Raises:
        Refused: the function cannot be found or compiled.
        Unsupported: the target cannot run it.
        BackendError: the failure is not the config's.
    """
    match = _TARGET.fullmatch(unit.target)
    if match is None or compute_target(int(match[1]), int(match[2])) != unit.target:
        raise Unsupported(f"TileLang compiles for NVIDIA GPUs (sm_90a), not for {unit.target}")
    if unit.sources:
        raise Refused("a tilelang kernel has no sources: what the kernel file imports is followed without them")
    try:
        with tempfile.TemporaryDirectory(prefix="ktuned-tilelang-") as scratch:
            return _compile(unit, artifact, Path(scratch))
    except OSError as error:
        if error.errno in _DISK_IS_FULL:
            raise BackendError(f"no room to compile in: {error}", hint="free some space") from error
        raise


def _compile(unit: Unit, artifact: Path, scratch: Path) -> dict[str, Any]:
    said = scratch / "said"
    try:
        with _kept_apart(scratch), _captured(said):
            program = elaborate(cast(Build, unit.build), unit.kernel_file, unit.target)
            _check_args(cast(Build, unit.build), _parameter_names(program.prim_func))
            lowered = Lowered(program)
            _check_execution_backend(lowered.execution_backend)
            launches = lowered.launches()
            _check_launches(unit.target, launches)
            generate(lowered, artifact, scratch)
    except (Misfit, KernelFileError) as error:
        raise Refused(str(error)) from error
    except (MemoryError, Unsupported):
        raise
    except Exception as error:
        for cause in iterate_causes(error):
            if isinstance(cause, Unsupported):
                raise cause from error
        raise Refused(_words(error, said.read_text(errors="replace"))) from error
    kernels = _kernels(artifact, lowered.execution_backend)
    _check_kernels(unit.target, kernels, launches)
    _describe(lowered, unit.target, artifact)
    return {
        "function": lowered.name,
        "target": unit.target,
        "execution_backend": lowered.execution_backend,
        **_resources(kernels),
        "kernels": [asdict(kernel) for kernel in kernels],
        "threads": max((threads for threads, _ in launches), default=0),
        "dynamic_shared_bytes": max((shared for _, shared in launches), default=0),
        **_occupancy(unit.target, kernels, launches),
    }


def _check_args(build: Build, parameters: tuple[str, ...]) -> None:
    args = parameters if build.args is None else build.args
    if len(args) != len(parameters):
        raise Misfit(f"args has {len(args)} of {len(parameters)} values; the kernel takes {', '.join(parameters)}")
    missing = [name for name in args if isinstance(name, str) and name not in build.layouts]
    if build.layouts and missing:
        raise Misfit(f"args names the tensor {missing[0]!r}; inputs makes {', '.join(sorted(build.layouts))}")


def _check_execution_backend(name: str) -> None:
    if name not in CODE_FILES:
        raise Misfit(f"TileLang chose the execution backend {name!r}, of which it is not known what it needs to load")


def _check_launches(target: str, launches: list[tuple[int, int]]) -> None:
    for threads, shared_bytes in launches:
        if why := launch_limits.why_too_large(target, threads, 0, shared_bytes):
            raise Unsupported(why)


def _check_kernels(target: str, kernels: list[cubin.Kernel], launches: list[tuple[int, int]]) -> None:
    # Which of several kernels a launch is of is not known here.
    if len(launches) != 1 or len(kernels) != 1:
        return
    ((threads, shared_bytes),) = launches
    (kernel,) = kernels
    total = kernel.shared_bytes + shared_bytes
    if why := launch_limits.why_too_large(target, threads, kernel.registers, total):
        raise Unsupported(why)


def _kernels(artifact: Path, execution_backend: str) -> list[cubin.Kernel]:
    """Return the kernels of an artifact's machine code; none where it is packed."""
    found = []
    for name in CODE_FILES[execution_backend]:
        if name.endswith((".so", ".cubin")):
            for binary in cubin.cubins((artifact / name).read_bytes()):
                found += cubin.kernels(binary)
    return found


def _occupancy(target: str, kernels: list[cubin.Kernel], launches: list[tuple[int, int]]) -> dict[str, float]:
    # Which of several kernels a launch is of is not known here.
    if len(launches) != 1 or len(kernels) != 1:
        return {}
    ((threads, shared_bytes),) = launches
    (kernel,) = kernels
    return occupancy_fact(target, threads, kernel.registers, kernel.shared_bytes + shared_bytes)


def _resources(kernels: list[cubin.Kernel]) -> dict[str, int]:
    if not kernels:
        return {}
    return {
        "registers": max(kernel.registers for kernel in kernels),
        "stack_bytes": max(kernel.stack_bytes for kernel in kernels),
        "static_shared_bytes": max(kernel.shared_bytes for kernel in kernels),
    }


def _describe(lowered: Lowered, target: str, artifact: Path) -> None:
    """Write what loading the code takes besides it."""
    tilelang: Any = importlib.import_module("tilelang")
    parameters: Any = importlib.import_module("tilelang.engine.param")
    program = lowered.program
    recipe = Recipe(
        tilelang=tilelang.__version__,
        function=lowered.name,
        target=target,
        target_config=json.loads(json.dumps(dict(program.target), default=str)),
        execution_backend=lowered.execution_backend,
        parameters=_parameter_names(program.prim_func),
        out_idx=program.out_idx,
        pass_configs=json.loads(json.dumps(dict(program.pass_configs), default=str)),
        compile_flags=program.compile_flags,
        code={
            name: hashlib.sha256((artifact / name).read_bytes()).hexdigest()
            for name in CODE_FILES[lowered.execution_backend]
        },
    )
    (artifact / RECIPE_FILE).write_text(recipe.to_json())
    (artifact / PARAMETERS_FILE).write_text(parameters.dump_kernel_params(lowered.artifact.params))
    (artifact / SIGNATURE_FILE).write_text(_signature(tilelang.tvm, program.prim_func))


def _parameter_names(prim_func: Any) -> tuple[str, ...]:
    """Return the names of a compiled function's parameters: a tensor's is that of its buffer."""
    buffers = dict(prim_func.buffer_map)
    return tuple(str(buffers.get(parameter, parameter).name) for parameter in prim_func.params)


def _signature(tvm: Any, prim_func: Any) -> str:
    """Return a program's parameters and buffers without its body, which loading does not need."""
    stub = tvm.tirx.PrimFunc(
        prim_func.params, tvm.tirx.Evaluate(tvm.tirx.const(0, "int32")), prim_func.ret_type, prim_func.buffer_map
    )
    stub = stub.with_attr({"global_symbol": prim_func.attrs["global_symbol"], CALLEE_ALLOCATES: 0})
    return str(tvm.ir.save_json(stub))


@contextlib.contextmanager
def _kept_apart(scratch: Path) -> Iterator[None]:
    """Have TileLang and its compilers keep their files below ``scratch``, and announce nothing.

    Caches of their own: hundreds of configs that lose would fill the user's.
    """
    changed = {
        "TILELANG_CACHE_DIR": str(scratch),
        "TILELANG_DISABLE_CACHE": "1",
        "TILELANG_PRINT_ON_COMPILATION": "0",
    }
    before = {name: os.environ.get(name) for name in changed}
    directory = tempfile.tempdir
    os.environ.update(changed)
    tempfile.tempdir = str(scratch)
    try:
        yield
    finally:
        tempfile.tempdir = directory
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _captured(file: Path) -> Iterator[None]:
    """Have what this process and those that it starts print written to a file: compilers print their errors."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(descriptor) for descriptor in (1, 2)]
    try:
        with file.open("wb") as target:
            for descriptor in (1, 2):
                os.dup2(target.fileno(), descriptor)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), kept, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


def _words(error: Exception, printed: str) -> str:
    """Return what went wrong, its first line the error itself, capped."""
    said = _COLOURS.sub("", str(error)).strip()
    compiler = said.partition(_BEHIND_THE_SOURCE)[2] or (printed if "Compilation Failed" in said else "")
    if compiler and (match := _COMPILER_ERROR.search(_COLOURS.sub("", compiler))):
        said = f"{match[0].strip()}\n{compiler.strip()}"
    else:
        said = f"{locate_user_line(error, _NOT_THEIRS)}{type(error).__name__}: {said}"
    return said if len(said) <= MAX_MESSAGE_CHARS else said[: MAX_MESSAGE_CHARS - 1] + "…"
