"""Lines of styled text that fit a width: words wrap and are never broken, columns stand below each other. No IO."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.text import Text

GAP = 2
"""Spaces between two columns."""

MIN_WORD = 12
"""Narrower columns are no use to anyone: a knob with its value is as wide."""

_WORD = re.compile(r"[(±-]?\d\S* (?:ns|µs|ms|s|min|h|%|×|[KMG]iB|GB/s|TFLOP/s|J)[,;:)]*(?!\S)|\S+")
"""A figure with its unit, or any other word."""

_BARS = "▁▂▃▄▅▆▇█"
_ELLIPSIS = "…"


def shortened(word: str, width: int) -> str:
    """Return a word that fits: of a longer one the first third and the end, because paths differ at their ends."""
    if cell_len(word) <= width:
        return word
    head = set_cell_size(word, max(0, (width - 1) // 3))
    rest = max(0, width - 1 - cell_len(head))
    tail = word[len(word) - rest :] if rest else ""
    while cell_len(tail) > rest:
        tail = tail[1:]
    return f"{head}{_ELLIPSIS}{tail}"


def wrapped(words: str, width: int, limit: int | None = None) -> list[str]:
    """Return words as lines of a width, a figure beside its unit; the last of ``limit`` lines ends with an ellipsis if
    there is more.
    """
    width = max(1, width)
    lines: list[str] = []
    line = ""
    for word in _WORD.findall(words):
        joined = f"{line} {word}" if line else word
        if line and cell_len(joined) > width:
            lines.append(line)
            joined = word
        line = shortened(joined, width)
    lines.append(line)
    if limit is None or len(lines) <= limit:
        return lines
    last = lines[limit - 1]
    while last and cell_len(last) + 2 > width:
        last = last.rpartition(" ")[0]
    return [*lines[: limit - 1], f"{last} {_ELLIPSIS}".lstrip()]


def verbatim(message: str, width: int) -> list[str]:
    """Return another program's lines: spaces and carets stay where they are; only lines that do not fit wrap."""
    lines: list[str] = []
    for line in message.splitlines():
        if cell_len(line) <= width:
            lines.append(line)
            continue
        indent = min(len(line) - len(line.lstrip()), width // 2)
        first, *rest = wrapped(line, width - indent - GAP)
        lines.append(" " * indent + first)
        lines += [" " * (indent + GAP) + part for part in rest]
    return lines


def paragraph(words: str, width: int, *, style: str = "", indent: int = 0, limit: int | None = None) -> list[Text]:
    """Return words as styled lines behind an indent."""
    return [Text(" " * indent + line, style=style) for line in wrapped(words, width - indent, limit)]


def facts(named: Iterable[tuple[str, str]], width: int, *, limit: int | None = None) -> list[Text]:
    """Return names and values below each other; a value that wraps stays behind its name."""
    known = [(name, value) for name, value in named if value]
    margin = max((cell_len(name) for name, _ in known), default=0) + GAP
    lines: list[Text] = []
    for name, value in known:
        for place, part in enumerate(wrapped(value, width - margin, limit)):
            label = name if place == 0 else ""
            lines.append(Text.assemble((f"{label:<{margin}}", "dim"), part))
    return lines


def ends(left: str, right: str, width: int, *, left_style: str = "bold", right_style: str = "dim") -> list[Text]:
    """Return one line with a text at either end, or two if they do not fit beside each other."""
    space = width - cell_len(left) - cell_len(right)
    if not right or space >= GAP:
        return [Text.assemble((shortened(left, width), left_style), " " * max(0, space), (right, right_style))]
    return [*paragraph(left, width, style=left_style, limit=2), *paragraph(right, width, style=right_style, limit=2)]


def rule(width: int, words: str = "") -> Text:
    """Return a line across the screen, with words near its right end."""
    said = f" {shortened(words, width - 4)} " if words and width > MIN_WORD else ""
    line = max(0, width - cell_len(said) - 2) * "─"
    return Text(f"{line}{said}──"[: max(1, width)], style="dim")


def sparkline(values: Sequence[float], width: int) -> str:
    """Lay values out as a row of bars, on a logarithmic scale; of more than fit, each bar is the least of its share."""
    positive = [value for value in values if value > 0]
    if not positive or width < 1:
        return ""
    columns = min(width, len(positive))
    shares = [
        positive[place * len(positive) // columns : (place + 1) * len(positive) // columns] for place in range(columns)
    ]
    least = [min(share) for share in shares]
    low, high = math.log(min(least)), math.log(max(least))
    if high - low < 1e-9:
        return _BARS[0] * columns
    top = len(_BARS) - 1
    return "".join(_BARS[round((math.log(value) - low) / (high - low) * top)] for value in least)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; one without a ``width`` is elastic, and its cells wrap."""

    title: str
    width: int | None = None
    is_right: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its words and their style."""

    words: str
    style: str = ""


class TableLayout:
    """Widths of columns on a line; elastic ones share the rest of it, as much as their ``wishes`` have in common."""

    def __init__(self, columns: Sequence[Column], wishes: Sequence[int], width: int) -> None:
        self._columns = columns
        fixed = sum(column.width or 0 for column in columns) + GAP * (len(columns) - 1)
        self._widths = _shared([column.width for column in columns], wishes, width - fixed)

    def heading(self) -> Text:
        """Return the line of titles, laid out as the rows are."""
        return self.row([Cell(column.title, "bold") for column in self._columns], limit=1)[0]

    def row(self, cells: Sequence[Cell], limit: int | None = None) -> list[Text]:
        """Return the lines that one row of the table takes."""
        parts = [
            wrapped(cell.words, width, limit) if column.width is None else [shortened(cell.words, width)]
            for column, cell, width in zip(self._columns, cells, self._widths, strict=True)
        ]
        lines = []
        for number in range(max(map(len, parts))):
            line = Text()
            for place, (column, cell, width) in enumerate(zip(self._columns, cells, self._widths, strict=True)):
                word = parts[place][number] if number < len(parts[place]) else ""
                spaces = " " * max(0, width - cell_len(word))
                line.append(" " * GAP if place else "")
                line.append(spaces if column.is_right else "")
                line.append(word, style=cell.style)
                line.append("" if column.is_right else spaces)
            line.rstrip()
            lines.append(line)
        return lines


def _shared(widths: Sequence[int | None], wishes: Sequence[int], space: int) -> list[int]:
    """Return every column's width: elastic ones get what they wish, or else shares in proportion to their wishes."""
    elastic = [place for place, width in enumerate(widths) if width is None]
    wanted = {place: max(MIN_WORD, wish) for place, wish in zip(elastic, wishes, strict=True)}
    total = sum(wanted.values())
    if total > space:
        floor = min(MIN_WORD, max(1, space // max(1, len(wanted))))
        spare = max(0, space - floor * len(wanted))
        beyond = max(1, sum(wish - floor for wish in wanted.values()))
        wanted = {place: floor + (wish - floor) * spare // beyond for place, wish in wanted.items()}
    return [wanted[place] if width is None else width for place, width in enumerate(widths)]
