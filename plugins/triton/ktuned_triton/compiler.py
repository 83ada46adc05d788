"""From a unit to its artifact: Triton's own compiler, aimed at any architecture.

Triton compiles for the device of its active driver. A compile worker has no device, so a stand-in driver
(:class:`_AbsentDriver`) names the target instead. A unit is compiled in one of two ways, which give the same machine
code, key and metadata:

- in one piece, by calling the function's ``warmup``; this process then imports the kernel file, or
- from the text that a front end has made of it (:mod:`ktuned_triton.lowering`); none of the user's code is imported.

A failure that is the config's fault is a :class:`CompileError` or ``Unsupported``; a full disk is a ``BackendError``.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from ktuned.backends import (
    Unit,
    compute_target,
    cut_message,
    lend_scratch_directory,
    occupancy_fact,
    ptxas,
    redirect_compiler,
)
from ktuned.declaration import iterate_causes, locate_user_line
from ktuned.model import BackendError, KernelFileError, Unsupported
from ktuned_triton.artifact import CUBIN_FILE, LAUNCH_FILE, METADATA_FILE, PTX_FILE
from ktuned_triton.build import Build
from ktuned_triton.descriptors import Descriptor, expand_descriptor, is_descriptor_type
from ktuned_triton.launch_plan import LaunchPlan, Parameter
from ktuned_triton.library import find_difference, find_function
from ktuned_triton.limits import explain_unlaunchable
from ktuned_triton.lowering import Lowered, UnreadableText, compile_lowered, is_supported_version, run_front_end
from ktuned_triton.signature import ArgumentMismatch, find_launch_parameters, make_call_arguments

MAX_LOWERED_BYTES = 8 << 20
"""Half of the largest message to a worker; a matrix product's text has 40 KB. A function with a longer text is compiled
in one piece."""

LOWERING_ERROR = "error"
"""What a file of an application has instead of a text, if the front end has rejected the config there."""

MAJOR_VERSION = "3"
"""The major version of Triton that this module supports."""

_ASSEMBLER_ERROR = re.compile(r"^ptxas\S*\s.*(?:fatal|error).*$", re.MULTILINE)
_TARGET = re.compile(r"sm_(\d+)(\d)([af]?)")

_device_numbers = itertools.count()


class CompileError(Exception):
    """The function cannot be compiled; the message is Triton's own, or says what is wrong with the Build."""


def prepare_process(installed: str = "") -> None:
    """Do a process's one-time preparation, so that its one or two seconds are not counted for the first unit.

    Args:
        installed: Triton's version; by default that of the installed distribution.

    Raises:
        ImportError: Triton is not installed, or is broken.
        BackendError: Triton has another major version.
    """
    installed = installed or version("triton")
    if installed.partition(".")[0] != MAJOR_VERSION:
        raise BackendError(
            f"Triton {installed} is installed, and this plugin is for Triton {MAJOR_VERSION}",
            hint="pip install --upgrade ktuned-triton, or 'triton<4'",
        )
    import_module("triton.compiler")
    # Computes the digest of Triton itself, which Triton keeps for the process.
    getattr(import_module("triton.runtime.cache"), "triton_key", lambda: None)()


def compile_unit(unit: Unit, artifact: Path) -> dict[str, Any]:
    """Compile a unit into the directory ``artifact`` and return its facts.

    Raises:
        CompileError: the function cannot be found or compiled.
        Unsupported: the target cannot run it.
        BackendError: the failure is not the config's fault.
    """
    capability = _parse_capability(unit.target)
    if unit.lowered:
        with contextlib.suppress(UnreadableText), lend_scratch_directory("triton") as scratch:
            return _compile_lowered_unit(unit, capability, artifact, scratch)
    function = _find_unit_function(unit)
    with lend_scratch_directory("triton") as scratch:
        return _compile_function(function, unit, capability, artifact, scratch)


def lower_unit(unit: Unit) -> bytes:
    """Run Triton's front end on a unit's function; this process imports the function's module.

    Returns:
        the data that :func:`compile_unit` takes in place of the function; empty if this Triton or this function must
        be compiled in one piece.

    Raises:
        CompileError: the function cannot be found, or the front end rejects it.
        Unsupported: the target cannot run it.
        BackendError: the failure is not the config's fault.
    """
    capability = _parse_capability(unit.target)
    build = cast(Build, unit.build)
    if build.lowered:
        return _read_application_text(unit.kernel_file.parent / build.lowered, capability)
    if not is_supported_version(version("triton")):
        return b""
    function = _find_unit_function(unit)
    with lend_scratch_directory("triton") as scratch, _redirect_triton(capability, scratch):
        with _convert_errors(function):
            arguments = make_call_arguments(function, build, unit.kernel_file)
        try:
            return lower_function(function, arguments, build)
        except UnreadableText:
            return b""


def lower_function(function: Any, arguments: Mapping[str, Any], build: Build) -> bytes:
    """Run Triton's front end on a function, for the active driver's current device.

    Raises:
        UnreadableText: this Triton, or this function, must be compiled in one piece.
        CompileError: the front end rejects the function.
        Unsupported: the target cannot run it.
    """
    with _convert_errors(function):
        result = run_front_end(function, arguments, grid=build.grid, **build.compiler_options)
        lowered = result.make_lowered(find_launch_parameters(result.source.signature, arguments))
    try:
        data = lowered.to_bytes()
    except TypeError as error:
        raise UnreadableText(str(error)) from error
    if len(data) > MAX_LOWERED_BYTES:
        raise UnreadableText(f"its text has {len(data)} bytes, and at most {MAX_LOWERED_BYTES} can be sent")
    return data


def _read_application_text(file: Path, capability: int) -> bytes:
    """Return what an application lowered, or raise the error that it left instead."""
    try:
        data = file.read_bytes()
        found = json.loads(data)
        arch = found["options"].get("arch") if LOWERING_ERROR not in found else ""
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CompileError(f"what the application has made of the function is damaged: {error}") from error
    if LOWERING_ERROR in found:
        raise CompileError(found[LOWERING_ERROR])
    if arch not in (None, f"sm{capability}"):
        raise Unsupported(f"the application has translated it for {arch}, not for sm{capability}")
    return data


def _find_unit_function(unit: Unit) -> Any:
    if unit.sources:
        raise CompileError("a triton kernel has no sources: what the kernel file imports is followed without them")
    build = cast(Build, unit.build)
    name = build.function
    try:
        function: Any = find_function(str(name), build, unit.kernel_file)
    except (KernelFileError, LookupError) as error:
        raise CompileError(str(error)) from error
    if reason := find_difference(function, build):
        raise CompileError(reason)
    if not hasattr(function, "warmup") or not hasattr(function, "params"):
        raise CompileError(f"{name} is not decorated with @triton.jit")
    return function


@contextlib.contextmanager
def _convert_errors(function: Any = None) -> Iterator[None]:
    """Turn what Triton's compiler and the user's function raise into ``CompileError`` or ``Unsupported``."""
    try:
        yield
    except ArgumentMismatch as error:
        raise CompileError(str(error)) from error
    except (MemoryError, UnreadableText):
        raise
    except Exception as error:
        for cause in iterate_causes(error):
            if isinstance(cause, Unsupported):
                raise cause from error
        raise CompileError(_render_error(error, function)) from error


def _compile_function(function: Any, unit: Unit, capability: int, artifact: Path, scratch: Path) -> dict[str, Any]:
    """Compile a function in one piece."""
    build = cast(Build, unit.build)
    report = io.StringIO()
    with _convert_errors(function):
        arguments = make_call_arguments(function, build, unit.kernel_file)
        with _redirect_triton(capability, scratch) as device, contextlib.redirect_stdout(report):
            try:
                kernel = function.warmup(**arguments, grid=build.grid, **build.compiler_options)
            finally:
                function.device_caches.pop(device, None)
        parameters = find_launch_parameters(kernel.src.signature, arguments)
    return _write_artifact(unit, kernel, parameters, report.getvalue(), artifact)


def _compile_lowered_unit(unit: Unit, capability: int, artifact: Path, scratch: Path) -> dict[str, Any]:
    """Compile the text that a front end made in another process."""
    lowered = Lowered.from_bytes(unit.lowered)
    report = io.StringIO()
    with _convert_errors(), _redirect_triton(capability, scratch), contextlib.redirect_stdout(report):
        kernel = compile_lowered(lowered, _make_gpu_target(capability))
    return _write_artifact(unit, kernel, lowered.parameters, report.getvalue(), artifact)


def _write_artifact(
    unit: Unit, kernel: Any, parameters: tuple[Parameter, ...], report: str, artifact: Path
) -> dict[str, Any]:
    """Write the files of an artifact, and return its facts."""
    plan = _make_plan(kernel, parameters, cast(Build, unit.build), unit.target)
    used = ptxas.parse(report).get(plan.symbol, ptxas.Resources())
    if reason := explain_unlaunchable(plan, used):
        raise Unsupported(reason)
    (artifact / CUBIN_FILE).write_bytes(kernel.asm["cubin"])
    (artifact / PTX_FILE).write_text(kernel.asm["ptx"])
    (artifact / LAUNCH_FILE).write_text(plan.to_json())
    (artifact / METADATA_FILE).write_text(_render_metadata(kernel))
    return {
        "function": plan.symbol,
        "target": plan.target,
        **used.to_facts(),
        "dynamic_shared_bytes": plan.shared_bytes,
        "threads": plan.threads,
        **occupancy_fact(plan.target, plan.threads, used.registers, plan.shared_bytes + used.static_shared_bytes),
        "triton_key": kernel.hash,
    }


def _parse_capability(target: str) -> int:
    """Return Triton's number for a target: 90 for ``sm_90a``.

    Raises:
        Unsupported: Triton makes no code for it.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise Unsupported(f"Triton compiles for NVIDIA GPUs (sm_90a), not for {target}")
    own_target = compute_target(int(match[1]), int(match[2]))
    if own_target != target:
        raise Unsupported(f"Triton compiles for {own_target}, not for {target}")
    return int(match[1] + match[2])


def _make_gpu_target(capability: int) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", capability, 32)


class _AbsentDriver:
    """A driver without a device: it answers the questions that Triton's compiler asks."""

    def __init__(self, capability: int) -> None:
        self._target = _make_gpu_target(capability)
        # Triton caches a function's kernels in memory by this number; a new number each time avoids cache hits.
        self.number = next(_device_numbers)

    def get_current_target(self) -> Any:
        """Return the architecture to compile for."""
        return self._target

    def get_current_device(self) -> int:
        """Return the device's number."""
        return self.number

    def get_current_stream(self, device: int) -> int:
        """Return the default stream."""
        return 0


@contextlib.contextmanager
def _redirect_triton(capability: int, scratch: Path) -> Iterator[int]:
    """Make Triton compile for an architecture, keep its files below ``scratch``, and print its assembler's report.

    Triton's cache is below ``scratch``, too, because in the user's own cache hundreds of losing configs would pile up,
    and a kernel that is cached there already would have no report.

    Yields:
        the number of the device that Triton believes it compiles for.
    """
    from triton.runtime.driver import driver

    absent = _AbsentDriver(capability)
    with redirect_compiler({"TRITON_CACHE_DIR": str(scratch), "TRITON_DUMP_PTXAS_LOG": "1"}, scratch):
        driver.set_active(cast(Any, absent))
        try:
            yield absent.number
        finally:
            # The next user gets the real driver, which Triton then looks up again.
            driver.set_active(cast(Any, None))


def _make_plan(kernel: Any, parameters: tuple[Parameter, ...], build: Build, target: str) -> LaunchPlan:
    metadata = kernel.metadata
    parameters = tuple(_expand_descriptors(parameters, getattr(metadata, "tensordesc_meta", None) or ()))
    x, y, z = (*build.grid, 1, 1)[:3]
    return LaunchPlan(
        function=kernel.src.name,
        symbol=metadata.name,
        target=target,
        parameters=parameters,
        grid=(x, y, z),
        warps=metadata.num_warps,
        cluster=metadata.num_ctas,
        shared_bytes=metadata.shared,
        global_scratch_bytes=metadata.global_scratch_size,
        profile_scratch_bytes=getattr(metadata, "profile_scratch_size", 0),
        is_cooperative=bool(metadata.launch_cooperative_grid),
        is_dependent=bool(metadata.launch_pdl),
    )


def _expand_descriptors(parameters: Iterable[Parameter], chosen: Sequence[Any]) -> Iterator[Parameter]:
    """Yield the parameters of the machine code; each descriptor is expanded to the layout that the compiler chose."""
    major, minor = (int(part) for part in version("triton").split(".")[:2])
    layouts = iter(chosen)
    for parameter in parameters:
        if is_descriptor_type(parameter.type) and isinstance(parameter.value, Descriptor):
            expanded = expand_descriptor(parameter.type, parameter.value, next(layouts, None), (major, minor))
            yield from (Parameter(kind, value) for kind, value in expanded)
        else:
            yield parameter


def _render_metadata(kernel: Any) -> str:
    """Return the kernel's description as Triton's cache stores it."""
    return json.dumps(kernel.metadata._asdict(), default=vars)


def _render_error(error: Exception, function: Any) -> str:
    """Return an error's message, capped, with the error itself in its first line."""
    message = str(error).strip()
    if not type(error).__module__.startswith("triton."):
        message = f"{locate_user_line(error, ('triton',))}{type(error).__name__}: {message}"
    else:
        message = f"{_find_reason_line(error, function)}{message}"
    return cut_message(message)


def _find_reason_line(error: Exception, function: Any) -> str:
    """Return the line of Triton's message that says what is wrong, with a line break; empty if there is none.

    Triton shows the source first, from the kernel down to the function that it calls, and the error last. In the
    assembler's output, the first line with an error is the reason.
    """
    if match := _ASSEMBLER_ERROR.search(str(error)):
        return f"{match[0].strip()}\n"
    for cause in iterate_causes(error):
        message = getattr(cause, "error_message", None)
        # A message that begins with "at " is only the place of a call on the way to the error.
        if isinstance(message, str) and message and not message.startswith("at "):
            return f"{_locate_error(cause, function)}{message}\n"
    return ""


def _locate_error(cause: Any, function: Any) -> str:
    """Return ``file:line: `` of an error in the function or in another one of its module; otherwise empty."""
    line = getattr(getattr(cause, "node", None), "lineno", None)
    if function is None or line is None:
        return ""
    near = (value for value in function.fn.__globals__.values() if isinstance(value, type(function)))
    for candidate in (function, *near):
        if candidate.src == getattr(cause, "src", None):
            decorators = itertools.takewhile(lambda text: not text.lstrip().startswith("def "), candidate.raw_src)
            first = candidate.starting_line_number + sum(1 for _ in decorators)
            return f"{Path(candidate.fn.__code__.co_filename).name}:{first + line - 1}: "
    return ""
