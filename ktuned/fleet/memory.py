"""Memory of a worker and its descendants, and its limits.

Two things keep a worker within its limit. Five times a second the fleet measures the resident memory of each worker
with all its descendants, and kills a worker that exceeds its limit; the outcome is ``crashed (out of memory)``. Between
two measurements a process can take gigabytes, so Linux limits each process as well (:func:`limit_data_size`). If the
machine still runs short of memory, Linux kills workers first (each raises its own ``oom_score_adj``).
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress

from ktuned.backends import cpu
from ktuned.fleet.executor import Worker

CHECK_S = 0.2
"""Interval at which workers' memory is checked."""

PAGE_BYTES = resource.getpagesize()


def choose_default_limits(compilers: int) -> tuple[int, int]:
    """Return how many bytes a bench worker, and each of ``compilers`` compile workers, may use by default.

    The bench worker gets half of the memory that this process may use. All compile workers share the other half, but
    each gets at least 2 GiB.
    """
    half = cpu.memory_bytes() // 2
    return half, max(2 << 30, half // compilers)


def limit_data_size(pid: int, limit_bytes: int) -> None:
    """Have Linux refuse a process, and each that it starts, private memory beyond 1.5 times the limit.

    ``RLIMIT_DATA`` counts private writable memory. ``RLIMIT_AS`` would count address space, and sanitizers and CUDA
    drivers reserve terabytes of it. Workers that measure get no such limit: how much a driver maps as writable differs
    between versions, and an allocation that fails there looks like the config's fault. The factor 1.5 lets the fleet,
    which counts all processes of a worker together, act first.
    """
    bound = limit_bytes + limit_bytes // 2
    with suppress(OSError, ValueError):
        resource.prlimit(pid, resource.RLIMIT_DATA, (bound, bound))


def enforce_limit(worker: Worker, limit_bytes: int) -> None:
    """Measure the memory of a worker and its descendants, and kill it if it exceeds its limit."""
    worker.measure_memory()
    if worker.memory_bytes > limit_bytes:
        used_gib, limit_gib = worker.memory_bytes / 2**30, limit_bytes / 2**30
        worker.kill(f"out of memory: the worker used {used_gib:.1f} GiB of the {limit_gib:.1f} GiB it may")


def measure_tree(pid: int) -> int:
    """Return the resident memory of a process and its descendants; 0 if the process is gone."""
    try:
        own = int(_read_bytes(f"/proc/{pid}/statm").split()[1]) * PAGE_BYTES
        return own + sum(map(measure_tree, list_children(pid)))
    except (OSError, IndexError):
        return 0


def measure_cpu_ticks(pid: int) -> int:
    """Return the processor time of a process and its descendants, also ended ones, in clock ticks; 0 if it is gone."""
    try:
        # Fields 14 to 17 in proc(5), which counts from 1; the words after the command's name begin with field 3.
        own = _read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()[11:15]
        return sum(map(int, own)) + sum(map(measure_cpu_ticks, list_children(pid)))
    except (OSError, ValueError):
        return 0


def list_children(pid: int) -> set[int]:
    """Return a process's children, adopted ones included; none if Linux does not list any (CONFIG_PROC_CHILDREN)."""
    found: set[int] = set()
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError):
            found.update(map(int, _read_bytes(f"/proc/{pid}/task/{thread}/children").split()))
    return found


def list_tree_threads(pid: int) -> list[int]:
    """Return the threads of a process and its descendants; none if the process is gone."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            found.append(int(thread))
            for child in _read_bytes(f"/proc/{pid}/task/{thread}/children").split():
                found += list_tree_threads(int(child))
    except OSError:
        pass
    return found


def _read_bytes(path: str) -> bytes:
    # Called five times a second for each thread of each worker. A file object would need twice as many system calls.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)
