"""Terminal input key by key; the terminal is restored at the end, on an error, and while suspended."""

from __future__ import annotations

import os
import termios
import tty
from types import TracebackType
from typing import Self

READ_BYTES = 1024
GONE = "gone"
"""Key that stands for the end of the terminal."""

_SEQUENCES = {
    b"A": "up",
    b"B": "down",
    b"C": "right",
    b"D": "left",
    b"H": "home",
    b"F": "end",
    b"1~": "home",
    b"4~": "end",
    b"7~": "home",
    b"8~": "end",
    b"5~": "pageup",
    b"6~": "pagedown",
}
_CONTROLS = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace"}
_ESCAPE = 0x1B


def decode(data: bytes) -> list[str]:
    """Return the keys in a terminal's bytes: characters, and names such as ``up``, ``enter``, ``escape``.

    Other keys are dropped. A sequence arrives in one piece, because terminals write it at once.
    """
    keys = []
    while data:
        if data[0] == _ESCAPE:
            introducer, rest = data[1:2], data[2:]
            if introducer not in (b"[", b"O"):
                # The key itself comes alone; before another character it is that one with Alt.
                keys.append("" if introducer else "escape")
                data = data[1:]
                continue
            # CSI and SS3 sequences end with their first byte from @ to ~ (ECMA-48, 5.4).
            length = next((index for index, byte in enumerate(rest) if 0x40 <= byte <= 0x7E), len(rest))
            keys.append(_SEQUENCES.get(rest[: length + 1], ""))
            data = rest[length + 1 :]
        else:
            end = data.find(_ESCAPE)
            plain, data = (data, b"") if end < 0 else (data[:end], data[end:])
            letters = plain.decode("utf-8", "ignore")
            keys += [_CONTROLS.get(letter, letter if letter.isprintable() else "") for letter in letters]
    return [key for key in keys if key]


class Keyboard:
    """Terminal in cbreak mode: keys arrive as they are pressed, without echo; Ctrl-C and Ctrl-Z work as usual."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._found: list[object] | None = None

    def take(self) -> None:
        """Switch to cbreak mode."""
        if self._found is None:
            self._found = termios.tcgetattr(self.descriptor)
            tty.setcbreak(self.descriptor, termios.TCSANOW)

    def give_back(self) -> None:
        """Restore the terminal."""
        if self._found is not None:
            found, self._found = self._found, None
            termios.tcsetattr(self.descriptor, termios.TCSANOW, found)  # type: ignore[arg-type]

    def read(self) -> list[str]:
        """Return the pressed keys; :data:`GONE` if the terminal is gone."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except OSError:
            data = b""
        return decode(data) if data else [GONE]

    def __enter__(self) -> Self:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.give_back()
        except termios.error:
            # The terminal itself is gone.
            return
