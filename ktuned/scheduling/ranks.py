"""Ranks of jobs: importance, and the time that they have waited. No IO.

A job's *level* follows from the reason why it is wanted: a client waits for it, its file was just saved, lookups asked
for it. Its *rank* rises above the level while it waits, without a limit, so that every job gets its turn in the end. It
keeps the gained rank for the length of that turn.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from ktuned.fleet import age_rank
from ktuned.protocol import Priority

AGE_S = 600.0
"""A job that has waited this long gains one level. A job of default size takes some minutes."""

TURN_S = 60.0
"""For this long a job keeps the rank that it gained by waiting, so that no newcomer interrupts it. This is enough for
some compiles and measurements, whose results are kept when it makes way again."""

HALF_LIFE_S = 300.0
"""After this long a lookup counts half. So if two jobs had many lookups, the one with recent lookups goes first."""


class Standing(msgspec.Struct):
    """The standing of a job. Times are in seconds of the queue's clock.

    Attributes:
        base: The highest priority of its requests.
        since: When its wait began.
        is_fixed: Whether the priority also holds while clients wait for the job.
        waiters: The clients that wait for it.
        began: When its turn began; ``None`` while it waits.
    """

    base: int
    since: float
    is_fixed: bool = False
    waiters: set[Hashable] = set()
    began: float | None = None
    _lift: int = 0
    _heat: float = 0.0
    _heated: float = 0.0

    @property
    def level(self) -> int:
        """The importance of the job now. It falls back to ``base`` when the last client leaves."""
        return max(self.base, Priority.WAITED_FOR) if self.waiters and not self.is_fixed else self.base

    def compute_rank(self, now: float) -> int:
        """Return the level, lifted by the wait: the present one, or during a turn the wait before it."""
        if self.began is None:
            return age_rank(self.level, now - self.since, AGE_S)
        return self.level + self._lift if now - self.began < TURN_S else self.level

    def raise_to(self, base: int, *, is_fixed: bool = False) -> bool:
        """Raise the priority to another request's if that is higher; return whether it was."""
        self.is_fixed = self.is_fixed and is_fixed
        if base <= self.base:
            return False
        self.base = base
        return True

    def count_lookups(self, now: float, times: int = 1) -> None:
        """Count lookups that would have been served better if the job were done."""
        self._heat, self._heated = self.compute_lookup_heat(now) + times, now

    def compute_lookup_heat(self, now: float) -> float:
        """Return the number of lookups, each of which counts half after :data:`HALF_LIFE_S`."""
        return self._heat * float(0.5 ** (max(0.0, now - self._heated) / HALF_LIFE_S)) if self._heat else 0.0

    def begin_turn(self, now: float) -> None:
        """Start the job's turn, for which it keeps the rank that it gained by waiting."""
        self._lift, self.began = self.compute_rank(now) - self.level, now

    def make_way(self, now: float) -> None:
        """End the turn; the job waits again. Its wait starts anew only if the turn lasted :data:`TURN_S`."""
        if self.began is not None and now - self.began >= TURN_S:
            self.since = now
        self.began = None

    def begin_wait(self, now: float) -> None:
        """Start the wait anew: time in which the job could not have run does not count."""
        self.since = now
