"""The number of cores that a launch uses."""

import hashlib
import threading
import time
from collections.abc import Callable

import pytest

from ktuned.measuring.core_count import CoreCounter, ThreadTimes, count_cores_used

NS_PER_MS = 1_000_000


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
    """Running and ended threads count by their CPU time, up to the number of the machine's cores."""
    first = ThreadTimes({thread: spent * NS_PER_MS for thread, spent in before.items()}, 0)
    process_ms = sum(after.values()) - sum(before.values()) + ended_ms
    last = ThreadTimes({thread: spent * NS_PER_MS for thread, spent in after.items()}, process_ms * NS_PER_MS)
    assert count_cores_used(first, last, 8) == cores


def test_more_threads_than_cores_use_all_cores() -> None:
    assert count_cores_used(ThreadTimes({}, 0), ThreadTimes(dict.fromkeys(range(9), NS_PER_MS), 9 * NS_PER_MS), 2) == 2


def use_cpu(cpu_s: float) -> None:
    """Use some CPU time of this thread."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        pass


def use_cpu_in_two_threads() -> None:
    """Work in this thread and in one that ends with the launch."""
    other = threading.Thread(target=use_cpu, args=(0.02,))
    other.start()
    use_cpu(0.02)
    other.join()


@pytest.mark.parametrize(
    ("work", "cores"), [(lambda: use_cpu(0.01), 1), (use_cpu_in_two_threads, 2)], ids=["one", "two"]
)
def test_the_cores_of_a_real_launch_are_counted(work: Callable[[], None], cores: int) -> None:
    """Threads count by their CPU time: on a busy machine, two threads that share one core count as two."""
    counter = CoreCounter()
    counter.count_launch(work)
    assert counter.cores == cores


def test_a_launch_of_a_few_us_counts_as_one_core() -> None:
    """Reading the clocks takes longer than the launch, and must not count as the launch's time."""
    core_counts = set()
    for _ in range(200):
        counter = CoreCounter()
        counter.count_launch(lambda: use_cpu(0.000005))
        core_counts.add(counter.cores)
    assert core_counts == {1}


def use_cpu_without_gil(cpu_s: float) -> None:
    """Use some CPU time without the interpreter's lock, as a pool of a library does."""
    end = time.thread_time() + cpu_s
    while time.thread_time() < end:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1000)


def test_a_pool_that_spins_after_its_work_is_waited_for() -> None:
    """Libgomp's threads spin for some 20 ms before they sleep; that time is not the launch's."""
    pool = threading.Thread(target=use_cpu_without_gil, args=(0.04,))
    counter = CoreCounter()
    pool.start()
    counter.count_launch(lambda: use_cpu(0.000005))
    pool.join()
    assert counter.cores == 1
