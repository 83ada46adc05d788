"""Errors of compilers and of Python, found in their messages. No IO."""

from __future__ import annotations

import re

from ktuned.model.frozen_struct import FrozenStruct

MAX_ERRORS = 10
"""Errors of one message that are returned; later ones mostly follow from the first."""

_GCC = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+):(?:(?P<column>\d+):)? (?:fatal )?error: (?P<message>.+)$")
"""GCC, Clang and linkers: ``gemm.cpp:3:7: error: expected ';'``."""

_NVCC = re.compile(
    r"^(?P<file>[^\s(][^(\n]*)\((?P<line>\d+)\)\s?: (?:catastrophic )?error(?: #[\w-]+)?\s?: (?P<message>.+)$"
)
"""nvcc and NVRTC: ``gemm.cu(3): error: identifier "y" is undefined``."""

_PTXAS = re.compile(r"^ptxas (?P<file>[^,\n]+), line (?P<line>\d+); (?:error|fatal)\s*: (?P<message>.+)$")
_LINKER = re.compile(r"^(?P<file>[^\s:][^:\n]*):(?P<line>\d+): (?P<message>undefined reference to .+)$")
_PLACE = re.compile(r"^(?P<file>[^\s:][^:\n]*\.py):(?P<line>\d+): (?P<message>.+)$")
"""ktuned's own errors in kernel files: ``tune_gemm.py:3: NameError: …``."""

_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
_EXCEPTION = re.compile(r"^(?P<message>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)(?::.*|$))")
_TRITON = re.compile(r"^at (?P<line>\d+):(?P<column>\d+):$")
"""Triton counts lines from the function's own first line, and names no file."""


class CompilerError(FrozenStruct):
    """One error in a source.

    Attributes:
        file: the file as the compiler names it; empty if it names none.
        line: the line, counted from 1.
        column: the column, counted from 1, if the compiler names it.
        message: the error.
    """

    file: str
    line: int
    column: int | None
    message: str


def find_compiler_errors(message: str) -> tuple[CompilerError, ...]:
    """Return the first errors in a compiler's output or a Python traceback, without repetitions.

    A traceback is one error, at the innermost line of its last frame.
    """
    found: dict[CompilerError, None] = {}
    place: re.Match[str] | None = None
    for line in message.splitlines():
        match = next(filter(None, (form.match(line) for form in (_GCC, _NVCC, _PTXAS, _LINKER, _PLACE))), None)
        if match is not None:
            found.setdefault(_make_error(match, match["message"]))
        elif frame := _FRAME.match(line) or _TRITON.match(line):
            place = frame
        elif place is not None and (raised := _EXCEPTION.match(line)):
            found.setdefault(_make_error(place, raised["message"]))
            place = None
    return tuple(found)[:MAX_ERRORS]


def _make_error(match: re.Match[str], message: str) -> CompilerError:
    parts = match.groupdict()
    column = parts.get("column")
    return CompilerError(
        parts.get("file") or "", int(match["line"]), None if column is None else int(column), message.strip()
    )
