"""NVRTC: its version, and one program compiled to machine code for some of its kernels."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktuned.model import BackendError

INSTALL_HINT = "pip install 'ktuned-nvrtc[cu13]' (or [cu12]), or install the CUDA Toolkit"

FIRST_WITH_PRECOMPILED_HEADERS = (12, 8)
FIRST_WITH_CACHE = (12, 9)
FIRST_WITH_SEED = (13, 0)
FIRST_WITH_TRACE = (13, 0)

MAX_MESSAGE_CHARS = 4000
"""Length of NVRTC's log that is kept: some forty lines, with the first errors."""

_ERROR = re.compile(r"\berror\b|\bfatal\b", re.IGNORECASE)
_TOOLS_VERSION = re.compile(rb"release [\d.]+, V(\d+\.\d+\.\d+)")


_TRACED_HEADER = "Processing Header File"
_BLAMED = re.compile(r"^(.+?)\(\d+\): ", re.MULTILINE)
_MISSING = re.compile(r'cannot open source file "([^"\n]+)"')


class NoNvrtc(Exception):
    """NVRTC cannot be loaded."""


class Refused(Exception):
    """NVRTC refused the program; the message is its log, capped, the first error first."""


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program.

    Attributes:
        cubin: its machine code.
        log: the assembler's report.
        symbols: the kernels' symbols by their name expressions.
        heap_bytes_wanted: the heap that a requested precompiled header would have needed if it could not be made;
            0 otherwise.
    """

    cubin: bytes
    log: str
    symbols: dict[str, str]
    heap_bytes_wanted: int = 0


def libraries() -> tuple[Path, ...]:
    """Return the files of the NVRTC that this process has loaded, and of its parts, which it loads when it compiles."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        mapped = {line.split(maxsplit=5)[-1].rstrip("\n") for line in maps if "/libnvrtc" in line}
    directories = {Path(name).parent for name in mapped}
    return tuple(sorted(file for directory in directories for file in directory.glob("libnvrtc*.so*")))


@functools.cache
def version() -> tuple[int, int]:
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
def full_version() -> str:
    """Return NVRTC's version with the patch, which only its output contains.

    Raises:
        NoNvrtc: it is not installed.
    """
    major, minor = version()
    target = f"sm_{supported_architectures()[-1]}"
    found = _TOOLS_VERSION.search(compile_program(b"__global__ void k() {}", "k.cu", ["k"], [f"-arch={target}"]).cubin)
    return found[1].decode() if found else f"{major}.{minor}"


@functools.cache
def supported_architectures() -> tuple[int, ...]:
    """Return the compute capabilities that NVRTC supports, as numbers (90 for 9.0), ascending.

    Raises:
        NoNvrtc: it is not installed.
    """
    version()
    from cuda.bindings import nvrtc

    _, architectures = nvrtc.nvrtcGetSupportedArchs()
    return tuple(sorted(architectures))


def compile_program(source: bytes, name: str, entries: Sequence[str], options: Sequence[str]) -> Program:
    """Compile one program for all ``entries`` (name expressions).

    Raises:
        Refused: it does not compile.
        BackendError: NVRTC itself fails; this must not be recorded as the source's result.
    """
    from cuda.bindings import nvrtc

    handle = _value(nvrtc.nvrtcCreateProgram(source, name.encode(), 0, None, None))
    try:
        for entry in entries:
            _value(nvrtc.nvrtcAddNameExpression(handle, entry.encode()))
        words = [option.encode() for option in options]
        (result,) = nvrtc.nvrtcCompileProgram(handle, len(words), words)
        # Each part of the log ends in a zero byte, not only the whole.
        said = _text(handle, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        log = said.replace(b"\0", b"\n").decode(errors="replace")
        if result in (nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION, nvrtc.nvrtcResult.NVRTC_ERROR_INVALID_OPTION):
            raise Refused(first_error_first(log) or result.name)
        if result != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            raise BackendError(f"NVRTC failed with {result.name}: {first_error_first(log)}", hint=INSTALL_HINT)
        cubin = _text(handle, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        symbols = {entry: _value(nvrtc.nvrtcGetLoweredName(handle, entry.encode())).decode() for entry in entries}
        wanted = _heap_bytes_wanted(handle) if version() >= FIRST_WITH_PRECOMPILED_HEADERS else 0
    finally:
        nvrtc.nvrtcDestroyProgram(handle)
    return Program(cubin, log, symbols, wanted)


def trace_option(trace: Path) -> tuple[str, ...]:
    """Return the option that writes a trace, which lists every header that is read; none if NVRTC does not have it."""
    return (f"--fdevice-time-trace={trace}",) if version() >= FIRST_WITH_TRACE else ()


def traced_headers(trace: Path) -> list[str]:
    """Return the names of the headers in a trace; those that a precompiled header holds are in the trace of its making.

    NVRTC adds a suffix to the trace's name, and writes none for a program that it refuses.
    """
    try:
        events = json.loads(trace.with_name(f"{trace.name}.json").read_bytes())["traceEvents"]
    except FileNotFoundError:
        return []
    return [event["args"]["detail"] for event in events if event.get("name") == _TRACED_HEADER]


def set_heap(size_bytes: int) -> None:
    """Have NVRTC reserve this much address space for precompiled headers."""
    from cuda.bindings import nvrtc

    _value(nvrtc.nvrtcSetPCHHeapSize(size_bytes))


def first_error_first(said: str) -> str:
    """Return NVRTC's log with the first error's line moved to the front, at most MAX_MESSAGE_CHARS long."""
    lines = said.strip().splitlines()
    first = next((index for index, line in enumerate(lines) if _ERROR.search(line)), 0)
    text = "\n".join([*lines[first : first + 1], *lines[:first], *lines[first + 1 :]])
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def _heap_bytes_wanted(handle: Any) -> int:
    from cuda.bindings import nvrtc

    (status,) = nvrtc.nvrtcGetPCHCreateStatus(handle)
    if status in (nvrtc.nvrtcResult.NVRTC_SUCCESS, nvrtc.nvrtcResult.NVRTC_ERROR_NO_PCH_CREATE_ATTEMPTED):
        return 0
    wanted: int = _value(nvrtc.nvrtcGetPCHHeapSizeRequired(handle))
    return wanted


def _text(handle: Any, size_of: Any, read: Any) -> bytes:
    content = bytes(_value(size_of(handle)))
    _value(read(handle, content))
    return content


def _value(result: tuple[Any, ...]) -> Any:
    """Return the results of a call of the bindings without its error code."""
    if int(result[0]) != 0:
        raise BackendError(f"NVRTC failed with {result[0].name}", hint=INSTALL_HINT)
    return result[1] if len(result) > 1 else None
