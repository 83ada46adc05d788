"""Output of the live screen: only lines that changed are written, in one piece, so that nothing flickers."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console, ConsoleDimensions
from rich.text import Text

from ktuned.model import show_controls_in_place

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The alternate screen, no cursor, and no line that runs into the next one while the terminal is resized."""

_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"

_BEGIN, _END = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronised output: terminals that know it show a picture as a whole, and others ignore it."""


class Painter:
    """Draws pictures of lines on a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown: list[str] = []
        self._size = (0, 0)

    def enter(self) -> None:
        """Switch to a screen of our own."""
        self._shown = []
        self._write(_ENTER)

    def leave(self) -> None:
        """Return to the screen that was there before."""
        self._write(_LEAVE)

    def draw(self, lines: Sequence[Text], size: tuple[int, int]) -> None:
        """Show these lines; ``size`` is the terminal's, in columns and lines."""
        if size != self._size:
            # A terminal that was resized may have moved or cut its lines.
            self._size, self._shown = size, []
            # Or it keeps to a width that COLUMNS says.
            self._console.size = ConsoleDimensions(*size)
        rendered = [self._rendered(line, size[0]) for line in lines[: size[1]]]
        changed = [
            f"\x1b[{place};1H{line}"
            for place, line in enumerate(rendered, 1)
            if place > len(self._shown) or self._shown[place - 1] != line
        ]
        if not self._shown or len(rendered) < len(self._shown):
            below = len(rendered) + 1
            changed += [f"\x1b[{below};1H\x1b[J"] if below <= size[1] else []
        self._shown = rendered
        if changed:
            self._write(f"{_BEGIN}{''.join(changed)}{_END}")

    def _rendered(self, line: Text, columns: int) -> str:
        shown = show_controls_in_place(line.plain)
        if shown != line.plain:
            line = line.copy()
            line.plain = shown
        with self._console.capture() as captured:
            self._console.print(line, end="", no_wrap=True, overflow="crop", soft_wrap=True)
        # Behind a full line the cursor stands on its last letter, which must not be erased.
        return captured.get() + ("\x1b[K" if line.cell_len < columns else "")

    def _write(self, words: str) -> None:
        """Write all of it; a terminal that is gone gets nothing, and its keyboard says so."""
        try:
            self._console.file.flush()
            data = words.encode(errors="replace")
            while data:
                data = data[os.write(self._console.file.fileno(), data) :]
        except OSError:
            return
