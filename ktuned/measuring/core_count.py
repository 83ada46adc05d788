"""The number of cores that a launch uses, from the CPU time of the process's threads.

Wall-clock time does not show it while compilers use the other cores: two threads that share a core take as long as a
single thread. So the threads that ran are counted. The number of those that have ended since (a joined ``std::thread``)
is estimated from the CPU time that belongs to no living thread.
"""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Mapping
from functools import partial

from ktuned.backends import Launch
from ktuned.ipc import requests
from ktuned.measuring.launch_observer import LaunchObserver, Restart, TimingRequest
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model import FailureFacts, FrozenStruct, Phase, Profile, TrialDetail, TrialResult

RAN_SHARE = 0.2
"""A thread counts if it ran for at least this share of the busiest thread's time: a pool's idle threads wake up
briefly."""

_CALM_S = 0.001
_CALM_TRIES = 60
"""How often to look whether other threads are calm. A pool's threads spin after their last work: in libgomp 300,000
times, which took 14 to 25 ms."""

_PER_THREAD_CLOCK = 6
"""CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED (Linux, posix-timers.h): with a thread's id, they make its clock's id."""


class ThreadTimes(FrozenStruct):
    """CPU time so far in ns, of each living thread and of the whole process."""

    threads: Mapping[int, int]
    process: int

    @classmethod
    def read_before_launch(cls) -> ThreadTimes:
        """Read the clocks before a launch: the process's last, so that reading does not look like an ended thread."""
        threads = _read_thread_times()
        return cls(threads, time.process_time_ns())

    @classmethod
    def read_after_launch(cls) -> ThreadTimes:
        """Read the clocks after a launch, the process's first, for the same reason."""
        process = time.process_time_ns()
        return cls(_read_thread_times(), process)


def _read_thread_times() -> dict[int, int]:
    """Read every thread's clock; empty if the system does not list threads."""
    times_ns = {}
    for thread in map(int, _list_threads()):
        try:
            times_ns[thread] = time.clock_gettime_ns((~thread << 3) | _PER_THREAD_CLOCK)
        except OSError:
            # The thread has ended meanwhile.
            continue
    return times_ns


def _list_threads() -> list[str]:
    try:
        return os.listdir("/proc/self/task")
    except OSError:
        return []


def count_cores_used(before: ThreadTimes, after: ThreadTimes, available: int) -> int:
    """Return how many cores were used between two readings, at least 1 and at most ``available``."""
    grown = [spent - before.threads.get(thread, 0) for thread, spent in after.threads.items()]
    busiest = max(grown, default=0)
    if busiest <= 0:
        return 1
    ran = sum(spent >= RAN_SHARE * busiest for spent in grown)
    ended = after.process - before.process - sum(grown)
    if ended >= RAN_SHARE * busiest:
        # If the living thread only waited for threads that have ended, this is far too many; the result is then capped.
        ran += math.ceil(ended / busiest - RAN_SHARE)
    return max(1, min(ran, available))


class CoreCounter(LaunchObserver):
    """Counts the cores that a config's first launch uses, if the request limits them.

    A config that uses more is not timed: it will be measured again with all the cores that it needs.
    """

    def __init__(self) -> None:
        self._granted: int | None = None
        self.cores = 1

    def begin_config(self, request: TimingRequest, launch: Launch) -> Launch:
        """Return a launch whose cores are counted, if the request limits them."""
        self._granted = request.cores if isinstance(request, requests.Trial) else None
        return launch if self._granted is None else partial(self.count_launch, launch)

    def count_launch(self, launch: Launch) -> None:
        """Wait until the other threads are calm, and launch."""
        _wait_for_calm()
        before = ThreadTimes.read_before_launch()
        launch()
        self.cores = count_cores_used(before, ThreadTimes.read_after_launch(), len(os.sched_getaffinity(0)))

    def end_first_launch(self, first: TrialResult) -> TrialResult:
        """End the config, without an outcome, if it lacks cores."""
        if self._granted is None or self.cores <= self._granted:
            return first
        return TrialResult(None, detail=TrialDetail(FailureFacts(Phase.TIMING), profile=Profile(self.cores)))

    def complete_result(self, timed: TrialResult, launches: TimedLaunches, restart: Restart) -> TrialResult:
        """Add the number of cores."""
        return timed if self._granted is None else timed.add_facts("profile", cores=self.cores)


def _wait_for_calm() -> None:
    this_thread = threading.get_native_id()
    for _ in range(_CALM_TRIES):
        before = _read_thread_times()
        if len(before) < 2:
            return
        select.select([], [], [], _CALM_S)
        after = _read_thread_times()
        spun = sum(spent - before.get(thread, 0) for thread, spent in after.items() if thread != this_thread)
        if spun < RAN_SHARE * _CALM_S * 1e9:
            return
