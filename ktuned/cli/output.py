"""Output of commands: data and tables on stdout, messages on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click


class ReaderGone(Exception):
    """The reader closed stdout; not an ``OSError``, because click would handle that itself."""


def emit(line: str = "") -> None:
    """Print one line on stdout and flush it, so that a pipe's reader sees it at once.

    Raises:
        ReaderGone: the reader closed stdout.
    """
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def emit_json(value: Any) -> None:
    """Print one JSON value as one line on stdout and flush it."""
    emit(json.dumps(value, ensure_ascii=False))


def say(line: str) -> None:
    """Print a message as one line on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def complain(message: str, hint: str = "") -> None:
    """Print an error as one line: ``ktuned: fault; remedy``."""
    what = " ".join(message.split()).rstrip(".")
    mend = " ".join(hint.split())
    say(f"ktuned: {what}; {mend}" if mend else f"ktuned: {what}")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> None:
    """Print rows below a heading; ``right`` names the columns of figures.

    Nothing is cut: a terminal wraps long lines, and a pipe needs them complete.
    """
    figures = [column in set(right) for column in columns]
    cells = [tuple(columns), *(tuple(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for number, row in enumerate(cells):
        padded = (
            cell.rjust(width) if is_figure else cell.ljust(width)
            for cell, width, is_figure in zip(row, widths, figures, strict=True)
        )
        line = "  ".join(padded).rstrip()
        emit(click.style(line, bold=True) if number == 0 and sys.stdout.isatty() else line)
