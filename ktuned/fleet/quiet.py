"""The gate between compiles and timing: which may run at once, and on how many cores.

While finalists are measured, no compile runs. While a CPU config that uses several cores is timed, compiles keep to the
cores that are left; where none is, those that run end first, and new ones wait.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

ALL_CORES = 1 << 16
"""More cores than there are: asks for all of them."""

COURTESY_S = 1.0
"""Most that is waited for a timing on all cores by what a person or a lane waits for: twice a batch's time."""

PATIENCE_S = 3.0
"""Most that a timing on several cores waits for an inspection or a worker's start: a constraint may hang for its 30 s.

An import of torch on a busy machine takes less; a timing that is disturbed is repeated.
"""


class QuietGate:
    """Any number may compile at once, or one may have quiet; no compile begins while quiet is waited for.

    ``cores`` is how many the machine has for compiles and timing together; without it no timing waits. ``on_wide`` is
    called with the number of cores that lanes hold beyond their own one, whenever it changes. ``patience_s`` is how
    long a timing waits for what is starting.
    """

    def __init__(
        self,
        cores: int | None = None,
        *,
        on_wide: Callable[[int], None] = lambda cores: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._cores = math.inf if cores is None else cores
        self._on_wide = on_wide
        self._patience_s = patience_s
        self._changed = anyio.Event()
        self._compiling = 0
        self._starting: list[float] = []
        """The end of the patience with each start."""
        self._timed: list[int] = []
        self._waiting_for_quiet = 0
        self._waiting_for_cores = 0
        self._is_quiet = False

    @property
    def state(self) -> str:
        """``quiet``, ``timing`` (on several cores), ``compiling`` or ``open``, for a status."""
        if self._is_quiet:
            return "quiet"
        if self._is_wide:
            return "timing"
        return "compiling" if self._compiling else "open"

    @property
    def waiting_for_cores(self) -> int:
        """The number of timings that wait until they are alone on their cores."""
        return self._waiting_for_cores

    @asynccontextmanager
    async def compiling(self) -> AsyncIterator[None]:
        """Hold the gate for one compile."""
        while not self._may_compile:
            await self._changed.wait()
        self._compiling += 1
        try:
            yield
        finally:
            self._compiling -= 1
            self._notify()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Hold the gate for a worker's start, which waits for nothing; a wide timing waits a while for it."""
        until = anyio.current_time() + self._patience_s
        self._starting.append(until)
        try:
            yield
        finally:
            self._starting.remove(until)
            self._notify()

    @asynccontextmanager
    async def computing(self, patience_s: float = math.inf) -> AsyncIterator[None]:
        """Hold the gate for what computes: a strategy's proposal, an inspection, a lane's opening.

        It begins when no timing has all cores or waits for them, or after ``patience_s``: some trials hang.
        """
        with anyio.move_on_after(patience_s):
            while self._waiting_for_cores or (self._is_wide and sum(self._timed) >= self._cores):
                await self._changed.wait()
        with self.starting():
            yield

    @asynccontextmanager
    async def quiet(self) -> AsyncIterator[None]:
        """Hold the gate alone, once the compiles that run now are over."""
        self._waiting_for_quiet += 1
        try:
            while self._is_quiet or self._compiling:
                await self._changed.wait()
            self._is_quiet = True
        finally:
            self._waiting_for_quiet -= 1
            # If it was cancelled, nothing else wakes the compiles that waited for it.
            self._notify()
        try:
            yield
        finally:
            self._is_quiet = False
            self._notify()

    async def take(self, cores: int) -> int:
        """Hold cores for timing, alone, once they are free; return how many, as many as there are at most.

        One that needs a single core shares the machine with compiles, which keep off its lane's core. It waits for
        nothing but timings and compiles, which end by themselves: no two that hold something wait for each other.
        """
        wanted = int(min(cores, self._cores))
        self._waiting_for_cores += wanted > 1
        try:
            while not self._may_time(wanted):
                with anyio.CancelScope(deadline=self._next_end_of_patience):
                    await self._changed.wait()
            self._timed.append(wanted)
        finally:
            self._waiting_for_cores -= wanted > 1
            self._notify()
        if wanted > 1:
            self._tell_width()
        return wanted

    def give(self, cores: int) -> None:
        """Give back what :meth:`take` returned."""
        self._timed.remove(cores)
        if cores > 1:
            self._tell_width()
        self._notify()

    def _tell_width(self) -> None:
        self._on_wide(sum(self._timed) - len(self._timed))

    @property
    def _is_wide(self) -> bool:
        return any(cores > 1 for cores in self._timed)

    @property
    def _may_compile(self) -> bool:
        if self._is_quiet or self._waiting_for_quiet or self._waiting_for_cores:
            return False
        return not self._is_wide or self._compiling + 1 <= self._cores - sum(self._timed)

    def _may_time(self, wanted: int) -> bool:
        if wanted == 1 and not self._is_wide:
            return True
        # Compiles that run are squeezed onto the cores that are left, if there is one.
        now = anyio.current_time()
        starting = sum(until > now for until in self._starting)
        compiling = min(1, self._compiling + starting) if wanted > 1 else 0
        return wanted + sum(self._timed) + compiling <= self._cores

    @property
    def _next_end_of_patience(self) -> float:
        now = anyio.current_time()
        return min((until for until in self._starting if until > now), default=math.inf)

    def _notify(self) -> None:
        """Wake all waiters, to check again."""
        self._changed.set()
        self._changed = anyio.Event()
