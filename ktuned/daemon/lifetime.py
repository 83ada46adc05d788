"""How long a daemon lives, and what it says of its health meanwhile: the watchdog, its pace, its end when idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final

import anyio

from ktuned.daemon.systemd import Notifier

AUTO_IDLE_EXIT_S: Final = 1800.0
"""After how long of nothing a daemon ends that nobody started by hand: whoever needs one starts it again."""

TICK_S: Final = 5.0
"""How often a daemon looks at itself: rarely enough to cost nothing, often enough for figures per minute."""

WINDOW_S: Final = 60.0
"""Over how long rates are taken."""

FEEDS_PER_PERIOD: Final = 2
"""How often the watchdog is fed within its period (sd_watchdog_enabled(3) recommends half of it)."""


class Idleness:
    """Tells when nothing has gone on for ``limit_s``; 0 is never. No IO: ``now`` is any clock that only rises."""

    def __init__(self, limit_s: float, now: float) -> None:
        self.limit_s = limit_s
        self._since = now
        self._activity = -1

    def is_over(self, busy: Sequence[str], activity: int, now: float) -> bool:
        """Take note of what keeps the daemon busy and of a count of all it has done; tell whether it is to end.

        The count is what tells of somebody who came and went between two looks.
        """
        if busy or activity != self._activity:
            self._since, self._activity = now, activity
            return False
        return 0 < self.limit_s <= now - self._since


class Rates:
    """How fast counters rise, over the last :data:`WINDOW_S`. No IO."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, dict[str, int]]] = deque()

    def sample(self, counters: Mapping[str, int], now: float) -> None:
        """Take note of the counters as they are now."""
        self._samples.append((now, dict(counters)))
        # One sample stays that is as old as the window, for the rates to reach back to.
        while len(self._samples) > 1 and now - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()

    def per_second(self, counters: Mapping[str, int], now: float) -> dict[str, float]:
        """Return each counter's rise per second since the oldest sample in the window; 0 before there is one."""
        if not self._samples:
            return dict.fromkeys(counters, 0.0)
        then, before = self._samples[0]
        span = max(now - then, 1e-9)
        return {name: round((value - before.get(name, 0)) / span, 3) for name, value in counters.items()}


class Lifetime:
    """Runs beside the daemon's parts; ``stop`` is called when nothing has gone on for the idleness's limit.

    ``counters`` are totals since the start, ``busy`` names what keeps the daemon from ending, ``describe`` is one
    line for the service manager. ``watchdog_s`` is within how long the manager wants to hear of us, 0 for never.
    """

    def __init__(
        self,
        notifier: Notifier,
        *,
        watchdog_s: float,
        idle_exit_s: float,
        busy: Callable[[], Sequence[str]],
        counters: Callable[[], Mapping[str, int]],
        describe: Callable[[], str],
        stop: Callable[[], None],
    ) -> None:
        self._notifier = notifier
        self._watchdog_s = watchdog_s
        self._idleness = Idleness(idle_exit_s, monotonic())
        self._rates = Rates()
        self._busy = busy
        self._counters = counters
        self._describe = describe
        self._stop = stop
        self._changed = anyio.Event()

    @property
    def idle_exit_s(self) -> float:
        """After how long of nothing the daemon ends; 0 is never."""
        return self._idleness.limit_s

    @idle_exit_s.setter
    def idle_exit_s(self, limit_s: float) -> None:
        self._idleness.limit_s = limit_s
        self._changed.set()

    def rates(self) -> dict[str, float]:
        """Return how fast each counter rises, per second, over the last minute."""
        return self._rates.per_second(self._counters(), monotonic())

    async def run(self) -> None:
        """Feed the watchdog and look at the daemon, until cancelled."""
        async with anyio.create_task_group() as tasks:
            if self._watchdog_s and self._notifier.is_heard:
                tasks.start_soon(self._feed)
            tasks.start_soon(self._look)

    async def _feed(self) -> None:
        # By the loop that serves, so that one which no longer turns is found out.
        while True:
            self._notifier.alive()
            await anyio.sleep(self._watchdog_s / FEEDS_PER_PERIOD)

    async def _look(self) -> None:
        told = ""
        while True:
            self._changed = anyio.Event()
            counters = self._counters()
            self._rates.sample(counters, monotonic())
            if self._notifier.is_heard and (line := self._describe()) != told:
                told = line
                self._notifier.status(line)
            if self._idleness.is_over(self._busy(), sum(counters.values()), monotonic()):
                self._stop()
                return
            with anyio.move_on_after(self._tick_s()):
                await self._changed.wait()

    def _tick_s(self) -> float:
        limit_s = self._idleness.limit_s
        return min(TICK_S, limit_s / 4) if limit_s else TICK_S
