"""Use of the CPUs and GPUs by other programs, for judging a timing and for the idle policy.

On the CPU: ktuned's own compile workers are niced, and the kernel counts niced time apart, so time that is neither
idle, niced nor this process's own belongs to other programs. On a GPU: NVML lists the processes that worked on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Self

from ktuned.backends import CpuTicks, gpu_uuids, nvml, read_ticks
from ktuned.ipc import replies

CONTENDED_SHARE = 0.6
"""Share of all CPU time that others must take, with none left idle, before a timing is thrown away.

One busy neighbour on two cores takes half and leaves a core to a single-threaded kernel; two take two thirds.
"""

IDLE_SHARE = 0.05
MIN_WINDOW_TICKS = 20
"""Shorter windows are not judged: the kernel counts CPU time in ticks of 10 ms."""

RECENT_US = 5_000_000
"""GPU work that is older does not count as current; NVML keeps some seconds of samples."""

FOREIGN_PIDS = "NVML names processes of another PID namespace (run the container with --pid=host)"

_NO_TICKS = CpuTicks(*[0] * len(CpuTicks._fields))


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU time since boot, in ticks: the machine's by kind, and this process's own."""

    machine: CpuTicks
    own: float

    @classmethod
    def now(cls) -> Self:
        """Read both; without ``/proc/stat`` no time passes, and nothing is judged."""
        own = os.times()
        return cls(read_ticks() or _NO_TICKS, (own.user + own.system) * os.sysconf("SC_CLK_TCK"))


def is_contended(before: CpuTimes, after: CpuTimes) -> bool:
    """Return whether between two readings other programs took the CPUs that the kernel needed."""
    passed = after.machine.since(before.machine)
    if passed.total < MIN_WINDOW_TICKS:
        return False
    others = passed.total - passed.unused - passed.nice - (after.own - before.own)
    return passed.unused / passed.total < IDLE_SHARE and others / passed.total > CONTENDED_SHARE


class CpuWatch:
    """Watches the CPUs from its construction on."""

    def __init__(self) -> None:
        self._before = CpuTimes.now()

    def is_contended(self) -> bool:
        """Return whether other programs took the CPUs since."""
        return is_contended(self._before, CpuTimes.now())


@cache
def _gpu(uuid: str) -> tuple[nvml.Gpu | None, str]:
    """Return a GPU on which this process has a context, and the reason if its use cannot be judged."""
    try:
        gpu = nvml.Gpu(f"GPU-{uuid}")
        # Own work would be taken for that of another process.
        return gpu, "" if os.getpid() in gpu.context_pids() else FOREIGN_PIDS
    except nvml.Unavailable as error:
        return None, str(error)


class GpuWatch:
    """Watches one GPU, on which this process has a context, from its construction on.

    Without NVML nothing is judged, and :attr:`absence` is the reason.
    """

    def __init__(self, uuid: str) -> None:
        self._gpu, self.absence = _gpu(uuid)
        self._since_us = max((sample.at_us for sample in self._samples(0)), default=0)

    def _samples(self, since_us: int) -> list[nvml.Sample]:
        if self._gpu is None or self.absence:
            return []
        try:
            return self._gpu.samples(since_us)
        except nvml.Unavailable as error:
            self.absence = str(error)
            return []

    def is_contended(self) -> bool:
        """Return whether another process kept the device busy since."""
        unknown_or_own = (0, os.getpid())
        samples = self._samples(self._since_us)
        return any(sample.pid not in unknown_or_own and sample.percent > 0 for sample in samples)


def gpu_users(ours: Iterable[int]) -> replies.GpuUsers:
    """Count the processes, other than ``ours``, that worked on each GPU lately, by the GPU's name.

    A process of another PID namespace is not counted, because it may be one of ours.
    """
    known = set(ours)
    since_us = time.time_ns() // 1000 - RECENT_US
    try:
        users = {name: len(_working_on(uuid, since_us) - known) for name, uuid in gpu_uuids().items()}
    except nvml.Unavailable as error:
        return replies.GpuUsers({}, str(error))
    # Without a GPU, NVML has not been asked.
    return replies.GpuUsers(users, "" if users else nvml.absence())


def _working_on(uuid: str, since_us: int) -> set[int]:
    try:
        with nvml.Gpu(uuid) as gpu:
            samples = gpu.samples(since_us)
    except nvml.Unsupported:
        # A partition of a GPU does not report its processes.
        return set()
    pids = {sample.pid for sample in samples if sample.percent > 0 and sample.at_us > since_us}
    return {pid for pid in pids if os.path.exists(f"/proc/{pid}")}
