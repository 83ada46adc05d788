"""NVRTC's API: its versions, and how one program is compiled to machine code for some of its kernels."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktuned.backends import move_error_first
from ktuned.model import BackendError

INSTALL_HINT = "pip install 'ktuned-nvrtc[cu13]' (or [cu12]), or install the CUDA Toolkit"

FIRST_WITH_PRECOMPILED_HEADERS = (12, 8)
FIRST_WITH_CACHE = (12, 9)
FIRST_WITH_SEED = (13, 0)
FIRST_WITH_TRACE = (13, 0)

ERROR = re.compile(r"\berror\b|\bfatal\b", re.IGNORECASE)
_TOOLS_VERSION = re.compile(rb"release [\d.]+, V(\d+\.\d+\.\d+)")


_TRACED_HEADER = "Processing Header File"


class NoNvrtc(Exception):
    """NVRTC cannot be loaded."""


class CompileError(Exception):
    """The program does not compile; the message is NVRTC's log, capped, with the first error first."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program.

    Attributes:
        cubin: the machine code.
        log: the assembler's report.
        symbols: the kernels' symbols by name expression.
        heap_bytes_wanted: if a requested precompiled header did not fit the heap, the size that it needs; else 0.
    """

    cubin: bytes
    log: str
    symbols: dict[str, str]
    heap_bytes_wanted: int = 0


def find_libraries() -> tuple[Path, ...]:
    """Return the files of the NVRTC that this process has loaded, and of the parts that it loads when it compiles."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        mapped = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/libnvrtc" in line}
    directories = {Path(name).parent for name in mapped}
    return tuple(sorted(file for directory in directories for file in directory.glob("libnvrtc*.so*")))


@functools.cache
def read_version() -> tuple[int, int]:
    """Return NVRTC's major and minor version.

    Raises:
        NoNvrtc: it, or cuda-bindings, is not installed.
    """
    try:
        from cuda.bindings import nvrtc

        _, major, minor = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        raise NoNvrtc(f"NVRTC cannot be loaded: {' '.join(str(error).split())}") from error
    return major, minor


@functools.cache
def read_full_version() -> str:
    """Return NVRTC's version with the patch number, which only compiled code contains.

    Raises:
        NoNvrtc: it is not installed.
    """
    major, minor = read_version()
    target = f"sm_{list_architectures()[-1]}"
    found = _TOOLS_VERSION.search(compile_program(b"__global__ void k() {}", "k.cu", ["k"], [f"-arch={target}"]).cubin)
    return found[1].decode() if found else f"{major}.{minor}"


@functools.cache
def list_architectures() -> tuple[int, ...]:
    """Return the compute capabilities that NVRTC supports, as numbers (90 for 9.0), ascending.

    Raises:
        NoNvrtc: it is not installed.
    """
    read_version()
    from cuda.bindings import nvrtc

    _, architectures = nvrtc.nvrtcGetSupportedArchs()
    return tuple(sorted(architectures))


def compile_program(source: bytes, name: str, entries: Sequence[str], options: Sequence[str]) -> Program:
    """Compile one program for all ``entries`` (name expressions).

    Raises:
        CompileError: it does not compile.
        BackendError: NVRTC itself failed, which must not be recorded as the source's result.
    """
    from cuda.bindings import nvrtc

    handle = _unwrap_result(nvrtc.nvrtcCreateProgram(source, name.encode(), 0, None, None))
    try:
        for entry in entries:
            _unwrap_result(nvrtc.nvrtcAddNameExpression(handle, entry.encode()))
        encoded_options = [option.encode() for option in options]
        (result,) = nvrtc.nvrtcCompileProgram(handle, len(encoded_options), encoded_options)
        # Every part of the log ends in a zero byte, not only the last.
        raw_log = _read_text(handle, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        log = raw_log.replace(b"\0", b"\n").decode(errors="replace")
        if result in (nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION, nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION):
            raise CompileError(move_error_first(log, ERROR) or result.name)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BackendError(f"NVRTC failed with {result.name}: {move_error_first(log, ERROR)}", hint=INSTALL_HINT)
        cubin = _read_text(handle, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        symbols = {
            entry: _unwrap_result(nvrtc.nvrtcGetLoweredName(handle, entry.encode())).decode() for entry in entries
        }
        wanted = _read_heap_bytes_wanted(handle) if read_version() >= FIRST_WITH_PRECOMPILED_HEADERS else 0
    finally:
        nvrtc.nvrtcDestroyProgram(handle)
    return Program(cubin, log, symbols, wanted)


def make_trace_option(trace: Path) -> tuple[str, ...]:
    """Return the option that writes a trace of all headers that are read; none if this NVRTC lacks it."""
    return (f"--fdevice-time-trace={trace}",) if read_version() >= FIRST_WITH_TRACE else ()


def read_traced_headers(trace: Path) -> list[str]:
    """Return the names of the headers in a trace.

    Headers inside a precompiled header are only in the trace of the program that made it. NVRTC adds a suffix to the
    trace's name, and writes no trace for a program that does not compile.
    """
    try:
        events = json.loads(trace.with_name(f"{trace.name}.json").read_bytes())["traceEvents"]
    except FileNotFoundError:
        return []
    return [event["args"]["detail"] for event in events if event.get("name") == _TRACED_HEADER]


def reserve_heap(size_bytes: int) -> None:
    """Make NVRTC reserve this much address space for precompiled headers."""
    from cuda.bindings import nvrtc

    _unwrap_result(nvrtc.nvrtcSetPCHHeapSize(size_bytes))


def _read_heap_bytes_wanted(handle: Any) -> int:
    from cuda.bindings import nvrtc

    (status,) = nvrtc.nvrtcGetPCHCreateStatus(handle)
    if status in (nvrtc.nvrtcResult.NVRTC_SUCCESS, nvrtc.nvrtcResult.NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED):
        return 0
    wanted: int = _unwrap_result(nvrtc.nvrtcGetPCHHeapSizeRequired(handle))
    return wanted


def _read_text(handle: Any, size_of: Any, read: Any) -> bytes:
    content = bytes(_unwrap_result(size_of(handle)))
    _unwrap_result(read(handle, content))
    return content


def _unwrap_result(result: tuple[Any, ...]) -> Any:
    """Return the value of a call of NVRTC's bindings; raise a ``BackendError`` if it failed."""
    if int(result[0]) != 0:
        raise BackendError(f"NVRTC failed with {result[0].name}", hint=INSTALL_HINT)
    return result[1] if len(result) > 1 else None
