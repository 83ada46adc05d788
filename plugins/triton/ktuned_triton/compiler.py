"""From a unit to its artifact: Triton's own compiler, aimed at any architecture."""

from __future__ import annotations

import contextlib
import errno
import io
import itertools
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

from ktuned.backends import Unit, compute_target, occupancy_fact, ptxas
from ktuned.model import BackendError, KernelFileError, Unsupported
from ktuned.spec import iterate_causes, locate_user_line
from ktuned_triton.artifact import CUBIN_FILE, LAUNCH_FILE, METADATA_FILE, PTX_FILE
from ktuned_triton.build import Build
from ktuned_triton.descriptors import expand, is_descriptor_type
from ktuned_triton.launch_plan import LaunchPlan, Parameter
from ktuned_triton.library import difference, find_function
from ktuned_triton.limits import why_not
from ktuned_triton.lowering import Lowered, Unreadable, compiled, front, is_known
from ktuned_triton.signature import Misfit, call_arguments, launch_parameters

MAX_MESSAGE_CHARS = 4000
"""Limit of a kept message; its first lines name the error and its place."""

MAX_LOWERED_BYTES = 8 << 20
"""Half of a message to a worker; a matrix product has 40 KB. A larger one is compiled in one piece."""

MAJOR_VERSION = "3"
"""The major version of Triton whose compiler this calls."""

_ASSEMBLER_ERROR = re.compile(r"^ptxas\S*\s.*(?:fatal|error).*$", re.MULTILINE)
_TARGET = re.compile(r"sm_(\d+)(\d)([af]?)")
_DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})

_device_numbers = itertools.count()


class Refused(Exception):
    """The function cannot be compiled; the message is Triton's own, or says what does not fit."""


def prepare(installed: str = "") -> None:
    """Do what each process must do once before it compiles: a second or two, which are no unit's.

    ``installed`` is Triton's version, by default that of its distribution.

    Raises:
        ImportError: Triton is not installed, or is broken.
        BackendError: it is of another major version.
    """
    installed = installed or version("triton")
    if installed.partition(".")[0] != MAJOR_VERSION:
        raise BackendError(
            f"Triton {installed} is installed, and this plugin is for Triton {MAJOR_VERSION}",
            hint="pip install --upgrade ktuned-triton, or 'triton<4'",
        )
    import_module("triton.compiler")
    # The digest of Triton itself, which it keeps for the process.
    getattr(import_module("triton.runtime.cache"), "triton_key", lambda: None)()


def compile_unit(unit: Unit, artifact: Path) -> dict[str, Any]:
    """Fill ``artifact`` and return its facts.

    Raises:
        Refused: the function cannot be found or compiled.
        Unsupported: the target cannot run it.
        BackendError: the failure is not the config's.
    """
    capability = _capability(unit.target)
    if unit.lowered:
        with contextlib.suppress(Unreadable), _room() as scratch:
            return _assembled(unit, capability, artifact, scratch)
    function = _function(unit)
    with _room() as scratch:
        return _compile(function, unit, capability, artifact, scratch)


def lower_unit(unit: Unit) -> bytes:
    """Return what compiling takes instead of the function, which this process imports; nothing if it cannot be had.

    Raises:
        Refused: the function cannot be found, or its front end refuses it.
        Unsupported: the target cannot run it.
        BackendError: the failure is not the config's.
    """
    capability = _capability(unit.target)
    if not is_known(version("triton")):
        return b""
    function = _function(unit)
    build = cast(Build, unit.build)
    with _room() as scratch, _refusing(function):
        arguments = call_arguments(function, build, unit.kernel_file)
        with _aimed_at(capability, scratch) as device:
            try:
                made = front(function, device, arguments, grid=build.grid, **build.compiler_options)
            except Unreadable:
                return b""
            finally:
                function.device_caches.pop(device, None)
        try:
            data = made.lowered(launch_parameters(made.source.signature, arguments)).to_bytes()
        except TypeError:
            return b""
        return data if len(data) <= MAX_LOWERED_BYTES else b""


def _function(unit: Unit) -> Any:
    if unit.sources:
        raise Refused("a triton kernel has no sources: what the kernel file imports is followed without them")
    build = cast(Build, unit.build)
    name = build.function
    try:
        function: Any = find_function(str(name), build, unit.kernel_file)
    except (KernelFileError, LookupError) as error:
        raise Refused(str(error)) from error
    if why := difference(function, build):
        raise Refused(why)
    if not hasattr(function, "warmup") or not hasattr(function, "params"):
        raise Refused(f"{name} is not decorated with @triton.jit")
    return function


@contextlib.contextmanager
def _room() -> Iterator[Path]:
    """Lend a directory for a compile; one that is full is no config's fault."""
    try:
        with tempfile.TemporaryDirectory(prefix="ktuned-triton-") as scratch:
            yield Path(scratch)
    except OSError as error:
        if error.errno in _DISK_IS_FULL:
            raise BackendError(f"no room to compile in: {error}", hint="free some space") from error
        raise


@contextlib.contextmanager
def _refusing(function: Any = None) -> Iterator[None]:
    """Turn what Triton's compiler and the function raise into a refusal."""
    try:
        yield
    except Misfit as error:
        raise Refused(str(error)) from error
    except (MemoryError, Unreadable):
        raise
    except Exception as error:
        for cause in iterate_causes(error):
            if isinstance(cause, Unsupported):
                raise cause from error
        raise Refused(_words(error, function)) from error


def _compile(function: Any, unit: Unit, capability: int, artifact: Path, scratch: Path) -> dict[str, Any]:
    """Compile a function in one piece."""
    build = cast(Build, unit.build)
    said = io.StringIO()
    with _refusing(function):
        arguments = call_arguments(function, build, unit.kernel_file)
        with _aimed_at(capability, scratch) as device, contextlib.redirect_stdout(said):
            try:
                kernel = function.warmup(**arguments, grid=build.grid, **build.compiler_options)
            finally:
                function.device_caches.pop(device, None)
        parameters = launch_parameters(kernel.src.signature, arguments)
    return _write_artifact(unit, kernel, parameters, said.getvalue(), artifact)


def _assembled(unit: Unit, capability: int, artifact: Path, scratch: Path) -> dict[str, Any]:
    """Compile what another process has lowered."""
    lowered = Lowered.from_bytes(unit.lowered)
    said = io.StringIO()
    with _refusing(), _aimed_at(capability, scratch), contextlib.redirect_stdout(said):
        kernel = compiled(lowered, _gpu_target(capability))
    return _write_artifact(unit, kernel, lowered.parameters, said.getvalue(), artifact)


def _write_artifact(
    unit: Unit, kernel: Any, parameters: tuple[Parameter, ...], said: str, artifact: Path
) -> dict[str, Any]:
    """Write the files of an artifact, and return its facts."""
    plan = _plan(kernel, parameters, cast(Build, unit.build), unit.target)
    used = ptxas.parse(said).get(plan.symbol, ptxas.Resources())
    if why := why_not(plan, used):
        raise Unsupported(why)
    (artifact / CUBIN_FILE).write_bytes(kernel.asm["cubin"])
    (artifact / PTX_FILE).write_text(kernel.asm["ptx"])
    (artifact / LAUNCH_FILE).write_text(plan.to_json())
    (artifact / METADATA_FILE).write_text(_metadata(kernel))
    return {
        "function": plan.symbol,
        "target": plan.target,
        **asdict(used),
        "dynamic_shared_bytes": plan.shared_bytes,
        "threads": plan.threads,
        **occupancy_fact(plan.target, plan.threads, used.registers, plan.shared_bytes + used.static_shared_bytes),
        "triton_key": kernel.hash,
    }


def _capability(target: str) -> int:
    """Return what Triton calls a target: 90 for ``sm_90a``.

    Raises:
        Unsupported: Triton makes no code for it.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise Unsupported(f"Triton compiles for NVIDIA GPUs (sm_90a), not for {target}")
    made = compute_target(int(match[1]), int(match[2]))
    if made != target:
        raise Unsupported(f"Triton compiles for {made}, not for {target}")
    return int(match[1] + match[2])


def _gpu_target(capability: int) -> Any:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", capability, 32)


class _AbsentDriver:
    """A driver for a device that is not here: it answers the questions of Triton's compiler."""

    def __init__(self, capability: int) -> None:
        self._target = _gpu_target(capability)
        # By this number Triton keeps a function's kernels in memory; a new one each time, so that none is found there.
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
def _aimed_at(capability: int, scratch: Path) -> Iterator[int]:
    """Have Triton compile for an architecture, keep its files below ``scratch``, and print its assembler's report.

    Yields the number of the device that it takes itself to compile for.

    A cache of its own: hundreds of configs that lose would fill the user's, and one that is there already would be
    taken without a report.
    """
    from triton.runtime.driver import driver

    changed = {"TRITON_CACHE_DIR": str(scratch), "TRITON_DUMP_PTXAS_LOG": "1"}
    before = {name: os.environ.get(name) for name in changed}
    directory = tempfile.tempdir
    os.environ.update(changed)
    # Its assembler's files, which it leaves behind when it is killed.
    tempfile.tempdir = str(scratch)
    absent = _AbsentDriver(capability)
    driver.set_active(cast(Any, absent))
    try:
        yield absent.number
    finally:
        # The next to ask gets the real one, found again.
        driver.set_active(cast(Any, None))
        tempfile.tempdir = directory
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _plan(kernel: Any, parameters: tuple[Parameter, ...], build: Build, target: str) -> LaunchPlan:
    metadata = kernel.metadata
    parameters = tuple(_without_descriptors(parameters, getattr(metadata, "tensordesc_meta", None) or ()))
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


def _without_descriptors(parameters: Iterable[Parameter], chosen: Sequence[Any]) -> Iterator[Parameter]:
    """Yield the parameters of the machine code: each tensor descriptor as what the compiler has ``chosen`` for it."""
    major, minor = (int(part) for part in version("triton").split(".")[:2])
    layouts = iter(chosen)
    for parameter in parameters:
        if is_descriptor_type(parameter.type) and isinstance(parameter.value, Mapping):
            expanded = expand(parameter.type, parameter.value, next(layouts, None), (major, minor))
            yield from (Parameter(kind, value) for kind, value in expanded)
        else:
            yield parameter


def _metadata(kernel: Any) -> str:
    """Return the text of the file that Triton's cache has of a kernel."""
    return json.dumps(kernel.metadata._asdict(), default=vars)


def _words(error: Exception, function: Any) -> str:
    """Return what went wrong, its first line the error itself, capped."""
    said = str(error).strip()
    if not type(error).__module__.startswith("triton."):
        said = f"{locate_user_line(error, ('triton',))}{type(error).__name__}: {said}"
    else:
        said = f"{_reason(error, function)}{said}"
    return said if len(said) <= MAX_MESSAGE_CHARS else said[: MAX_MESSAGE_CHARS - 1] + "…"


def _reason(error: Exception, function: Any) -> str:
    """Return the line of an error of Triton's that says what is wrong, and a line break.

    Triton shows the source first, from the kernel down to the function that it calls, and the error last; of its
    assembler's words the first line that is an error counts.
    """
    if match := _ASSEMBLER_ERROR.search(str(error)):
        return f"{match[0].strip()}\n"
    for cause in iterate_causes(error):
        message = getattr(cause, "error_message", None)
        # Otherwise it says where what is wrong was called.
        if isinstance(message, str) and message and not message.startswith("at "):
            return f"{_line_of(cause, function)}{message}\n"
    return ""


def _line_of(cause: Any, function: Any) -> str:
    """Return ``file:line: `` of an error in a function, or in one that its module names; ``""`` if it is in another."""
    line = getattr(getattr(cause, "node", None), "lineno", None)
    if function is None or line is None:
        return ""
    near = (value for value in function.fn.__globals__.values() if isinstance(value, type(function)))
    for one in (function, *near):
        if one.src == getattr(cause, "src", None):
            decorators = itertools.takewhile(lambda text: not text.lstrip().startswith("def "), one.raw_src)
            first = one.starting_line_number + sum(1 for _ in decorators)
            return f"{Path(one.fn.__code__.co_filename).name}:{first + line - 1}: "
    return ""
