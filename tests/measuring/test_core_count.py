"""Cores that a launch uses."""

import hashlib
import threading
import time
from collections.abc import Callable

import pytest

from ktuned.measuring.core_count import CoreCounter, ThreadTimes, count_cores_used

MS = 1_000_000


@pytest.mark.parametrize(
    ("before", "after", "ended_ms", "cores"),
    [
        ({1: 5}, {1: 15}, 0, 1),
        ({1: 5, 2: 7}, {1: 15, 2: 7}, 0, 1),
        ({1: 5, 2: 7}, {1: 15, 2: 8}, 0, 1),
        ({1: 5, 2: 7}, {1: 15, 2: 14}, 0, 2),
        ({1: 5}, {1: 15, 2: 9, 3: 10}, 0, 3),
        ({1: 5}, {1: 15}, 9, 2),
        ({1: 5}, {1: 15}, 31, 4),
        ({1: 5}, {1: 15}, 1, 1),
        ({1: 5}, {1: 6}, 40, 8),
        ({1: 5}, {1: 5}, 0, 1),
        ({}, {}, 0, 1),
    ],
    ids=[
        "alone",
        "a-pool-that-sleeps",
        "a-pool-that-wakes-and-sleeps-again",
        "a-pool-that-works",
        "threads-that-live-on",
        "a-thread-that-ended",
        "three-that-ended",
        "one-that-did-nothing",
        "a-launch-that-only-waits",
        "no-time",
        "no-list-of-threads",
    ],
)
def test_each_thread_that_ran_counts_as_a_core(
    before: dict[int, int], after: dict[int, int], ended_ms: int, cores: int
) -> None:
    """Those that live, and those that have ended with the launch, by their CPU time; never more than there are."""
    first = ThreadTimes({thread: spent * MS for thread, spent in before.items()}, 0)
    grown = sum(after.values()) - sum(before.values()) + ended_ms
    last = ThreadTimes({thread: spent * MS for thread, spent in after.items()}, grown * MS)
    assert count_cores_used(first, last, 8) == cores


def test_more_threads_than_cores_use_all_cores() -> None:
    """What cannot be given is not waited for."""
    assert count_cores_used(ThreadTimes({}, 0), ThreadTimes(dict.fromkeys(range(9), MS), 9 * MS), 2) == 2


def burn(cpu_s: float) -> None:
    """Use some CPU time of this thread."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


def in_two_threads() -> None:
    """Work in this thread and in one that ends with the launch."""
    other = threading.Thread(target=burn, args=(0.02,))
    other.start()
    burn(0.02)
    other.join()


@pytest.mark.parametrize(("work", "cores"), [(lambda: burn(0.01), 1), (in_two_threads, 2)], ids=["one", "two"])
def test_a_real_launch_is_counted(work: Callable[[], None], cores: int) -> None:
    """By what its threads did, however busy the machine is: two that take turns on one core are two."""
    counter = CoreCounter()
    counter.count_launch(work)
    assert counter.cores == cores


def test_a_short_launch_is_not_taken_for_two() -> None:
    """The reading of the clocks takes longer than a launch of some µs, and is none of its time."""
    counted = set()
    for _ in range(200):
        counter = CoreCounter()
        counter.count_launch(lambda: burn(0.000005))
        counted.add(counter.cores)
    assert counted == {1}


def spin(cpu_s: float) -> None:
    """Use some CPU time without the interpreter's lock, as a pool of a library does."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1000)


def test_a_pool_that_spins_after_its_work_is_waited_for() -> None:
    """Libgomp's threads look for work for some 20 ms before they sleep: that is none of the launch's."""
    pool = threading.Thread(target=spin, args=(0.04,))
    counter = CoreCounter()
    pool.start()
    counter.count_launch(lambda: burn(0.000005))
    pool.join()
    assert counter.cores == 1
