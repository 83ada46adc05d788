"""The deadline of the phase that a worker is in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

LEAST_S = 0.01
"""Interval at which phases are looked at where a deadline is shorter than that."""


class Expiry:
    """One request's deadlines, on the loop's clock.

    ``look`` returns when the present phase is over; ``wake`` is called when it is. Phases follow each other unseen: the
    timer looks often enough that none which has begun since the last look can be over. A trial's end in milliseconds
    and have seconds, so that it seldom fires; it is left to run from one request to the next.
    """

    __slots__ = ("_fires_at", "_is_on", "_least_s", "_look", "_loop", "_timer", "_wake", "is_over")

    def __init__(self, loop: asyncio.AbstractEventLoop, wake: Callable[[], None], look: Callable[[], float]) -> None:
        self._loop = loop
        self._wake = wake
        self._look = look
        self._timer: asyncio.Handle | None = None
        # What the timer was asked for: uvloop's own times are rounded, and a timer that is due at once has none.
        self._fires_at = 0.0
        self._least_s = 0.0
        self._is_on = False
        self.is_over = False

    def begin(self, shortest_s: float) -> None:
        """Watch phases from now on, of which none may be over within less than ``shortest_s``."""
        self._least_s = max(LEAST_S, shortest_s)
        self._is_on = True
        self.is_over = False
        at = self._loop.time() + self._least_s
        if self._timer is None or self._fires_at > at:
            self.close()
            self._set_timer(at)

    def end(self) -> None:
        """Watch no deadline any more."""
        self._is_on = False

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
        if not self._is_on:
            return
        # One that was late has seen all that began until now.
        now = max(self._fires_at, self._loop.time())
        ends_at = self._look()
        if ends_at > now:
            self._set_timer(min(ends_at, now + self._least_s))
            return
        self.is_over = True
        self._wake()
