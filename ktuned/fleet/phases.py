"""The phases of a worker's request: which one it is in, since when, and whether its deadline has passed.

A worker writes each phase that it enters into its journal (:mod:`ktuned.ipc.journal`) and sends no message about it: a
message for each phase would wake the daemon half a dozen times in a trial of milliseconds. Instead, the daemon looks
into the journal:

- It looks when a deadline *may* have passed. Any phase that began since the last look has a deadline of at least the
  shortest one in the request. So if the daemon looks again after that long, no such phase can have missed its deadline
  yet. Most requests end before their first look.
- Before each look it reads the messages that have arrived. If the reply is already in the pipe, no deadline was missed,
  however late the event loop reports it.
- It looks once more when the worker has died, so that the error names the phase, and a memory fault if one was
  reported.

User code runs in the worker and may write nonsense into the journal. Entries that are out of order, from another time
or of no known phase are ignored; the last known phase continues, with its deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from time import monotonic

from ktuned.ipc import HeldItems, Journal, PhaseEntry
from ktuned.model import Phase

MIN_INTERVAL_S = 0.01
"""Least interval between two looks, even if a deadline is shorter."""


class Phases:
    """The phases of one worker's requests, one request after another.

    Args:
        loop: The event loop, for timers.
        journal: The daemon's side of the worker's journal.
        on_expired: Called when the deadline of the present phase has passed.
        before_look: Called before each look; reads the messages that have arrived, as one may be the reply.
        clock: The clock of the journal, in seconds.

    Attributes:
        fault: The memory fault that has ended the worker, in words; known once these are closed.
        held: The messages that the worker was holding back when its journal was last read.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        journal: Journal,
        *,
        on_expired: Callable[[], None],
        before_look: Callable[[], None],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.fault = ""
        self._clock = clock
        self._journal: Journal | None = journal
        self._before_look = before_look
        self._timer = DeadlineTimer(loop, on_expired, self._find_phase_end)
        self._deadlines: Mapping[str, float] = {}
        self._entered = [PhaseEntry(Phase.SPAWN, clock())]
        self.held = HeldItems(0, b"")
        self._paused_at: float | None = None
        self._paused_s = 0.0

    @property
    def current(self) -> Phase:
        """The phase that was entered last, as of the last look."""
        return self._entered[-1].phase

    @property
    def deadline_s(self) -> float:
        """The present phase's deadline, in seconds."""
        return self._deadlines[self.current]

    @property
    def is_over(self) -> bool:
        """True once the present phase's deadline has passed."""
        return self._timer.is_over

    def begin_request(self, request: int, phase: Phase, deadlines: Mapping[str, float]) -> None:
        """Begin a request in a phase, with the seconds that each of its phases may take."""
        self._entered = [PhaseEntry(phase, self._clock())]
        self._deadlines = deadlines
        self.held = HeldItems(0, b"")
        self._paused_s = 0.0
        if self._journal is not None:
            self._journal.begin_request(request, phase)
        self._timer.watch_request(min(deadlines.values()))

    @property
    def paused_s(self) -> float:
        """For how many seconds the clock was stopped since the request began."""
        return self._paused_s + (0.0 if self._paused_at is None else self._clock() - self._paused_at)

    def stop_clock(self) -> None:
        """Let time count for no phase until :meth:`continue_clock`."""
        self._paused_at = self._clock()

    def continue_clock(self) -> None:
        """Let time count again."""
        self._paused_s, self._paused_at = self.paused_s, None

    def end_request(self) -> None:
        """End the request, and watch no deadline."""
        self._timer.end_watch()

    def read_journal(self) -> None:
        """Read the phases and the held items in the journal; does nothing once it is closed."""
        if self._journal is None:
            return
        found, self.held = self._journal.read_progress()
        began, until = self._entered[0], self._clock()
        known = [entry for entry in found if began.at <= entry.at <= until and entry.phase in self._deadlines]
        # User code may have written nonsense. Then the last known phase continues.
        if known and known[-1].at >= self._entered[-1].at:
            self._entered = [began, *known] if known[0].at > began.at else known

    def read_durations(self) -> dict[str, float]:
        """Return the seconds that each phase of the request took, until now."""
        self.read_journal()
        durations: dict[str, float] = {}
        ends = [entry.at for entry in self._entered[1:]] + [self._clock()]
        for entry, end in zip(self._entered, ends, strict=True):
            durations[entry.phase.value] = round(durations.get(entry.phase.value, 0.0) + end - entry.at, 3)
        return durations

    def close(self) -> None:
        """Read the journal once more, close it, and cancel the timer. The phases that were read stay available."""
        self._timer.close()
        self.read_journal()
        if self._journal is not None:
            self.fault = self._journal.read_fault()
            self._journal.close()
            self._journal = None

    def _find_phase_end(self) -> float:
        self._before_look()
        self.read_journal()
        # A pause in an earlier phase of the request counts, too: it may come late, but no phase is blamed for a pause.
        return self._entered[-1].at + self.deadline_s + self.paused_s


class DeadlineTimer:
    """Calls ``on_expired`` when the deadline of a request's present phase has passed, which ``find_deadline`` returns.

    One timer serves all requests of a worker: it keeps running from one request to the next.
    """

    __slots__ = (
        "_find_deadline",
        "_fires_at",
        "_is_watching",
        "_loop",
        "_min_interval_s",
        "_on_expired",
        "_timer",
        "is_over",
    )

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_expired: Callable[[], None], find_deadline: Callable[[], float]
    ) -> None:
        self._loop = loop
        self._on_expired = on_expired
        self._find_deadline = find_deadline
        self._timer: asyncio.Handle | None = None
        # Kept here, because uvloop rounds the times of timers, and a timer that is due at once has no time.
        self._fires_at = 0.0
        self._min_interval_s = 0.0
        self._is_watching = False
        self.is_over = False

    def watch_request(self, shortest_s: float) -> None:
        """Watch a request from now on; ``shortest_s`` is the shortest of its phases' deadlines."""
        self._min_interval_s = max(MIN_INTERVAL_S, shortest_s)
        self._is_watching = True
        self.is_over = False
        at = self._loop.time() + self._min_interval_s
        if self._timer is None or self._fires_at > at:
            self.close()
            self._set_timer(at)

    def end_watch(self) -> None:
        """Watch no request any more; the timer may keep running."""
        self._is_watching = False

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self, at: float) -> None:
        self._fires_at = at
        self._timer = self._loop.call_at(at, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if not self._is_watching:
            return
        # A late timer still sees every phase that has begun until now, so count from now.
        now = max(self._fires_at, self._loop.time())
        ends_at = self._find_deadline()
        if ends_at > now:
            self._set_timer(min(ends_at, now + self._min_interval_s))
            return
        self.is_over = True
        self._on_expired()
