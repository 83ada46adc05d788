"""Priority semaphore with ageing, for compile slots and for devices.

A *turn* goes to the waiting job of the highest rank; among equal ranks, to the one that came first. Two things differ
from a plain semaphore:

- *Ranks are asked at each choice*, not when a job begins to wait, because a person may raise its priority meanwhile.
  Each :data:`TURN_AGE_S` of waiting raises the rank by one level, without a limit, so nothing waits forever.
- *A turn may be given back before its block ends* (:meth:`Turn.give_back`): a compile slot is free as soon as the
  compiler is done, while the worker still writes the artifact. The number of jobs inside their blocks is limited as
  well (``most_inside_of``); otherwise work that has given its turn back would pile up.
- *A turn may be set aside* (:meth:`Turn.set_aside`): a compiler that waits for a pipe or a lock uses no processor. It
  does not count any more, but at most as many turns are aside as there are turns.

If a job is cancelled just as it gets a turn, the turn goes to the next one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic

import anyio
import msgspec
from anyio.lowlevel import checkpoint_if_cancelled

LEVEL = 100
"""Difference in rank between two levels of priority (:class:`~ktuned.protocol.Priority`)."""

NO_JOB = 0
"""The number under which ktuned's own work waits for a turn. No job has this number, and its rank is the lowest."""

TURN_AGE_S = 20.0
"""Seconds of waiting that raise a rank by one level: about a few compiles of more important jobs."""


def age_rank(level: int, waited_s: float, step_s: float) -> int:
    """Return the rank of something that has waited: one level more for each ``step_s`` seconds, without a limit.

    Levels are bounded but ranks are not, so that nothing waits forever behind more important work.
    """
    return level + LEVEL * int(max(0.0, waited_s) // step_s)


class _Waiter(msgspec.Struct, eq=False):
    job: int
    number: int
    since: float
    turn: anyio.Event = msgspec.field(default_factory=anyio.Event)


RankOf = Callable[[int], int]
"""Returns the present rank of a job."""


class Turn:
    """A turn that a job holds until its block ends, or until it gives the turn back."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._is_held = True
        self.is_aside = False

    def give_back(self) -> None:
        """Give the turn to the next job. A second call does nothing."""
        if self._is_held:
            self._is_held = False
            self._turns.end_turn()

    def set_aside(self) -> bool:
        """Give the turn to the next job, and do not count as inside any more; return whether that is possible."""
        if self._is_held and self._turns.begin_aside():
            self.is_aside = True
            self.give_back()
        return self.is_aside


class Turns:
    """The turns of a device, or of a machine's compile slots.

    Args:
        total_tokens: Turns that may be held at once.
        rank_of: Returns a job's rank, to which its age is added; without it, all jobs are equal.
        most_inside_of: Returns, for a number of turns, how many jobs may be in their blocks at once. This includes
            jobs that have given their turn back.
        clock: The time in seconds; must not go backwards.
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
        self._aside = 0
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
        """Wait for a turn, and hold it for the block, or until it is given back."""
        await checkpoint_if_cancelled()
        await self._wait_for_turn(job)
        turn = Turn(self)
        try:
            yield turn
        finally:
            turn.give_back()
            if turn.is_aside:
                self._aside -= 1
            else:
                self._leave_block()

    def begin_aside(self) -> bool:
        """Count one block as aside instead of inside, unless as many are aside as there are turns."""
        if self._aside >= self._total:
            return False
        self._aside += 1
        self._inside -= 1
        return True

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
                # The turn came together with the cancellation, so the next job gets it.
                self.end_turn()
                self._leave_block()
            raise

    def _begin_turn(self) -> None:
        self.borrowed_tokens += 1
        self._inside += 1

    def _leave_block(self) -> None:
        self._inside -= 1
        self._hand_out_turns()

    def end_turn(self) -> None:
        """Hand a turn that has ended to the next job."""
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
