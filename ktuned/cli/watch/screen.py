"""Picture of the board of ``ktuned watch``, as a rich renderable. No IO."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ktuned.cli import lines, text
from ktuned.cli.progress import JobView
from ktuned.cli.watch.board import Board, Row, on_many, shown
from ktuned.model import LATENCY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group, RenderableType
    from rich.text import Text

KEYS = (("↑↓", "choose"), ("t", "tune now"), ("p", "pause or resume"), ("P", "all"), ("c", "cancel"), ("q", "quit"))
"""Keys and their actions, for the bottom line of the screen."""

MAX_ERRORS = 4
"""Limit of errors in kernel files that are shown at once."""

_FRAME_LINES = 5
"""Lines that are always there: title, two rules, keys, effect of the last key."""

_STYLES = {
    "fresh": "green",
    "tuned": "green",
    "running": "cyan",
    "stale": "yellow",
    "queued": "yellow",
    "paused": "magenta",
    "failed": "red",
    "cancelled": "dim",
}
_SAME = 0.01
"""Changes below this are noise: the precision of a winner (docs/kernel-files.md, presets)."""


def render(board: Board, title: str, now: float, height: int) -> Group:
    """Return the picture of a board for a terminal of this height."""
    from rich.console import Group
    from rich.rule import Rule
    from rich.text import Text

    errors = list(board.errors.values())[:MAX_ERRORS]
    notices = _notices(board)
    # Each row has a second line for its failure; there is a heading, and a line for what does not fit.
    failures = sum(bool(row.failure) for row in board.rows.values())
    place = max(1, height - _FRAME_LINES - len(errors) - len(notices) - 2 - failures)
    rows = shown(board, place)
    tables = _tables(rows, board, now)
    parts: list[RenderableType] = [Text(title, style="bold", no_wrap=True, overflow="ellipsis")]
    parts += [Text(notice, style="magenta", no_wrap=True, overflow="ellipsis") for notice in notices]
    parts += [Rule(style="dim"), *tables]
    if not board.rows:
        parts.append(Text("no kernel yet: a kernel file is named tune_*.py and declares an @kernel", style="dim"))
    if len(rows) < len(board.rows):
        parts.append(Text(f"and {len(board.rows) - len(rows)} more", style="dim"))
    parts += [Text(error, style="red", no_wrap=True, overflow="ellipsis") for error in errors]
    parts += [Rule(style="dim"), Text("  ".join(f"{key} {what}" for key, what in KEYS), style="dim", no_wrap=True)]
    if board.said:
        parts.append(Text(board.said, no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _tables(rows: Sequence[Row], board: Board, now: float) -> list[RenderableType]:
    """Return the rows as tables with aligned columns, and between them, at full width, the failures."""
    from rich.table import Table
    from rich.text import Text

    figures = {
        "saved": [Text(_ago(row.saved_at, now)) for row in rows],
        "before": [Text(text.by_objective(row.objective, row.before)) for row in rows],
        "now": [Text(text.by_objective(row.objective, row.current)) for row in rows],
        "change": [_change(row) for row in rows],
    }
    widths = {name: max([len(name), *(cell.cell_len for cell in cells)]) for name, cells in figures.items()}

    def begin(*, is_first: bool) -> Table:
        table = Table(box=None, expand=True, padding=(0, 1), header_style="bold", show_header=is_first)
        table.add_column("", width=1)
        table.add_column("kernel", ratio=3, no_wrap=True, overflow="ellipsis")
        for name, width in widths.items():
            table.add_column(name, justify="right", no_wrap=True, width=width)
        table.add_column("state", ratio=3, no_wrap=True, overflow="ellipsis")
        return table

    parts: list[RenderableType] = []
    table = begin(is_first=True)
    for place, row in enumerate(rows):
        is_selected = board.selected is not None and row.case == board.selected.case
        table.add_row(
            Text("▸" if is_selected else " "),
            Text(_name(row, board), style="bold" if is_selected else ""),
            *(cells[place] for cells in figures.values()),
            Text(_state(row), style=_STYLES.get(row.state, "")),
        )
        if row.failure:
            parts += [table, Text(f"      {row.failure}", style="red", no_wrap=True, overflow="ellipsis")]
            table = begin(is_first=False)
    return [*parts, table] if table.row_count or not parts else parts


def _notices(board: Board) -> list[str]:
    if board.stalled:
        return [f"nothing is tuned: {board.stalled}"]
    if board.paused_everything:
        return ["all tuning is paused: P resumes it"]
    return [f"paused: {', '.join(sorted(board.paused))}"] if board.paused else []


def _name(row: Row, board: Board) -> str:
    """Return a row's name, with its objective, and with its device only if rows differ in nothing else."""
    kernel = row.kernel.partition(":")[2] or row.kernel
    named = f"{kernel} {text.flat(row.problem)}" if row.problem else kernel
    named = named if row.objective == LATENCY else f"{named} by {row.objective}"
    return f"{named} on {row.device}" if on_many(board, row) else named


def _ago(at: float | None, now: float) -> str:
    return text.ABSENT if at is None else f"{text.duration(float(int(max(0.0, now - at))))} ago"


def _change(row: Row) -> Text:
    from rich.text import Text

    gain = row.gain
    if gain is None:
        return Text(text.ABSENT)
    style = "green" if gain > 1 + _SAME else "red" if gain < 1 - _SAME else ""
    return Text(text.times(gain), style=style)


def _state(row: Row) -> str:
    failed = f", {row.failed} failed" if row.failed else ""
    match row.state, row.job:
        case "running", JobView() as job:
            if job.round is not None:
                return f"finalists again, {job.round[0]} of {job.round[1]}{failed}"
            left = f", {text.duration(job.left_s)} left" if job.left_s is not None else ""
            return f"tuning {lines.progress(job)}{left}{failed}"
        case "queued", JobView() as job:
            return f"queued{f': {job.waits_for}' if job.waits_for else ''}"
        case "tuned", JobView() as job if job.share:
            return f"tuned, {job.share}{failed}"
        case state, _:
            return f"{state}{failed}"
