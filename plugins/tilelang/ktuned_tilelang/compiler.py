"""From a unit to its artifact: TileLang's own compiler, for any architecture and without a GPU.

A failure that is the config's fault is a :class:`CompileError` or ``Unsupported``; a full disk is a ``BackendError``.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from ktuned.backends import (
    Unit,
    compute_target,
    cubin,
    cut_message,
    launch_limits,
    lend_scratch_directory,
    occupancy_fact,
    redirect_compiler,
)
from ktuned.declaration import iterate_causes, locate_user_line
from ktuned.model import KernelFileError, Unsupported
from ktuned_tilelang.artifact import RECIPE_FILE, SIGNATURE_FILE, check_version
from ktuned_tilelang.build import Build
from ktuned_tilelang.elaboration import ElaborationError, elaborate_build
from ktuned_tilelang.execution import CODE_FILES, PARAMETERS_FILE
from ktuned_tilelang.lowering import CALLEE_ALLOCATES, Block, LoweredProgram, generate_code
from ktuned_tilelang.recipe import Recipe

_TARGET = re.compile(r"sm_(\d+)(\d)[af]?")
_COMPILER_ERROR = re.compile(r"^.*(?:\berror\b|fatal).*$", re.MULTILINE)
_SOURCE_END = "Compilation error:\n"
"""Separates, in a message of TileLang's, the whole generated source from the compiler's output."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LIBRARIES = frozenset({"tilelang", "tvm", "tvm_ffi", "inspect", "contextlib"})


class CompileError(Exception):
    """The function cannot be compiled; the message is TileLang's own, or says what is wrong with the Build."""


def prepare_process() -> None:
    """Import TileLang before a process's first compile, so that these seconds are not counted for a unit.

    Raises:
        ImportError: TileLang is not installed or broken, or this plugin does not know its version.
    """
    tilelang: Any = importlib.import_module("tilelang")
    check_version(tilelang.__version__)
    importlib.import_module("tilelang.jit.adapter")


def compile_unit(unit: Unit, artifact: Path) -> dict[str, Any]:
    """Compile a unit into the directory ``artifact`` and return its facts.

    Raises:
        CompileError: the function cannot be found or compiled.
        Unsupported: the target cannot run it.
        BackendError: the failure is not the config's fault.
    """
    match = _TARGET.fullmatch(unit.target)
    if match is None or compute_target(int(match[1]), int(match[2])) != unit.target:
        raise Unsupported(f"TileLang compiles for NVIDIA GPUs (sm_90a), not for {unit.target}")
    if unit.sources:
        raise CompileError("a tilelang kernel has no sources: what the kernel file imports is followed without them")
    with lend_scratch_directory("tilelang") as scratch:
        return _compile_program(unit, artifact, scratch)


def _compile_program(unit: Unit, artifact: Path, scratch: Path) -> dict[str, Any]:
    output_file = scratch / "output"
    try:
        with redirect_compiler(_make_variables(scratch), scratch), _capture_output(output_file):
            program = elaborate_build(cast(Build, unit.build), unit.kernel_file, unit.target)
            _check_args(cast(Build, unit.build), _list_parameter_names(program.prim_func))
            lowered = LoweredProgram(program)
            _check_execution_backend(lowered.execution_backend)
            blocks = lowered.list_blocks()
            for block in blocks:
                _check_limits(unit.target, block, registers=0)
            generate_code(lowered, artifact, scratch)
    except (ElaborationError, KernelFileError) as error:
        raise CompileError(str(error)) from error
    except (MemoryError, Unsupported):
        raise
    except Exception as error:
        for cause in iterate_causes(error):
            if isinstance(cause, Unsupported):
                raise cause from error
        raise CompileError(_render_error(error, output_file.read_text(errors="replace"))) from error
    kernels = _read_kernels(artifact, lowered.execution_backend)
    occupancy: dict[str, float] = {}
    # Of several kernels it is not known which block belongs to which.
    if len(blocks) == 1 and len(kernels) == 1:
        (kernel,), (block,) = kernels, blocks
        block = Block(block.threads, kernel.shared_bytes + block.shared_bytes)
        _check_limits(unit.target, block, kernel.registers)
        occupancy = occupancy_fact(unit.target, block.threads, kernel.registers, block.shared_bytes)
    _write_description(lowered, unit.target, artifact)
    return {
        "function": lowered.name,
        "target": unit.target,
        "execution_backend": lowered.execution_backend,
        **_summarise_resources(kernels),
        "kernels": [asdict(kernel) for kernel in kernels],
        "threads": max((block.threads for block in blocks), default=0),
        "dynamic_shared_bytes": max((block.shared_bytes for block in blocks), default=0),
        **occupancy,
    }


def _check_args(build: Build, parameters: tuple[str, ...]) -> None:
    args = parameters if build.args is None else build.args
    if len(args) != len(parameters):
        raise ElaborationError(
            f"args has {len(args)} of {len(parameters)} values; the kernel takes {', '.join(parameters)}"
        )
    missing = [name for name in args if isinstance(name, str) and name not in build.layouts]
    if build.layouts and missing:
        raise ElaborationError(f"args names the tensor {missing[0]!r}; inputs makes {', '.join(sorted(build.layouts))}")


def _check_execution_backend(name: str) -> None:
    if name not in CODE_FILES:
        raise ElaborationError(f"TileLang chose the execution backend {name!r}, which ktuned-tilelang does not know")


def _check_limits(target: str, block: Block, registers: int) -> None:
    """Check that a device of the target can launch a block; ``registers`` of a thread, 0 if not known.

    Raises:
        Unsupported: it cannot.
    """
    if reason := launch_limits.why_too_large(target, block.threads, registers, block.shared_bytes):
        raise Unsupported(reason)


def _read_kernels(artifact: Path, execution_backend: str) -> list[cubin.Kernel]:
    """Return the kernels in an artifact's machine code; none if the code is packed."""
    kernels = []
    for name in CODE_FILES[execution_backend]:
        if name.endswith((".so", ".cubin")):
            for binary in cubin.cubins((artifact / name).read_bytes()):
                kernels += cubin.kernels(binary)
    return kernels


def _summarise_resources(kernels: list[cubin.Kernel]) -> dict[str, int]:
    if not kernels:
        return {}
    return {
        "registers": max(kernel.registers for kernel in kernels),
        "stack_bytes": max(kernel.stack_bytes for kernel in kernels),
        "static_shared_bytes": max(kernel.shared_bytes for kernel in kernels),
    }


def _write_description(lowered: LoweredProgram, target: str, artifact: Path) -> None:
    """Write the files that loading needs in addition to the code."""
    tilelang: Any = importlib.import_module("tilelang")
    parameters: Any = importlib.import_module("tilelang.engine.param")
    program = lowered.program
    recipe = Recipe(
        tilelang=tilelang.__version__,
        function=lowered.name,
        target=target,
        target_config=json.loads(json.dumps(dict(program.target), default=str)),
        execution_backend=lowered.execution_backend,
        parameters=_list_parameter_names(program.prim_func),
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
    (artifact / SIGNATURE_FILE).write_text(_make_signature(tilelang.tvm, program.prim_func))


def _list_parameter_names(prim_func: Any) -> tuple[str, ...]:
    """Return the names of a program's parameters; a tensor goes by the name of its buffer."""
    buffers = dict(prim_func.buffer_map)
    return tuple(str(buffers.get(parameter, parameter).name) for parameter in prim_func.params)


def _make_signature(tvm: Any, prim_func: Any) -> str:
    """Return a program's parameters and buffers without its body, which loading does not need."""
    stub = tvm.tirx.PrimFunc(
        prim_func.params, tvm.tirx.Evaluate(tvm.tirx.const(0, "int32")), prim_func.ret_type, prim_func.buffer_map
    )
    stub = stub.with_attr({"global_symbol": prim_func.attrs["global_symbol"], CALLEE_ALLOCATES: 0})
    return str(tvm.ir.save_json(stub))


def _make_variables(scratch: Path) -> dict[str, str]:
    """Return the variables that make TileLang keep its files below ``scratch`` and print no announcements.

    In the user's own cache hundreds of losing configs would pile up.
    """
    return {
        "TILELANG_CACHE_DIR": str(scratch),
        "TILELANG_DISABLE_CACHE": "1",
        "TILELANG_PRINT_ON_COMPILATION": "0",
    }


@contextlib.contextmanager
def _capture_output(file: Path) -> Iterator[None]:
    """Write everything that this process and its children print to a file, because compilers print their errors."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptors = [os.dup(descriptor) for descriptor in (1, 2)]
    try:
        with file.open("wb") as target:
            for descriptor in (1, 2):
                os.dup2(target.fileno(), descriptor)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), descriptors, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


def _render_error(error: Exception, printed: str) -> str:
    """Return an error's message, capped, with the error itself in its first line."""
    message = _COLOURS.sub("", str(error)).strip()
    compiler = message.partition(_SOURCE_END)[2] or (printed if "Compilation Failed" in message else "")
    if compiler and (match := _COMPILER_ERROR.search(_COLOURS.sub("", compiler))):
        message = f"{match[0].strip()}\n{compiler.strip()}"
    else:
        message = f"{locate_user_line(error, _LIBRARIES)}{type(error).__name__}: {message}"
    return cut_message(message)
