"""The number of cores that a launch uses, from the CPU time of its process's threads.

Time on the clock says little where compilers have the other cores: two threads that share one core look like one. So
the threads that ran are counted; those that have ended meanwhile (``std::thread``, joined) are estimated from the CPU
time that no living thread has.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Mapping

from ktuned.backends import Launch
from ktuned.model import Record, record

RAN_SHARE = 0.2
"""A thread counts from this share of the busiest one's time on: a pool's other threads wake up, and sleep again."""

_CALM_S = 0.001
_CALM_TRIES = 60
"""A pool's threads spin after the work that they had before: 300,000 times in libgomp, seen to take 14 to 25 ms."""

_PER_THREAD_CLOCK = 6
"""CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED (Linux, posix-timers.h): the clock of a thread is made of its id."""


@record
class ThreadTimes(Record):
    """CPU time so far, in ns: by thread that lives, and of the whole process."""

    threads: Mapping[int, int]
    process: int

    @classmethod
    def read_before_launch(cls) -> ThreadTimes:
        """Read the clocks before a launch: the process's last, so that the reading itself is no thread's that ends."""
        threads = _read_thread_times()
        return cls(threads, time.process_time_ns())

    @classmethod
    def read_after_launch(cls) -> ThreadTimes:
        """Read the clocks after a launch: the process's first, likewise."""
        process = time.process_time_ns()
        return cls(_read_thread_times(), process)


def _read_thread_times() -> dict[int, int]:
    """Read every thread's clock; none is read where the system has no list of threads."""
    found = {}
    for thread in map(int, _list_threads()):
        try:
            found[thread] = time.clock_gettime_ns((~thread << 3) | _PER_THREAD_CLOCK)
        except OSError:
            # It has ended meanwhile.
            continue
    return found


def _list_threads() -> list[str]:
    try:
        return os.listdir("/proc/self/task")
    except OSError:
        return []


def count_cores_used(before: ThreadTimes, after: ThreadTimes, available: int) -> int:
    """Return how many threads ran between two readings, at least one and at most the ``available`` cores."""
    grown = [spent - before.threads.get(thread, 0) for thread, spent in after.threads.items()]
    busiest = max(grown, default=0)
    if busiest <= 0:
        return 1
    ran = sum(spent >= RAN_SHARE * busiest for spent in grown)
    ended = after.process - before.process - sum(grown)
    if ended >= RAN_SHARE * busiest:
        # A thread that only waits for the others makes this many: then it gets all cores.
        ran += math.ceil(ended / busiest - RAN_SHARE)
    return max(1, min(ran, available))


class CountedLaunch:
    """A launch that counts the cores that its last run used, in :attr:`cores`."""

    def __init__(self, launch: Launch) -> None:
        self.cores = 1
        self._launch = launch

    def __call__(self) -> None:
        """Wait until the other threads are calm, and launch."""
        self._wait_for_calm()
        before = ThreadTimes.read_before_launch()
        self._launch()
        self.cores = count_cores_used(before, ThreadTimes.read_after_launch(), len(os.sched_getaffinity(0)))

    def _wait_for_calm(self) -> None:
        own = threading.get_native_id()
        for _ in range(_CALM_TRIES):
            before = _read_thread_times()
            if len(before) < 2:
                return
            select.select([], [], [], _CALM_S)
            after = _read_thread_times()
            spun = sum(spent - before.get(thread, 0) for thread, spent in after.items() if thread != own)
            if spun < RAN_SHARE * _CALM_S * 1e9:
                return
