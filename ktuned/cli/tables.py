"""Tables that fit a terminal: cells wrap between words, and rows with too many columns become records. No IO.

Nothing is cut and no word is broken, so that paths and messages can be copied.
"""

from __future__ import annotations

from collections.abc import Sequence

GAP = 2
"""Spaces between columns."""


def format_table(rows: Sequence[Sequence[str]], is_figure: Sequence[bool], width: int | None = None) -> list[str]:
    """Return the lines of a table whose first row is its heading; ``width`` is the terminal's width, if any."""
    natural = [max(map(len, column)) for column in zip(*rows, strict=True)]
    over = sum(natural) + GAP * (len(natural) - 1) - (width or 0)
    if width is None or over <= 0:
        return [_format_line(row, natural, is_figure) for row in rows]
    least = [
        size if figure else max(len(word) for cell in column for word in (cell.split() or [""]))
        for size, figure, column in zip(natural, is_figure, zip(*rows, strict=True), strict=True)
    ]
    spare = sum(natural) - sum(least)
    if spare < over:
        return _format_records(rows, width)
    widths = [size - -(-(size - low) * over // spare) for size, low in zip(natural, least, strict=True)]
    lines: list[str] = []
    for row in rows:
        parts = [_wrap_cell(cell, size) for cell, size in zip(row, widths, strict=True)]
        for place in range(max(map(len, parts))):
            cells = [part[place] if place < len(part) else "" for part in parts]
            lines.append(_format_line(cells, widths, is_figure))
    return lines


def split_common_columns(
    rows: Sequence[Sequence[str]], is_figure: Sequence[bool], width: int
) -> tuple[list[tuple[str, str]], list[tuple[str, ...]], list[bool]]:
    """Return the columns that are equal in all rows, as names and values, and the table without them.

    They are taken out, the broadest first, until the table fits ``width``. The first column always stays.
    """
    columns = list(zip(*rows, strict=True))
    equal = [place for place, column in enumerate(columns) if place and len(set(column[1:])) == 1]
    kept = list(range(len(columns)))
    for place in sorted(equal, key=lambda place: -max(map(len, columns[place]))):
        if sum(max(map(len, columns[one])) + GAP for one in kept) - GAP <= width:
            break
        kept.remove(place)
    common = [(columns[place][0], columns[place][1]) for place in equal if place not in kept]
    return common, [tuple(row[place] for place in kept) for row in rows], [is_figure[place] for place in kept]


def _format_line(cells: Sequence[str], widths: Sequence[int], is_figure: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if figure else cell.ljust(width)
        for cell, width, figure in zip(cells, widths, is_figure, strict=True)
    )
    return (" " * GAP).join(padded).rstrip()


def _format_records(rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return each row as lines of a column's name and the value; empty values are left out."""
    heading, *rest = rows
    margin = max(map(len, heading)) + GAP
    lines: list[str] = []
    for row in rest:
        lines += [""] if lines else []
        for name, cell in zip(heading, row, strict=True):
            parts = _wrap_cell(cell, max(1, width - margin)) if cell not in ("", "–") else []
            lines += [f"{name if place == 0 else '':<{margin}}{part}" for place, part in enumerate(parts)]
    return lines or [_format_line(heading, [len(name) for name in heading], [False] * len(heading))]


def _wrap_cell(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    lines: list[str] = []
    for word in cell.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]
