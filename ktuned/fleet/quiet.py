"""The gate between compiles and timing on one machine: what may run at once, and on how many cores.

Compiles stretch a timing that runs at the same time: they take cores from a CPU config, and memory bandwidth from any
config. Six kinds of work pass the gate:

=================================  ================================================================================
a compile                          waits while it is quiet, and while anything waits for quiet or for several cores;
                                   during a wide timing it needs a core that the timing leaves free; while it uses no
                                   processor it does not count; while it is quiet its worker is paused
a timing on one core               waits only if wide timings leave no core; compilers are pinned to other cores
a *wide* timing, on several cores  waits until its cores are free, and one more if anything compiles or starts
*quiet*, for finalists             pauses the compiles; waits for those that cannot be paused, because their worker is
                                   on another host, or has no request yet
a worker's start                   never waits
computing: an inspection, a        waits for wide timings on all cores, but not longer than its patience
strategy, a lane's opening
=================================  ================================================================================

A timing waits without limit only for other timings and for compiles that run. Both end without needing the gate again,
and nobody waits while holding something, so there is no deadlock. A paused compile goes on as soon as it is not quiet
any more, and a wide timing leaves it a core. A compile may take half a minute, and the rounds of finalists a second: so
they do not wait for it. Starts and computing may hang (a constraint for its
30 s), so a wide timing waits for them only for a limited time: a disturbed timing can be repeated, but the time of an
idle lane is lost.

All waiters check their condition again whenever anything changes. A queue for each kind would need rules about which
one to wake after a cancellation.

*Pace.* A :class:`Pace` lets one task at a time work on results, one step in each round of the event loop. A group of
commits, or one message from another host, wakes dozens of tasks at once. The loop would run them all before it polls
its sockets again, and every lookup would wait for all of them. With a pace, a lookup waits for one of them.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio

from ktuned.fleet.executor import Worker

ALL_CORES = 1 << 16
"""More cores than any machine has: requests all of them."""

COURTESY_S = 1.0
"""How long a timing on all cores may delay work that a person or a lane waits for: twice the time of a batch."""

PATIENCE_S = 3.0
"""How long a wide timing waits for an inspection or a worker's start; importing torch takes less."""


class GatePass:
    """What a compile has while it holds the gate.

    Attributes:
        is_paused: whether its worker is paused.
    """

    def __init__(self, on_change: Callable[[], None]) -> None:
        self.is_paused = False
        self._worker: Worker | None = None
        self._on_change = on_change

    @property
    def can_pause(self) -> bool:
        """True during a request to a worker that can be paused."""
        return self._worker is not None and self._worker.can_pause

    @contextmanager
    def allow_pause(self, worker: Worker) -> Iterator[None]:
        """Let a worker be paused during the block, in which it has a request. It is not paused any more afterwards."""
        self._worker = worker
        self._on_change()
        try:
            yield
        finally:
            self.resume_worker()
            self._worker = None

    def pause_worker(self) -> None:
        """Pause the worker, which must be possible."""
        assert self._worker is not None
        self._worker.pause_work()
        self.is_paused = True

    def resume_worker(self) -> None:
        """Let the worker go on, if it is paused."""
        if self.is_paused:
            assert self._worker is not None
            self._worker.resume_work()
            self.is_paused = False


class QuietGate:
    """Decides which work may proceed.

    Args:
        cores: Cores of the machine for compiles and timing together; without it no timing waits.
        on_extra_cores: Called whenever :attr:`extra_cores` may have changed.
        patience_s: How long a wide timing waits for starts and computing, in seconds.
    """

    def __init__(
        self,
        cores: int | None = None,
        *,
        on_extra_cores: Callable[[], None] = lambda: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._cores = math.inf if cores is None else cores
        self._on_extra_cores = on_extra_cores
        self._patience_s = patience_s
        self._changed = anyio.Event()
        self._compiles: list[GatePass] = []
        self._patience_ends: list[float] = []
        """For each start or computing under way, the time at which wide timings stop waiting for it."""
        self._timing_cores: list[int] = []
        """The cores that each timing under way holds."""
        self._waiting_for_quiet = 0
        self._waiting_for_cores = 0
        """The number of timings on several cores that wait until their cores are free."""
        self._is_quiet = False

    @property
    def state(self) -> str:
        """``quiet``, ``timing`` (on several cores), ``compiling`` or ``open``, for a status."""
        if self._is_quiet:
            return "quiet"
        if self._is_wide:
            return "timing"
        return "compiling" if self._compiles else "open"

    @property
    def extra_cores(self) -> int:
        """The number of cores that timings hold beyond one each."""
        return sum(self._timing_cores) - len(self._timing_cores)

    @asynccontextmanager
    async def hold_for_compile(self) -> AsyncIterator[GatePass]:
        """Hold the gate for one compile, after waiting until it may run."""
        while not self._may_compile:
            await self._changed.wait()
        gate_pass = GatePass(self._wake_waiters)
        self._compiles.append(gate_pass)
        try:
            yield gate_pass
        finally:
            self._compiles.remove(gate_pass)
            self._wake_waiters()

    @contextmanager
    def hold_for_start(self) -> Iterator[None]:
        """Hold the gate for a worker's start. The start does not wait; a wide timing waits for it for a while."""
        until = anyio.current_time() + self._patience_s
        self._patience_ends.append(until)
        try:
            yield
        finally:
            self._patience_ends.remove(until)
            self._wake_waiters()

    @asynccontextmanager
    async def hold_for_computing(self, patience_s: float = math.inf) -> AsyncIterator[None]:
        """Hold the gate for a strategy's proposal, an inspection or a lane's opening.

        It begins when no timing has all cores or waits for several. Because trials may hang, it waits for this at most
        ``patience_s``.
        """
        with anyio.move_on_after(patience_s):
            while self._waiting_for_cores or (self._is_wide and sum(self._timing_cores) >= self._cores):
                await self._changed.wait()
        with self.hold_for_start():
            yield

    @asynccontextmanager
    async def hold_quiet(self) -> AsyncIterator[None]:
        """Pause the compiles, wait for those that cannot be paused, and let no compile begin during the block."""
        self._waiting_for_quiet += 1
        try:
            while self._is_quiet or not all(one.can_pause for one in self._compiles):
                await self._changed.wait()
            self._is_quiet = True
        finally:
            self._waiting_for_quiet -= 1
            # Also after a cancellation: nothing else would wake the compiles that waited because of this.
            self._wake_waiters()
        try:
            for one in self._compiles:
                one.pause_worker()
            yield
        finally:
            self._is_quiet = False
            self._wake_waiters()

    async def reserve_cores(self, cores: int) -> int:
        """Wait until cores are free, and reserve them for a timing.

        Returns:
            The number of cores: ``cores``, or all that the machine has.
        """
        granted = int(min(cores, self._cores))
        self._waiting_for_cores += granted > 1
        try:
            while not self._may_start_timing(granted):
                with anyio.CancelScope(deadline=self._next_end_of_patience):
                    await self._changed.wait()
            self._timing_cores.append(granted)
        finally:
            self._waiting_for_cores -= granted > 1
            self._wake_waiters()
        if granted > 1:
            self._on_extra_cores()
        return granted

    def release_cores(self, cores: int) -> None:
        """Release the number of cores that :meth:`reserve_cores` returned."""
        self._timing_cores.remove(cores)
        if cores > 1:
            self._on_extra_cores()
        self._wake_waiters()

    @property
    def _is_wide(self) -> bool:
        return any(cores > 1 for cores in self._timing_cores)

    @property
    def _may_compile(self) -> bool:
        return not (self._waiting_for_quiet or self._waiting_for_cores) and self._has_room_for_compile

    @property
    def _has_room_for_compile(self) -> bool:
        """Whether it is not quiet, and wide timings leave a core."""
        if self._is_quiet:
            return False
        return not self._is_wide or self._running_compiles + 1 <= self._cores - sum(self._timing_cores)

    @property
    def _running_compiles(self) -> int:
        return sum(not one.is_paused for one in self._compiles)

    def _may_start_timing(self, cores: int) -> bool:
        if cores == 1 and not self._is_wide:
            return True
        # All running compiles and starts are confined to the cores that are left; one core is enough for them.
        now = anyio.current_time()
        starting = sum(until > now for until in self._patience_ends)
        compiling = min(1, self._running_compiles + starting) if cores > 1 else 0
        return cores + sum(self._timing_cores) + compiling <= self._cores

    @property
    def _next_end_of_patience(self) -> float:
        now = anyio.current_time()
        return min((until for until in self._patience_ends if until > now), default=math.inf)

    def _wake_waiters(self) -> None:
        """Let paused compiles go on if they may, and wake all waiters, so that they check their condition again."""
        for one in self._compiles:
            if one.is_paused and self._has_room_for_compile:
                one.resume_worker()
        self._changed.set()
        self._changed = anyio.Event()


class Pace:
    """Lets tasks continue one by one, first come, first served. A task continues at once if no other one waits."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_step_taken = False

    @property
    def waiting(self) -> int:
        """The number of tasks that wait for their step."""
        return len(self._waiting)

    async def wait_for_step(self) -> None:
        """Wait for a round of the loop without another task's step. The step lasts until this task waits again."""
        loop = asyncio.get_running_loop()
        if not self._is_step_taken:
            self._is_step_taken = True
            loop.call_soon(self._grant_next_step, loop)
            return
        turn = loop.create_future()
        self._waiting.append(turn)
        await turn

    def _grant_next_step(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():
                first.set_result(None)
                loop.call_soon(self._grant_next_step, loop)
                return
        self._is_step_taken = False
