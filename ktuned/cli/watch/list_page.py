"""First page of the live screen: a row for each kernel, problem and device. No IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.cells import cell_len
from rich.text import Text

from ktuned.cli import text
from ktuned.cli.watch.board import Board, BoardRow, on_many
from ktuned.cli.watch.common_parts import STYLES, bottom, notices, state_of
from ktuned.cli.watch.layout import GAP, MIN_WORD, Cell, Column, TableLayout, ends, facts, paragraph
from ktuned.cli.watch.load import summary, time_left
from ktuned.cli.watch.parts import Block, Parts, around
from ktuned.cli.watch.state import ROWS, Screen, label, waiting

MAX_ERRORS = 4
"""Errors in kernel files that the list shows; the page of problems has all."""

MAX_ROOTS = 3
"""Watched directories that the title names."""

KEYS = (
    ("?", "keys"),
    ("q", "quit"),
    ("↵", "open"),
    ("/", "filter"),
    ("s", "sort"),
    ("t", "tune now"),
    ("e", "problems"),
    ("p", "pause"),
    ("c", "cancel"),
)
"""Keys and their actions, for the last line; those that do not fit are on the page of keys."""

_SAME = 0.01
"""Changes below this are noise: the precision of a winner (docs/kernel-files.md, presets)."""

_FIGURE = 9
_MIN_ELASTIC = 44
"""Columns that name and state need beside each other; on a narrower terminal the state stands below the name."""

_MIN_WINNER = 40
"""Columns that the config of a winner needs; else that of the chosen row stands below the list."""

_MIN_STATE = 20
_INDENT = 6


def list_page(screen: Screen, now: float) -> Parts:
    """Return the page of all rows."""
    board, columns = screen.board, screen.size.columns
    rows = screen.rows
    layout = _Layout(columns, rows, board)
    focus = ROWS.chosen(rows, screen.kernels)
    seen = around(len(rows), focus, screen.size.lines)
    body = [Block(layout.block(rows[place], now, is_chosen=place == focus), rows[place].is_problem) for place in seen]
    left_out = [*rows[: seen.start], *rows[seen.stop :]]
    return Parts(
        title=[*_title(screen), *_summary(screen)],
        notices=[*notices(board, columns), *_errors(board, columns)],
        heading=layout.heading() if rows else (),
        body=body or [Block(_nothing(screen))],
        detail=_winner(screen.selected, columns) if not layout.has_winner else (),
        keys=bottom(screen, KEYS),
        focus=None if focus is None else focus - seen.start,
        thing="row",
        above=seen.start,
        below=len(rows) - seen.stop,
        problems=sum(row.is_problem for row in left_out),
    )


def changed(row: BoardRow) -> Cell:
    """Return the change since the last save as a factor."""
    if row.gain is None:
        return Cell(text.ABSENT)
    style = "green" if row.gain > 1 + _SAME else "red" if row.gain < 1 - _SAME else ""
    return Cell(text.times(row.gain), style)


def _title(screen: Screen) -> list[Text]:
    board = screen.board
    order = ROWS.order(screen.kernels)
    facts_said = []
    if screen.kernels.query:
        facts_said.append(f"{len(screen.rows)} of {len(board.rows)} shown")
    if screen.kernels.order or screen.kernels.is_reversed:
        facts_said.append(f"by {order}{', reversed' if screen.kernels.is_reversed else ''}")
    if board.problems:
        facts_said.append(text.number(board.problems, "problem"))
    style = "bold red" if board.problems else "dim"
    title = screen.title
    if title == "ktuned watch" and board.roots:
        named = ", ".join(board.roots[:MAX_ROOTS])
        rest = len(board.roots) - MAX_ROOTS
        title = f"{title}  {named}{f' and {rest} more' if rest > 0 else ''}"
    return ends(title, ", ".join(facts_said), screen.size.columns, right_style=style)


def _summary(screen: Screen) -> list[Text]:
    jobs = screen.board.view.active
    left = time_left(jobs, screen.board.sizes)
    waits = waiting(screen.board)
    said = summary(screen.load, left, running=len(jobs) - waits, waiting=waits)
    found = paragraph(said, screen.size.columns, style="dim", limit=2)
    for device, reason in screen.load.sick.items():
        found += paragraph(f"{device} is sick: {text.first_line(reason)}", screen.size.columns, style="red", limit=2)
    return found


def _errors(board: Board, columns: int) -> list[Text]:
    found: list[Text] = []
    for error in list(board.errors.values())[:MAX_ERRORS]:
        found += paragraph(error.line, columns, style="red", limit=2)
    if len(board.errors) > MAX_ERRORS:
        found.append(Text(f"and {len(board.errors) - MAX_ERRORS} more kernel files: e shows them", style="red"))
    return found


def _nothing(screen: Screen) -> list[Text]:
    if screen.board.rows:
        said = (
            f"none of {text.number(len(screen.board.rows), 'row')} has {screen.kernels.query!r}: esc clears the filter"
        )
    else:
        said = "no kernel yet: a kernel file is named tune_*.py and declares an @kernel"
    return paragraph(said, screen.size.columns, style="dim")


def _winner(row: BoardRow | None, columns: int) -> list[Text]:
    if row is None or row.config is None:
        return []
    name = "winner" if row.current is not None else "before"
    return facts([(name, text.flat(row.config))], columns, limit=2)


def _ago(at: float | None, now: float) -> str:
    """Return an age in one unit, which is as wide today as tomorrow."""
    if at is None:
        return text.ABSENT
    seconds = max(0, int(now - at))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


class _Layout:
    """Columns that fit a terminal: at 60 the state stands below the name, at 80 beside it, from 160 on with the winner.

    Figures give way one by one: the last save first, then the figure before it.
    """

    def __init__(self, columns: int, rows: Sequence[BoardRow], board: Board) -> None:
        self._columns = columns
        self._board = board
        # Two kernels of one short name, in different projects, are shown by their full names.
        short = Counter(name.rpartition(":")[2] for name in {row.kernel for row in board.rows.values()})
        self._full = {name for name, count in short.items() if count > 1}
        figures = [text.by_objective(row.objective, value) for row in rows for value in (row.before, row.current)]
        figure = max([_FIGURE, *map(cell_len, figures)])
        wanted = [Column("now", figure, True), Column("change", 7, True)]
        optional = [Column("before", figure, True), Column("saved", 10, True)]
        elastic = columns - 2 - sum((column.width or 0) + GAP for column in wanted)
        self._is_stacked = elastic < _MIN_ELASTIC
        for column in optional:
            if elastic - (column.width or 0) - GAP >= _MIN_ELASTIC:
                elastic -= (column.width or 0) + GAP
                wanted = [column, *wanted]
        names = max([MIN_WORD, *(cell_len(self._name(row)) for row in rows)])
        states = max([MIN_WORD, *(cell_len(state_of(row)) for row in rows)])
        # A name is read before a state: the state wraps first.
        states = max(_MIN_STATE, min(states, elastic - names - GAP))
        self.has_winner = elastic >= names + states + 2 * GAP + _MIN_WINNER
        self._figures = [column.title for column in wanted]
        if self._is_stacked:
            self._table = TableLayout([*wanted, Column("state")], [columns], columns - _INDENT)
            return
        winners = [Column("winner")] if self.has_winner else []
        wishes = [names, states, *([elastic - names - states - 2 * GAP] if self.has_winner else [])]
        self._table = TableLayout([Column("kernel"), *wanted, Column("state"), *winners], wishes, columns - 2)

    def heading(self) -> list[Text]:
        """Return the line of titles."""
        indent = " " * (_INDENT if self._is_stacked else 2)
        return [Text.assemble(indent, self._table.heading())]

    def block(self, row: BoardRow, now: float, *, is_chosen: bool) -> list[Text]:
        """Return the lines of a row, with its failure below it."""
        style = "bold" if is_chosen else ""
        marker = "▸ " if is_chosen else "  "
        state = Cell(state_of(row), STYLES.get(row.state, ""))
        figures = [self._figure(name, row, now) for name in self._figures]
        if self._is_stacked:
            found = paragraph(self._name(row), self._columns - 2, style=style)
            found = [Text.assemble(marker if place == 0 else "  ", line) for place, line in enumerate(found)]
            found += [Text.assemble(" " * _INDENT, line) for line in self._table.row([*figures, state])]
        else:
            winner = [Cell(text.flat(row.config), "dim")] if self.has_winner else []
            cells = self._table.row([Cell(self._name(row), style), *figures, state, *winner])
            found = [Text.assemble(marker if place == 0 else "  ", line) for place, line in enumerate(cells)]
        if row.failure:
            failure = "red" if row.is_problem else "yellow"
            found += paragraph(row.failure, self._columns, style=failure, indent=_INDENT, limit=2)
        return found

    def _figure(self, column: str, row: BoardRow, now: float) -> Cell:
        match column:
            case "saved":
                return Cell(_ago(row.saved_at, now))
            case "before":
                return Cell(text.by_objective(row.objective, row.before))
            case "now":
                return Cell(text.by_objective(row.objective, row.current))
        return changed(row)

    def _name(self, row: BoardRow) -> str:
        project = row.kernel.rpartition(":")[0]
        named = f"{project}:{label(row)}" if row.name in self._full and project else label(row)
        return f"{named} on {row.device}" if on_many(self._board, row) else named
