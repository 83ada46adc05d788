"""Parts that every page has: the state of a row, why nothing is tuned, and the keys below the body. No IO."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from ktuned.cli import lines, text
from ktuned.cli.job_view import JobView
from ktuned.cli.watch.board import Board, BoardRow
from ktuned.cli.watch.layout import paragraph
from ktuned.cli.watch.state import Screen

STYLES = {
    "fresh": "green",
    "tuned": "green",
    "running": "cyan",
    "stale": "yellow",
    "queued": "yellow",
    "paused": "magenta",
    "failed": "red",
    "cancelled": "dim",
}
"""Styles of states."""


def notices(board: Board, columns: int) -> list[Text]:
    """Return why nothing is tuned, where that is so."""
    if board.stalled:
        said = f"nothing is tuned: {board.stalled}"
    elif board.paused_everything:
        said = "all tuning is paused: P resumes it"
    elif board.paused:
        said = f"paused: {', '.join(sorted(board.paused))}"
    else:
        return []
    return paragraph(said, columns, style="magenta", limit=2)


def bottom(screen: Screen, keys: Sequence[tuple[str, str]]) -> list[Text]:
    """Return the lines below the body: the filter and order, the effect of the last key, the keys that fit."""
    columns = screen.size.columns
    found = []
    if screen.is_typing or screen.choice.query:
        hint = "  ↵ keeps it, esc clears it" if screen.is_typing else "  esc clears it"
        cursor = "▏" if screen.is_typing else ""
        found.append(Text.assemble(("filter ", "dim"), (screen.choice.query + cursor, "bold"), (hint, "dim")))
    if screen.said:
        found += paragraph(screen.said, columns, limit=2)
    line = Text()
    for key, meaning in keys:
        gap = "  " if line else ""
        if cell_len(line.plain) + len(gap) + cell_len(key) + 1 + cell_len(meaning) <= columns:
            line.append(gap).append(key, style="bold").append(f" {meaning}", style="dim")
    return [*found, line]


def state_of(row: BoardRow) -> str:
    """Return a row's state in words: progress, time left, failed configs, the share of the device's limit."""
    failed = f", {row.failed} failed" if row.failed else ""
    match row.state, row.job:
        case "running", JobView() as job:
            if job.round is not None:
                return f"finalists again, {job.round[0]} of {job.round[1]}{failed}"
            left = text.left(job.left_s)
            return f"tuning {lines.progress(job)}{left and f', {left}'}{failed}"
        case "queued", JobView() as job:
            return f"queued{f': {job.waits_for}' if job.waits_for else ''}"
        case "tuned", JobView() as job if job.share:
            return f"tuned, {job.share}{failed}"
        case state, _:
            return f"{state}{failed}"
