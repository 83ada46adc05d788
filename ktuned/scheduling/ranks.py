"""Ranks of jobs: importance, and age while they wait. No IO.

A job's *level* says why it is wanted: a client waits for it, its file was just saved, lookups asked for it. Its *rank*
rises with the time that it waits, without an end, so that it gets a turn at last whatever else comes; for the
length of that turn it keeps what it has gained.
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from ktuned.fleet import age_rank
from ktuned.model import Priority

AGE_S = 600.0
"""Wait that counts as a level: a job of default size takes some minutes."""

TURN_S = 60.0
"""Turn of a job that has waited its way up, which no newcomer cuts short: time for some compiles and measurements,
which stay known when it makes way again."""

HALF_LIFE_S = 300.0
"""After this long a lookup counts half: of two jobs that many asked for, the one that is asked for now goes first."""


class Standing(msgspec.Struct):
    """The standing of a job; ``base`` is the priority of its requests, times are a clock's seconds.

    ``is_fixed`` says that the request gave a priority, which then holds while clients wait, too.
    """

    base: int
    since: float
    is_fixed: bool = False
    waiters: set[Hashable] = msgspec.field(default_factory=set)
    began: float | None = None
    _lift: int = 0
    _heat: float = 0.0
    _heated: float = 0.0

    @property
    def level(self) -> int:
        """The importance of the job now; it falls back when its last client leaves."""
        return max(self.base, Priority.WAITED_FOR) if self.waiters and not self.is_fixed else self.base

    def compute_rank(self, now: float) -> int:
        """Return the level, lifted by how long the job waits; for one that works, by how long it had waited."""
        if self.began is None:
            return age_rank(self.level, now - self.since, AGE_S)
        return self.level + self._lift if now - self.began < TURN_S else self.level

    def raise_to(self, base: int, *, is_fixed: bool = False) -> bool:
        """Raise the level to a further request's; return whether that was higher. Never lowers it."""
        self.is_fixed = self.is_fixed and is_fixed
        if base <= self.base:
            return False
        self.base = base
        return True

    def count_lookups(self, now: float, times: int = 1) -> None:
        """Count lookups that would have been served better if the job were done."""
        self._heat, self._heated = self.compute_lookup_heat(now) + times, now

    def compute_lookup_heat(self, now: float) -> float:
        """Return how many lookups asked, each counting half after :data:`HALF_LIFE_S`."""
        return self._heat * float(0.5 ** (max(0.0, now - self._heated) / HALF_LIFE_S)) if self._heat else 0.0

    def begin_turn(self, now: float) -> None:
        """Start the job's turn, for which it keeps what it gained by waiting."""
        self._lift, self.began = self.compute_rank(now) - self.level, now

    def make_way(self, now: float) -> None:
        """End the turn; the job waits again: from now on if it had its turn, else as if it had waited on."""
        if self.began is not None and now - self.began >= TURN_S:
            self.since = now
        self.began = None

    def begin_wait(self, now: float) -> None:
        """Start the wait again: a job that could not have run has not waited."""
        self.since = now
