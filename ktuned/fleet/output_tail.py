"""The last bytes that a process has printed."""

from __future__ import annotations

import os

import msgspec

TAIL_BYTES = 16 * 1024
"""How much of a worker's output is kept, counted from its end: enough for a traceback or a compiler's errors."""

_READ_BYTES = 1 << 16
_PIPEFULS = 4


class OutputTail(msgspec.Struct):
    """The last bytes of a stream; its writer never blocks, however much it writes."""

    fd: int
    tail: bytearray = msgspec.field(default_factory=bytearray)

    def read_available(self) -> bool:
        """Read once from the stream; return False if nothing was there, or the stream has ended."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return False
        self.tail += data
        if len(self.tail) > 2 * TAIL_BYTES:
            del self.tail[:-TAIL_BYTES]
        return bool(data)

    def read_rest(self) -> None:
        """Read what is left in the pipe, but only so much, because code may print without end."""
        for _ in range(_PIPEFULS):
            if not self.read_available():
                break

    def take_text(self) -> str:
        """Return the tail as text and clear it."""
        if not self.tail:
            return ""
        text = bytes(self.tail[-TAIL_BYTES:]).decode(errors="replace")
        self.tail.clear()
        return text
