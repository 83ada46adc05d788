"""A terminal that is read key by key, and left as it was found: at the end, on an error, and while it is suspended."""

from __future__ import annotations

import os
import termios
import tty
from types import TracebackType
from typing import Self

READ_BYTES = 1024
_ARROWS = {b"A": "up", b"B": "down"}
_ESCAPE = 0x1B


def decode(data: bytes) -> list[str]:
    """Return the keys in what a terminal sent: characters as they are, arrows as ``up`` and ``down``, no others.

    A sequence comes in one piece: terminals write it at once.
    """
    keys = []
    while data:
        if data[0] == _ESCAPE:
            introducer, rest = data[1:2], data[2:]
            if introducer not in (b"[", b"O"):
                data = data[1:]
                continue
            # CSI and SS3 sequences end with their first byte from @ on (ECMA-48, 5.4).
            length = next((index for index, byte in enumerate(rest) if 0x40 <= byte <= 0x7E), len(rest))
            keys.append(_ARROWS.get(rest[: length + 1], ""))
            data = rest[length + 1 :]
        else:
            letter = data[:1].decode("ascii", "ignore")
            keys.append(letter if letter.isprintable() else "")
            data = data[1:]
    return [key for key in keys if key]


class Keyboard:
    """A terminal whose keys come as they are pressed and are not shown; Ctrl-C and Ctrl-Z work as ever."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._found: list[object] | None = None

    def take(self) -> None:
        """Have keys come one by one."""
        if self._found is None:
            self._found = termios.tcgetattr(self.descriptor)
            tty.setcbreak(self.descriptor, termios.TCSANOW)

    def give_back(self) -> None:
        """Leave the terminal as it was found."""
        if self._found is not None:
            found, self._found = self._found, None
            termios.tcsetattr(self.descriptor, termios.TCSANOW, found)  # type: ignore[arg-type]

    def read(self) -> list[str]:
        """Return the keys that were pressed; ``q`` when there is no terminal any more."""
        try:
            data = os.read(self.descriptor, READ_BYTES)
        except OSError:
            data = b""
        return decode(data) if data else ["q"]

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
