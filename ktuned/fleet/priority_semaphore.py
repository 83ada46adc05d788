"""Priority semaphore with ageing, for compile slots and for devices.

The caller gives the ranks of jobs; without them all are equal, and the first come is the first served.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import anyio
import msgspec
from anyio.lowlevel import checkpoint_if_cancelled

LEVEL = 100
"""Distance of two levels of priority (:class:`~ktuned.model.Priority`), and the lift of one step of age."""

NO_JOB = 0
"""Number of no job, by which ktuned's own work waits for a turn; its rank is the lowest."""

TURN_AGE_S = 20.0
"""Waiting time that counts as a level: some compiles of more important jobs."""


def aged(level: int, waited_s: float, step_s: float) -> int:
    """Return the rank of something that has waited so long: a level more for each ``step_s``, without an end.

    Levels are bounded and ranks are not, so that nothing waits forever behind what is more important.
    """
    return level + LEVEL * int(max(0.0, waited_s) // step_s)


class _Waiter(msgspec.Struct, eq=False):
    job: int
    number: int
    since: float
    turn: anyio.Event = msgspec.field(default_factory=anyio.Event)


RankOf = Callable[[int], int]
"""Returns the rank of a job now."""


class Turn:
    """One that is held; given back at the end of its block, or before."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def give_back(self) -> None:
        """Let the next one have it; once more is no harm."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


class Turns:
    """Lets ``total_tokens`` hold a turn at once; the next one goes to the highest rank, then to the first come.

    ``rank_of`` gives a job's level, and is asked at the moment of the choice: it may have changed since it waits.
    ``most_inside_of`` says for so many turns how many may be in their blocks at once, those included who gave theirs
    back.
    """

    def __init__(
        self,
        total_tokens: int = 1,
        *,
        rank_of: RankOf = lambda job: 0,
        most_inside_of: Callable[[int], int] = lambda total: total,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._rank_of = rank_of
        self._most_inside_of = most_inside_of
        self._inside = 0
        self.borrowed_tokens = 0
        self._total = total_tokens
        self._clock = clock
        self._waiting: list[_Waiter] = []
        self._count = 0

    @property
    def total_tokens(self) -> int:
        """The number of turns that may be held at once; lowering it takes no turn away."""
        return self._total

    @total_tokens.setter
    def total_tokens(self, total: int) -> None:
        self._total = total
        self._hand_out()

    @property
    def most_inside(self) -> int:
        """The number of those that may be in their blocks at once."""
        return self._most_inside_of(self._total)

    @property
    def is_full(self) -> bool:
        """True if the next caller has to wait."""
        return self.borrowed_tokens >= self._total or self._inside >= self.most_inside

    @property
    def waiting(self) -> list[int]:
        """The jobs that wait, in the order in which they would be served now."""
        return [waiting.job for waiting in sorted(self._waiting, key=self._order)]

    @asynccontextmanager
    async def hold(self, job: int) -> AsyncIterator[Turn]:
        """Wait for a turn, and hold it for the length of the block at most."""
        await checkpoint_if_cancelled()
        await self._take(job)
        turn = Turn(self._give_back)
        try:
            yield turn
        finally:
            turn.give_back()
            self._leave()

    async def _take(self, job: int) -> None:
        if not self.is_full and not self._waiting:
            self._enter()
            return
        self._count += 1
        waiting = _Waiter(job, self._count, self._clock())
        self._waiting.append(waiting)
        try:
            await waiting.turn.wait()
        except BaseException:
            if waiting in self._waiting:
                self._waiting.remove(waiting)
            else:
                # The turn came together with the cancellation: it is the next one's.
                self._give_back()
                self._leave()
            raise

    def _enter(self) -> None:
        self.borrowed_tokens += 1
        self._inside += 1

    def _leave(self) -> None:
        self._inside -= 1
        self._hand_out()

    def _give_back(self) -> None:
        self.borrowed_tokens -= 1
        self._hand_out()

    def _hand_out(self) -> None:
        while self._waiting and not self.is_full:
            first = min(self._waiting, key=self._order)
            self._waiting.remove(first)
            self._enter()
            first.turn.set()

    def _order(self, waiting: _Waiter) -> tuple[int, int]:
        return -aged(self._rank_of(waiting.job), self._clock() - waiting.since, TURN_AGE_S), waiting.number
