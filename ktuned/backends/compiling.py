"""Parts of compiling that several plugins share: units one by one, scratch directories, messages, sources."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ktuned.backends.contract import Compiled, Unit
from ktuned.model import BackendError, Outcome, Scalar, Unsupported

MAX_MESSAGE_CHARS = 4000
"""Limit for a compiler's message: some forty lines, with the first errors."""

_IN_DEFINES = "<command-line>:"

_DISK_IS_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def compile_singly(
    units: Sequence[Unit],
    into: Path,
    compile: Callable[[Unit, Path], Mapping[str, Any]],  # noqa: A002 - what it does
    refusal: type[Exception],
) -> Iterator[Compiled]:
    """Compile units one by one, and yield one result for each.

    ``compile`` fills a unit's directory, and returns its facts. If the config is to blame, it raises ``refusal``, or
    ``Unsupported``.
    """
    for unit in units:
        started = time.perf_counter()
        try:
            facts = compile(unit, into / unit.key)
        except (refusal, Unsupported) as error:
            yield refuse_unit(unit, error, started)
        else:
            yield Compiled(unit.key, seconds=time.perf_counter() - started, facts=facts)


def refuse_unit(unit: Unit, error: Exception, started: float) -> Compiled:
    """Return the result of a unit whose config is to blame for an error; ``started`` by ``time.perf_counter``."""
    seconds = time.perf_counter() - started
    if isinstance(error, Unsupported):
        return Compiled(unit.key, Outcome.UNSUPPORTED, error.message, seconds)
    return Compiled(unit.key, Outcome.COMPILE_ERROR, str(error), seconds)


@contextlib.contextmanager
def lend_scratch_directory(tool: str) -> Iterator[Path]:
    """Provide a directory for one compile. A full disk raises ``BackendError``, because no config is to blame."""
    try:
        with tempfile.TemporaryDirectory(prefix=f"ktuned-{tool}-") as scratch:
            yield Path(scratch)
    except OSError as error:
        if error.errno in _DISK_IS_FULL:
            raise BackendError(f"no disk space to compile in: {error}", hint="free some space") from error
        raise


@contextlib.contextmanager
def redirect_compiler(variables: Mapping[str, str], scratch: Path | None = None) -> Iterator[None]:
    """Set environment variables while a compiler runs in this process; its temporary files go below ``scratch``.

    Elsewhere, temporary files would be left behind if the worker is killed.
    """
    before = {name: os.environ.get(name) for name in variables}
    directory = tempfile.tempdir
    os.environ.update(variables)
    if scratch is not None:
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


def cut_message(message: str) -> str:
    """Return a message, cut to :data:`MAX_MESSAGE_CHARS` characters."""
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - 1] + "…"


def move_error_first(log: str, error: re.Pattern[str]) -> str:
    """Return a compiler's log, cut, with its first line that matches ``error`` at the front.

    An error in the text of a ``-D`` option is at ``<command-line>``. A further line says where the macro is used.
    """
    lines = log.strip().splitlines()
    errors = [index for index, line in enumerate(lines) if error.search(line)] or [0]
    first = next((index for index in errors if not lines[index].startswith(_IN_DEFINES)), errors[0]) if lines else 0
    head = lines[first : first + 1]
    if lines and lines[errors[0]].startswith(_IN_DEFINES):
        head[0] += " (does a macro in defines have the same name?)"
    return cut_message("\n".join([*head, *lines[:first], *lines[first + 1 :]]))


def list_macro_options(defines: Mapping[str, Scalar]) -> tuple[str, ...]:
    """Return the ``-D`` options of macros, sorted by name so that the order of ``defines`` never changes a binary.

    ``True`` defines the bare name, ``False`` leaves it undefined.
    """
    return tuple(
        f"-D{name}" if value is True else f"-D{name}={value}"
        for name, value in sorted(defines.items())
        if value is not False
    )


def write_sources(files: Mapping[Path, bytes], into: Path) -> None:
    """Write the sources of an artifact into a directory, keeping their relative paths."""
    root = Path(os.path.commonpath([path.parent for path in files]))
    for path, content in files.items():
        target = into / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def find_version(distribution: str) -> str:
    """Return the version of an installed distribution; empty if there is none."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
