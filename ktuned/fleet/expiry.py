"""The deadline of the phase that a worker is in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Expiry:
    """One phase's deadline at a time, on the loop's clock; ``wake`` is called when it is over."""

    __slots__ = ("_loop", "_timer", "_wake", "deadline_s", "is_over")

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._timer: asyncio.TimerHandle | None = None
        self.deadline_s = 0.0
        self.is_over = False

    def begin(self, deadline_s: float) -> None:
        """Begin a phase, and end the one before it."""
        self.end()
        self.deadline_s = deadline_s
        self.is_over = False
        self._timer = self._loop.call_later(deadline_s, self._expire)

    def end(self) -> None:
        """Watch no deadline any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self.is_over = True
        self._wake()
