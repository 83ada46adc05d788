"""Counts of a process's launches by key: plain integers, written to the spool at intervals and at the process's end.

From them the daemon sees which keys cost most (launches times the latency known so far), and tunes these first.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from time import monotonic

from ktuned.model import CallKey
from ktuned.spool import KeyLaunches, LaunchCounts, leave_counts, spool_directory

MAX_COUNTED = 1000
"""Most keys that a process counts."""

_ROWS_OF_A_FILE = 200


class LaunchCounter:
    """The launches of one key; the drop-in adds 1 to ``launches`` for each launch."""

    __slots__ = ("_left", "key", "launches")

    def __init__(self, key: CallKey) -> None:
        self.key = key
        self.launches = 0
        self._left = 0

    def take_new_launches(self) -> int:
        """Return the launches since the last call of this method."""
        now = self.launches
        fresh, self._left = now - self._left, now
        return fresh


_counters: list[LaunchCounter] = []
_lock = threading.Lock()
_last = monotonic()


def count_launches(key: CallKey) -> LaunchCounter:
    """Return a new counter for a key; from now on its counts are written to the spool."""
    counter = LaunchCounter(key)
    with _lock:
        if len(_counters) < MAX_COUNTED:
            _counters.append(counter)
    return counter


def leave_launch_counts(at_most_every_s: float = 0.0) -> None:
    """Write the counts since the last time to the spool; counts that cannot be written are lost."""
    global _last
    with _lock:
        if monotonic() - _last < at_most_every_s:
            return
        _last = monotonic()
        rows = [KeyLaunches(counter.key, number) for counter in _counters if (number := counter.take_new_launches())]
    with contextlib.suppress(OSError):
        directory = spool_directory()
        for first in range(0, len(rows), _ROWS_OF_A_FILE):
            leave_counts(directory, LaunchCounts(tuple(rows[first : first + _ROWS_OF_A_FILE])))


def _forget_parents_launches() -> None:
    """In a forked child, forget the parent's launches, because the parent writes its own counts."""
    global _lock
    _lock = threading.Lock()
    for counter in _counters:
        counter.take_new_launches()


atexit.register(leave_launch_counts)
os.register_at_fork(after_in_child=_forget_parents_launches)
