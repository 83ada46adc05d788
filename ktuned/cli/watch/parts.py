"""Parts of a picture: lines that stay at the top and the bottom, and a body that scrolls between them. No IO."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from ktuned.cli import text
from ktuned.cli.watch.layout import rule

MIN_BODY = 3
"""Lines that the body keeps on a low terminal: less of it is no list."""


@dataclass(frozen=True, slots=True)
class Block:
    """Lines of the body that belong to one entry."""

    lines: Sequence[Text]
    is_problem: bool = False


@dataclass(frozen=True, slots=True)
class Parts:
    """One page. ``heading`` stands above the body, ``keys`` is the last line; ``detail`` gives way first where there is
    little room, then ``notices``, of which the first line stays. ``focus`` is the block that must be seen; without one
    the body begins at ``scroll``. ``thing`` names a block for the line that counts those out of sight, with the
    ``above`` and ``below`` that the body leaves out, and their ``problems``.
    """

    title: Sequence[Text]
    body: Sequence[Block]
    keys: Sequence[Text]
    notices: Sequence[Text] = ()
    heading: Sequence[Text] = ()
    detail: Sequence[Text] = ()
    focus: int | None = None
    scroll: int = 0
    thing: str = "line"
    above: int = 0
    below: int = 0
    problems: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """The lines of a screen, and the greatest ``scroll`` that still changes them."""

    lines: Sequence[Text]
    last_scroll: int = 0


def around(count: int, focus: int | None, height: int) -> range:
    """Return the places of entries that may be seen around the chosen one: each has a line at least."""
    middle = focus or 0
    return range(max(0, middle - height), min(count, middle + height))


def picture(parts: Parts, columns: int, height: int) -> Picture:
    """Return a page as exactly ``height`` lines, none wider than ``columns``."""
    title, keys = list(parts.title), list(parts.keys)
    # Two rules, around the body.
    free = height - len(title) - len(keys) - 2 - len(parts.heading) - MIN_BODY
    notices = list(parts.notices[: max(1, free)])
    detail = list(parts.detail) if len(parts.detail) <= free - len(notices) else []
    room = max(1, height - len(title) - len(notices) - len(parts.heading) - len(detail) - len(keys) - 2)
    lines = [line for block in parts.body for line in block.lines]
    last = max(0, len(lines) - room)
    first = _first(parts, room, last)
    seen = lines[first : first + room]
    seen += [Text("")] * (room - len(seen))
    hidden = rule(columns, _hidden(parts, first, first + room))
    whole = [*title, *notices, rule(columns), *parts.heading, *seen, hidden, *detail, *keys]
    # On a terminal of a few lines: the end of the page is its keys, and the start says where one is.
    fitting = whole if len(whole) <= height else whole[: height - 1] + whole[-1:]
    for line in fitting:
        line.truncate(columns)
    return Picture(fitting, last)


def _first(parts: Parts, room: int, last: int) -> int:
    if parts.focus is None:
        return min(parts.scroll, last)
    above = sum(len(block.lines) for block in parts.body[: parts.focus])
    height = len(parts.body[parts.focus].lines)
    middle = above + height // 2 - room // 2
    # All of the chosen entry if it fits, and as much around it.
    return max(0, min(middle, last, above))


def _hidden(parts: Parts, first: int, end: int) -> str:
    """Return how many blocks stand above and below what is seen, and how many of them are problems."""
    above, below, problems, line = parts.above, parts.below, parts.problems, 0
    for block in parts.body:
        start, line = line, line + len(block.lines)
        if line <= first:
            above += 1
        elif start >= end:
            below += 1
        else:
            continue
        problems += block.is_problem
    said = [
        f"{text.number(count, parts.thing)} {where}" for count, where in ((above, "above"), (below, "below")) if count
    ]
    return ", ".join([*said, *([text.number(problems, "problem") + " among them"] if problems else [])])
