"""The output of commands: data and tables on stdout, messages on stderr, and the exit status."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ktuned.cli import text
from ktuned.cli.tables import format_table, split_common_columns
from ktuned.model import escape_controls, escape_controls_in_json

if TYPE_CHECKING:
    from ktuned.protocol import FileError

COMPLAINT = "ktuned: "
"""The beginning of each error's line."""

MAX_SILENCE_S = 10.0
"""Longest time without a line while a command waits; a CI log without new lines for longer looks dead."""


is_json = False
"""Whether the command was called with ``--json``, so that its errors are JSON, too."""

USAGE_CODES = frozenset({"usage", "ambiguous", "settings"})
"""Codes of errors in the command line or the settings."""


class Exit(IntEnum):
    """Exit status of a command: 130 after Ctrl-C, 141 after stdout was closed. docs/reference/cli.md lists all."""

    DONE = 0
    NOT_REACHED = 1
    USAGE = 2
    NO_DAEMON = 3
    WRONG = 4
    CRASHED = 5
    HUNG = 6
    CHEATING = 7
    COMPILE_ERROR = 8
    REFUSED = 9
    INTERRUPTED = 130
    BROKEN_PIPE = 141


class ReaderGone(Exception):
    """The reader closed stdout; not an ``OSError``, because click would handle that itself."""


def emit_line(line: str = "", *, is_heading: bool = False) -> None:
    """Print one line on stdout, with control characters as escapes; flush, so that a pipe's reader sees it at once.

    Raises:
        ReaderGone: the reader closed stdout.
    """
    shown = escape_controls(line)
    try:
        sys.stdout.write((click.style(shown, bold=True) if is_heading else shown) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def emit_json(value: object) -> None:
    """Print a value as one line of JSON on stdout and flush it; answers and the values in them become maps."""
    emit_line(escape_controls_in_json(json.dumps(value, ensure_ascii=False, default=_make_plain)))


def emit_answer(answer: object, as_json: bool, *words: str) -> None:
    """Print an answer as JSON, or else the given lines of words."""
    if as_json:
        emit_json(answer)
    else:
        for line in words:
            emit_line(line)


def _make_plain(value: object) -> object:
    # Imported here, because `--help` and errors are printed without it.
    import msgspec

    return msgspec.to_builtins(value)


def print_message(line: str) -> None:
    """Print a message as one line on stderr, with control characters as escapes."""
    sys.stderr.write(escape_controls(line) + "\n")
    sys.stderr.flush()


def print_error(message: str, hint: str = "", code: str = "not_reached") -> None:
    """Print an error as one line: ``ktuned: fault; remedy``, or with ``--json`` a map of code, message and hint."""
    what = " ".join(message.split()).rstrip(".")
    remedy = " ".join(hint.split())
    if is_json:
        fault = {"code": code, "message": what, "hint": remedy}
        print_message(escape_controls_in_json(json.dumps({"error": fault}, ensure_ascii=False)))
    else:
        print_message(f"{COMPLAINT}{what}; {remedy}" if remedy else f"{COMPLAINT}{what}")


def print_file_errors(errors: Iterable[FileError]) -> None:
    """Print a line for each error in a kernel file, and its line of source."""
    # Imported here: a starting daemon prints its errors with this module, and needs no client.
    from ktuned.cli import lines

    for error in errors:
        print_error(lines.format_file_error(error), error.hint)
        # With --json, stderr has JSON alone, and the answer has the excerpt.
        for line in [] if is_json else lines.format_excerpt(error):
            print_message(line)


def write_atomically(path: Path, content: str) -> bool:
    """Write a file in one step, so that nobody reads half of it; return whether its content changed.

    A link stays, and what it leads to is written. A device or a pipe is written as it is.

    Raises:
        OSError: the file cannot be written.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        path.write_text(content, encoding="utf-8")
        return True
    if path.is_file() and path.read_bytes() == content.encode():
        return False
    staged = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staged.write_text(content, encoding="utf-8")
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    return True


@contextmanager
def report_waiting(task: str, every_s: float = MAX_SILENCE_S) -> Iterator[None]:
    """While the block (one long request) runs, print on stderr every ``every_s`` how long it has taken."""
    over = threading.Event()
    began = time.monotonic()

    def remind() -> None:
        while not over.wait(every_s):
            print_message(f"{task}: {text.format_duration(time.monotonic() - began)} so far")

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield
    finally:
        over.set()
        reminder.join()


Row = Sequence[str | int | None]
"""The cells of one line of a table; ``None`` is shown as absent."""


def print_table(columns: Sequence[str], rows: Iterable[Row], *, right: Iterable[str] = ()) -> None:
    """Print rows below a heading, fitted to the terminal; a pipe gets one line for each row.

    ``right`` names the columns of figures.
    """
    is_terminal = sys.stdout.isatty()
    figures = [column in set(right) for column in columns]
    cells = [
        tuple(columns),
        *(tuple(text.ABSENT if cell is None else escape_controls(str(cell)) for cell in row) for row in rows),
    ]
    width = shutil.get_terminal_size().columns if is_terminal else None
    if width is not None and len(cells) > 2:
        common, cells, figures = split_common_columns(cells, figures, width)
        for name, value in common:
            emit_line(f"{name}: {value}")
    for number, line in enumerate(format_table(cells, figures, width)):
        emit_line(line, is_heading=number == 0 and is_terminal)
