from __future__ import annotations

import os
from collections.abc import Iterator
from io import FileIO, TextIOWrapper

import pytest
from rich.console import Console
from rich.text import Text

from ktuned.cli.watch.painter import Painter
from tests.e2e.terminal import Terminal

COLUMNS, LINES = 20, 4


class Paper:
    """A painter, what it has written, and the screen that this makes."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self._file = TextIOWrapper(FileIO(writer, "w", closefd=False), write_through=True)
        self.painter = Painter(Console(file=self._file, force_terminal=True, width=COLUMNS, color_system="truecolor"))
        self.terminal = Terminal(COLUMNS, LINES)

    def draw(self, *lines: str, size: tuple[int, int] = (COLUMNS, LINES)) -> bytes:
        """Draw lines and return what that wrote."""
        self.painter.draw([Text(line, style="red") for line in lines], size)
        written = os.read(self._reader, 65536)
        self.terminal.feed(written)
        return written


@pytest.fixture
def paper() -> Iterator[Paper]:
    """A pipe in place of a terminal."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    yield Paper(reader, writer)
    os.close(reader)
    os.close(writer)


def test_only_changed_lines_are_written(paper: Paper) -> None:
    """In one synchronised piece, without clearing the screen: nothing flickers."""
    first = paper.draw("title", "one", "two", "keys")
    assert first.startswith(b"\x1b[?2026h")
    assert first.endswith(b"\x1b[?2026l")
    assert b"\x1b[2J" not in first
    second = paper.draw("title", "one", "three", "keys")
    assert b"three" in second
    assert not any(word in second for word in (b"title", b"one", b"keys", b"\x1b[J"))
    assert paper.terminal.picture == "title\none\nthree\nkeys"
    with pytest.raises(BlockingIOError):
        paper.draw("title", "one", "three", "keys")


def test_full_lines_keep_their_last_letter(paper: Paper) -> None:
    """Erasing the rest of a line that has none would take it; a shorter line leaves nothing of the one before."""
    paper.draw("x" * COLUMNS, "y" * (COLUMNS - 1))
    assert paper.terminal.picture.splitlines()[:2] == ["x" * COLUMNS, "y" * (COLUMNS - 1)]
    paper.draw("short", "")
    assert paper.terminal.picture.strip() == "short"


def test_a_terminal_that_was_resized_is_drawn_whole(paper: Paper) -> None:
    """It may have cut or moved its lines; fewer lines leave none behind."""
    paper.draw("one", "two", "three")
    again = paper.draw("one", "two", "three", size=(COLUMNS, 3))
    assert b"one" in again
    paper.draw("one", size=(COLUMNS, 3))
    assert paper.terminal.picture.strip() == "one"


def test_a_terminal_that_is_gone_is_no_error() -> None:
    """The keyboard notices, and quits."""
    reader, writer = os.pipe()
    paper = Paper(reader, writer)
    os.close(reader)
    paper.painter.enter()
    paper.painter.draw([Text("one")], (COLUMNS, LINES))
    paper.painter.leave()
    os.close(writer)
