"""Use of the CPUs and GPUs by other programs, for judging a timing and for the idle policy.

On the CPU: ktuned's own compile workers are niced, and the kernel counts niced time apart, so time that is neither
idle, niced nor this process's own belongs to other programs. On a GPU: NVML lists the processes that worked on it.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

from ktuned.backends import CpuTicks, gpu_uuids, nvml, read_ticks
from ktuned.ipc import replies
from ktuned.model import Record, record
from ktuned.worker.samples import Samples

CONTENDED_SHARE = 0.6
"""Share of all CPU time that others must take, with none left idle, before a timing is thrown away.

One busy neighbour on two cores takes half and leaves a core to a single-threaded kernel; two take two thirds.
"""

IDLE_SHARE = 0.05
MIN_WINDOW_TICKS = 20
"""Shorter windows are not judged: the kernel counts CPU time in ticks of 10 ms."""

HEAVY_SHARE = 0.3
"""Share of a GPU's time that others must take before a timing is thrown away whatever it looks like."""

STRETCHING_SHARE = 0.05
"""The same for launches longer than :data:`TURN_US`, which are stretched by about this much."""

TURN_US = 1_000.0
"""A GPU's turn for one process lasts a few ms."""

UNDISTURBED = 0.1
"""The share of a timing's samples that are taken for undisturbed, the fastest ones."""

SHIFTED = 0.05
"""Their distance below the median, relative to it, that proves that the median itself was disturbed."""

SAMPLED_EACH_S = 0.1
"""NVML takes a process's sample no more often: what is that recent is as good as now."""

RECENT_US = 5_000_000
"""GPU work that is older does not count as current; NVML keeps some seconds of samples."""

FOREIGN_PIDS = "NVML names processes of another PID namespace (run the container with --pid=host)"

_NO_TICKS = CpuTicks(*[0] * len(CpuTicks._fields))


@record
class CpuTimes(Record):
    """CPU time since boot, in ticks: the machine's by kind, and this process's own."""

    machine: CpuTicks
    own: float

    @classmethod
    def read(cls) -> Self:
        """Read both; without ``/proc/stat`` no time passes, and nothing is judged."""
        own = os.times()
        return cls(read_ticks() or _NO_TICKS, (own.user + own.system) * os.sysconf("SC_CLK_TCK"))


def cpu_is_contended(before: CpuTimes, after: CpuTimes) -> bool:
    """Return whether between two readings other programs took the CPUs that the kernel needed."""
    passed = after.machine.since(before.machine)
    if passed.total < MIN_WINDOW_TICKS:
        return False
    others = passed.total - passed.unused - passed.nice - (after.own - before.own)
    return passed.unused / passed.total < IDLE_SHARE and others / passed.total > CONTENDED_SHARE


def gpu_is_contended(
    foreign: Sequence[nvml.Sample], samples: Samples, tolerated: Collection[int] = frozenset()
) -> bool:
    """Return whether other processes' use of a GPU changed the median of a timing that it fell into.

    A desktop's compositor is at work most of the time, and delays a few launches: the median does not see that. GPUs
    give time to one process after the other. A launch that is shorter than such a turn is delayed by a whole one, or
    not at all: if that happens to many, the faster ones are far below the median. A longer launch is stretched by
    the share that others take, each alike. The share of ``tolerated`` processes proves nothing about short launches.
    """
    most: dict[int, int] = {}
    for use in foreign:
        most[use.pid] = max(use.percent, most.get(use.pid, 0))
    share = sum(most.values()) / 100
    if not share or not len(samples):
        return False
    heavy = sum(percent for pid, percent in most.items() if pid not in tolerated) / 100
    if heavy >= HEAVY_SHARE or (share >= STRETCHING_SHARE and samples.median_us >= TURN_US):
        return True
    return samples.quantile(UNDISTURBED) < samples.median_us * (1 - SHIFTED)


def gpu_is_shared(foreign: Sequence[nvml.Sample]) -> bool:
    """Return whether other processes contended for a GPU so much that its energy is not that of one process."""
    most: dict[int, int] = {}
    for use in foreign:
        most[use.pid] = max(use.percent, most.get(use.pid, 0))
    return sum(most.values()) / 100 >= STRETCHING_SHARE


class CpuWatch:
    """Watches the CPUs from its construction on."""

    def __init__(self) -> None:
        self._before = CpuTimes.read()

    def is_contended(self, samples: Samples) -> bool:
        """Return whether other programs took the CPUs while these samples were taken."""
        return cpu_is_contended(self._before, CpuTimes.read())

    def is_shared(self) -> bool:
        """Return whether the energy of the CPUs was taken by other programs, too."""
        return cpu_is_contended(self._before, CpuTimes.read())


@dataclass(slots=True)
class _WatchedGpu:
    """A GPU on which this process has a context, the reason if its use cannot be judged, and what was seen of it last:
    the time of the latest sample, by NVML's clock, and when that was (by this process's, in s).
    """

    gpu: nvml.Gpu | None
    absence: str = ""
    sample_us: int = 0
    seen_s: float = -math.inf


@cache
def _find_watched_gpu(uuid: str) -> _WatchedGpu:
    try:
        gpu = nvml.Gpu(f"GPU-{uuid}")
        # Own work would be taken for that of another process.
        return _WatchedGpu(gpu, "" if os.getpid() in gpu.context_pids() else FOREIGN_PIDS)
    except nvml.Unavailable as error:
        return _WatchedGpu(None, str(error))


class GpuWatch:
    """Watches one GPU, on which this process has a context, from its construction on.

    Without NVML nothing is judged, and :attr:`absence` is the reason. Asking takes a ms or more, in which the GPU is
    idle: watches that follow each other at once ask as often as there may be a new sample, and each goes on from those
    that the ones before it have seen.
    """

    def __init__(
        self, uuid: str, tolerated: Collection[int] = frozenset(), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tolerated = tolerated
        self._clock = clock
        self._watched = _find_watched_gpu(uuid)
        self.absence = self._watched.absence
        self._follows = self._is_recent()
        if not self._follows:
            self._read_samples(0)
        self._since_us = self._watched.sample_us

    def _is_recent(self) -> bool:
        return self._clock() - self._watched.seen_s <= SAMPLED_EACH_S

    def _read_samples(self, since_us: int) -> list[nvml.Sample]:
        if self._watched.gpu is None or self.absence:
            return []
        try:
            found = self._watched.gpu.samples(since_us)
        except nvml.Unavailable as error:
            self.absence = str(error)
            return []
        self._watched.sample_us = max(self._watched.sample_us, *(sample.at_us for sample in found), 0)
        self._watched.seen_s = self._clock()
        return found

    def is_contended(self, samples: Samples) -> bool:
        """Return whether other processes changed the median of these samples, which were taken since."""
        return gpu_is_contended(self._read_foreign_samples(), samples, self._tolerated)

    def is_shared(self) -> bool:
        """Return whether the energy since was taken by other processes, too."""
        return gpu_is_shared(self._read_foreign_samples())

    def _read_foreign_samples(self) -> list[nvml.Sample]:
        if self._follows and self._is_recent():
            # A sample that has come since is left to the next watch, as this one was left the last's.
            return []
        unknown_or_own = (0, os.getpid())
        return [use for use in self._read_samples(self._since_us) if use.pid not in unknown_or_own]


def count_gpu_users(ours: Iterable[int]) -> replies.GpuUsers:
    """Count the processes, other than ``ours``, that worked on each GPU lately, by the GPU's name.

    A process of another PID namespace is not counted, because it may be one of ours.
    """
    known = set(ours)
    since_us = time.time_ns() // 1000 - RECENT_US
    try:
        users = {name: len(_find_working_pids(uuid, since_us) - known) for name, uuid in gpu_uuids().items()}
    except nvml.Unavailable as error:
        return replies.GpuUsers({}, str(error))
    # Without a GPU, NVML has not been asked.
    return replies.GpuUsers(users, "" if users else nvml.absence())


def _find_working_pids(uuid: str, since_us: int) -> set[int]:
    try:
        with nvml.Gpu(uuid) as gpu:
            samples = gpu.samples(since_us)
    except nvml.Unsupported:
        # A partition of a GPU does not report its processes.
        return set()
    pids = {sample.pid for sample in samples if sample.percent > 0 and sample.at_us > since_us}
    return {pid for pid in pids if os.path.exists(f"/proc/{pid}")}
