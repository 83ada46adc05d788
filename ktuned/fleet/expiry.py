"""The deadline of the phase that a worker is in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Expiry:
    """One phase's deadline at a time, on the loop's clock; ``wake`` is called when it is over.

    A trial has half a dozen phases, which end in milliseconds and have seconds: the timer is left to run, and looks
    when it fires whether a later deadline holds by now. Only a nearer one needs another timer.
    """

    __slots__ = ("_ends_at", "_fires_at", "_loop", "_timer", "_wake", "deadline_s", "is_over")

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop = loop
        self._wake = wake
        self._timer: asyncio.Handle | None = None
        # What the timer was asked for: uvloop's own times are rounded, and a timer that is due at once has none.
        self._fires_at = 0.0
        self._ends_at: float | None = None
        self.deadline_s = 0.0
        self.is_over = False

    def begin(self, deadline_s: float) -> None:
        """Begin a phase, and end the one before it."""
        self.deadline_s = deadline_s
        self.is_over = False
        self._ends_at = self._loop.time() + deadline_s
        if self._timer is None or self._fires_at > self._ends_at:
            self.close()
            self._set_timer(self._ends_at)

    def end(self) -> None:
        """Watch no deadline any more."""
        self._ends_at = None

    def close(self) -> None:
        """Leave no timer behind."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, at: float) -> None:
        self._fires_at = at
        self._timer = self._loop.call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._ends_at is None:
            return
        if self._ends_at > self._fires_at:
            self._set_timer(self._ends_at)
            return
        self.is_over = True
        self._wake()
