"""Memory of a worker and its descendants, and its limits.

Two things keep a worker within its limit. The fleet looks five times a second at what a worker and all its descendants
have resident together, and kills the one that has too much; the outcome is ``crashed (out of memory)``. Between two
looks a process can take gigabytes, so the kernel bounds each process as well (:func:`limit_data_size`). If the machine
still runs short, workers are killed first (``oom_score_adj``, which a worker raises itself).
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress

PAGE_BYTES = resource.getpagesize()


def read_total_bytes() -> int:
    """Return the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES


def choose_default_limits(compilers: int) -> tuple[int, int]:
    """Return how many bytes a bench worker, and each of so many compile workers, may use by default.

    Half of the machine's memory is for the bench worker, half for all compile workers, of which each gets at least 2
    GiB.
    """
    half = read_total_bytes() // 2
    return half, max(2 << 30, half // compilers)


def limit_data_size(pid: int, limit_bytes: int) -> None:
    """Have the kernel refuse a process, and each that it starts, private memory beyond one and a half times its limit.

    ``RLIMIT_DATA`` counts private writable memory. ``RLIMIT_AS`` would count address space, of which a sanitizer or a
    CUDA driver reserves terabytes. Workers that measure get no such limit: what a driver maps writable differs from
    version to version, and an allocation that fails there looks like the config's fault. The half on top lets the fleet
    act first, which counts a worker's processes together.
    """
    bound = limit_bytes + limit_bytes // 2
    with suppress(OSError, ValueError):
        resource.prlimit(pid, resource.RLIMIT_DATA, (bound, bound))


def describe_excess(used: int, limit: int) -> str:
    """Return the reason for which a worker is killed that outgrew its limit."""
    return f"out of memory: the worker used {used / 2**30:.1f} GiB of the {limit / 2**30:.1f} GiB it may"


def measure_tree(pid: int) -> int:
    """Return the resident memory of a process and its descendants; 0 for one that is gone."""
    try:
        own = int(_read_words(f"/proc/{pid}/statm")[1]) * PAGE_BYTES
        children = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            children += _read_words(f"/proc/{pid}/task/{thread}/children")
    except (OSError, IndexError):
        return 0
    return own + sum(measure_tree(int(child)) for child in children)


def list_tree_threads(pid: int) -> list[int]:
    """Return the threads of a process and of its descendants; none of one that is gone."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found.append(int(thread))
            for child in _read_words(f"/proc/{pid}/task/{thread}/children"):
                found += list_tree_threads(int(child))
    except OSError:
        pass
    return found


def _read_words(path: str) -> list[bytes]:
    # Called five times a second for each thread of each worker: a file object would make twice as many system calls.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts).split()
