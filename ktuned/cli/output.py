"""What goes where: data and tables on stdout, everything said about them on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

PIPE_COLUMNS = 10_000
"""The width of a table that no terminal shows: wide enough that nothing is cut."""


class ReaderGone(Exception):
    """Whoever read stdout has closed it; no ``OSError``, because click would take that for itself."""


def emit(line: str = "") -> None:
    """Print one line on stdout at once: whoever reads a pipe follows along.

    Raises:
        ReaderGone: nobody reads any more.
    """
    try:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGone from None


def emit_json(value: Any) -> None:
    """Print one JSON value as one line on stdout at once."""
    emit(json.dumps(value, ensure_ascii=False))


def say(line: str) -> None:
    """Tell the person something that is not data: one line on stderr."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def complain(message: str, hint: str = "") -> None:
    """Print an error as its one line, ``ktuned: what happened. what mends it``."""
    what = " ".join(message.split()).rstrip(".")
    mend = " ".join(hint.split())
    say(f"ktuned: {what}. {mend}" if mend else f"ktuned: {what}")


def console() -> Console:
    """Return a console on stdout that prints values as they are: no markup, no guessing at colours."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    return Console(file=sys.stdout, markup=False, highlight=False, emoji=False, width=width)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = ()) -> None:
    """Print rows below a heading; ``right`` names the columns of figures."""
    from rich.table import Table

    figures = set(right)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        grid.add_column(column, justify="right" if column in figures else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    target = console()
    with target.capture() as captured:
        target.print(grid)
    for line in captured.get().splitlines():
        emit(line.rstrip())
