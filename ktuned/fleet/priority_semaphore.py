"""Priority semaphore with ageing, for compile slots and for devices.

A *turn* goes to the waiting job of the highest rank, then to the first come. Two things are unlike a plain semaphore:

- *Ranks are asked at each choice*, not when a job begins to wait: a person may raise its priority meanwhile. Each
  :data:`TURN_AGE_S` of waiting counts as a level more, without an end, so nothing waits forever.
- *A turn may be given back before its block ends* (:meth:`Turn.give_back`): a compile slot is free as soon as the
  compiler is done, while the worker still writes the artifact. The number of those inside their blocks is bounded as
  well (``most_inside_of``), or work that has lost its turn would pile up.

A turn that was handed to a job as this was cancelled goes to the next one.
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
"""Waiting time in seconds that counts as a level: a few compiles of more important jobs."""


def age_rank(level: int, waited_s: float, step_s: float) -> int:
    """Return the rank of something that has waited: a level more for each ``step_s`` seconds, without an end.

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
    """A turn that is held, until the end of its block or until it is given back before."""

    def __init__(self, give_back: Callable[[], None]) -> None:
        self._give_back: Callable[[], None] | None = give_back

    def give_back(self) -> None:
        """Let the next job have the turn. A second call does nothing."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


class Turns:
    """The turns of a device, or of a machine's compile slots.

    Args:
        total_tokens: Turns that may be held at once.
        rank_of: Returns a job's level; all are equal without it.
        most_inside_of: Returns, for a number of turns, how many jobs may be in their blocks at once. This includes
            those that have given their turn back.
        clock: The time in seconds, which only rises.
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
        self._hand_out_turns()

    @property
    def most_inside(self) -> int:
        """The number of jobs that may be in their blocks at once."""
        return self._most_inside_of(self._total)

    @property
    def is_full(self) -> bool:
        """True if the next caller has to wait."""
        return self.borrowed_tokens >= self._total or self._inside >= self.most_inside

    @property
    def waiting(self) -> list[int]:
        """The jobs that wait, in the order in which they would be served now."""
        return [waiting.job for waiting in sorted(self._waiting, key=self._serving_order)]

    @asynccontextmanager
    async def hold_turn(self, job: int) -> AsyncIterator[Turn]:
        """Wait for a turn, and hold it for the length of the block at most."""
        await checkpoint_if_cancelled()
        await self._wait_for_turn(job)
        turn = Turn(self._end_turn)
        try:
            yield turn
        finally:
            turn.give_back()
            self._leave_block()

    async def _wait_for_turn(self, job: int) -> None:
        if not self.is_full and not self._waiting:
            self._begin_turn()
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
                self._end_turn()
                self._leave_block()
            raise

    def _begin_turn(self) -> None:
        self.borrowed_tokens += 1
        self._inside += 1

    def _leave_block(self) -> None:
        self._inside -= 1
        self._hand_out_turns()

    def _end_turn(self) -> None:
        self.borrowed_tokens -= 1
        self._hand_out_turns()

    def _hand_out_turns(self) -> None:
        while self._waiting and not self.is_full:
            first = min(self._waiting, key=self._serving_order)
            self._waiting.remove(first)
            self._begin_turn()
            first.turn.set()

    def _serving_order(self, waiting: _Waiter) -> tuple[int, int]:
        return -age_rank(self._rank_of(waiting.job), self._clock() - waiting.since, TURN_AGE_S), waiting.number
