"""The daemon's lifetime: the watchdog, the rates that ``status`` reports, and the end when idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

import anyio
from msgspec.structs import astuple

from ktuned.daemon.systemd import Notifier
from ktuned.protocol import IdleInfo, WorkFigures

AUTO_IDLE_EXIT_S = 1800.0
"""Idle time after which a daemon that was started on demand ends; the next command starts another one."""

TICK_S = 5.0
"""Interval in seconds at which totals are recorded: rare enough to cost nothing, often enough for rates per minute."""

LOOKS_KEPT = 13
"""Recorded totals that are kept for the rates: those of one minute."""

FEEDS_PER_PERIOD = 2
"""Keep-alive messages within the watchdog's period (sd_watchdog_enabled(3) recommends half of it)."""


class Idleness:
    """Detects ``limit_s`` seconds without activity; 0 is never. No IO; ``now`` is any monotonic clock."""

    def __init__(self, limit_s: float, now: float) -> None:
        self.limit_s = limit_s
        self._since = now
        self._activity = -1

    def is_over(self, busy: Sequence[str], activity: int, now: float) -> bool:
        """Return whether the daemon should end.

        Args:
            busy: The reasons why the daemon must not end.
            activity: A count of everything it has done; shows if a client came and went since the last call.
            now: The time, in seconds.
        """
        if busy or activity != self._activity:
            self._since, self._activity = now, activity
            return False
        return 0 < self.limit_s <= now - self._since


class Lifetime:
    """Feeds the watchdog, and calls ``stop`` after ``idle_exit_s`` seconds without activity.

    Args:
        notifier: Reports to the service manager.
        idle_exit_s: Seconds without activity after which the daemon ends, unless the settings say otherwise; 0 is
            never.
        busy: Returns the reasons why the daemon must not end.
        totals: Returns totals of all activity since the start.
        describe: Returns one line for the service manager.
        stop: Ends the daemon.

    Attributes:
        started: When this object was made, in seconds of the monotonic clock.
    """

    def __init__(
        self,
        notifier: Notifier,
        *,
        idle_exit_s: float,
        busy: Callable[[], Sequence[str]],
        totals: Callable[[], WorkFigures],
        describe: Callable[[], str],
        stop: Callable[[], None],
    ) -> None:
        self.started = monotonic()
        self._notifier = notifier
        self._idleness = Idleness(idle_exit_s, monotonic())
        self._looks: deque[tuple[float, WorkFigures]] = deque(maxlen=LOOKS_KEPT)
        self._described = ""
        self._list_reasons_to_stay = busy
        self._totals = totals
        self._describe = describe
        self._stop = stop

    @property
    def idle_exit_s(self) -> float:
        """Idle time after which the daemon ends; 0 is never."""
        return self._idleness.limit_s

    def describe_idleness(self) -> IdleInfo:
        """Return the idle time after which the daemon ends, and the reasons why it must not end now."""
        return IdleInfo(self.idle_exit_s, tuple(self._list_reasons_to_stay()))

    def compute_rates(self, now: float | None = None) -> WorkFigures:
        """Return each total's increase per second over the last minute; 0 before the first record."""
        now = monotonic() if now is None else now
        totals = self._totals()
        then, before = self._looks[0] if self._looks else (now, totals)
        span_s = max(now - then, 1e-9)
        rises = (value - old for value, old in zip(astuple(totals), astuple(before), strict=True))
        return WorkFigures(*(round(rise / span_s, 3) for rise in rises))

    def check_end(self, now: float) -> bool:
        """Record the totals, describe the daemon to the service manager, and return whether it should end."""
        totals = self._totals()
        self._looks.append((now, totals))
        if self._notifier.has_service_manager and (line := self._describe()) != self._described:
            self._described = line
            self._notifier.report_status(line)
        return self._idleness.is_over(self._list_reasons_to_stay(), sum(astuple(totals)), now)

    async def run_until_cancelled(self) -> None:
        """Feed the watchdog, and check periodically whether the daemon should end, until cancelled."""
        async with anyio.create_task_group() as tasks:
            if self._notifier.watchdog_s:
                tasks.start_soon(self._feed_watchdog)
            tasks.start_soon(self._check_end_periodically)

    async def _feed_watchdog(self) -> None:
        # This runs on the event loop that serves clients, so that the watchdog notices if the loop hangs.
        while True:
            self._notifier.report_alive()
            await anyio.sleep(self._notifier.watchdog_s / FEEDS_PER_PERIOD)

    async def _check_end_periodically(self) -> None:
        limit_s = self._idleness.limit_s
        while True:
            if self.check_end(monotonic()):
                self._stop()
                return
            await anyio.sleep(min(TICK_S, limit_s / 4) if limit_s else TICK_S)
