"""Contention: use of CPUs and GPUs by other programs, for judging a timing.

On CPUs, Linux counts niced time separately, and ktuned's own compile workers are niced. So time that is neither
idle, nor niced, nor this process's own belongs to other programs. On a GPU, NVML lists the processes that worked on it.

A timing is thrown away only if its median was disturbed. Some use by others is normal: a desktop draws, and delays a
few launches. Where use by others cannot be seen, no timing is thrown away.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

from ktuned.backends import CpuTicks, nvml, read_ticks
from ktuned.ipc import requests
from ktuned.measuring.launch_observer import LaunchObserver, Restart
from ktuned.measuring.results import make_failed_result
from ktuned.measuring.samples import Samples
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model import Device, FrozenStruct, Outcome, Phase, TrialResult

CONTENDED_SHARE = 0.6
"""Share of all CPU time that others must take, with hardly any left idle, before a timing is thrown away.

On two cores, one busy neighbour takes half and leaves a core to a single-threaded kernel. Two take two thirds.
"""

IDLE_SHARE = 0.05
MIN_WINDOW_TICKS = 20
"""Shorter timings are not judged: Linux counts CPU time in ticks of 10 ms."""

HEAVY_SHARE = 0.3
"""Share of a GPU's time from which use by others makes a timing useless, whatever its samples look like."""

STRETCHING_SHARE = 0.05
"""The same share for launches longer than :data:`TURN_US`, which become longer by about the share that others take."""

TURN_US = 1_000.0
"""Length in µs from which launches are stretched by others, not delayed. A GPU's turn for one process is a few ms."""

UNDISTURBED = 0.1
"""Share of a timing's samples, the fastest, that are assumed to be undisturbed."""

SHIFTED = 0.05
"""If the undisturbed samples are this far below the median, relative to it, the median itself was disturbed."""

SAMPLED_EACH_S = 0.1
"""Interval of NVML's samples of a process: a sample that is younger is as good as a new one."""

FOREIGN_PIDS = "NVML names processes of another PID namespace (run the container with --pid=host)"

_NO_TICKS = CpuTicks(*[0] * len(CpuTicks._fields))


class CpuTimes(FrozenStruct):
    """CPU time since boot, in ticks: the machine's by kind, and this process's own."""

    machine: CpuTicks
    own: float

    @classmethod
    def read(cls) -> Self:
        """Read both. Without ``/proc/stat``, no time seems to pass, so that no timing is thrown away."""
        own = os.times()
        return cls(read_ticks() or _NO_TICKS, (own.user + own.system) * os.sysconf("SC_CLK_TCK"))


def compute_foreign_share(before: CpuTimes, after: CpuTimes) -> float:
    """Return the share of all CPU time that other programs took between two readings."""
    passed = after.machine.since(before.machine)
    others = passed.total - passed.unused - passed.nice - (after.own - before.own)
    return others / passed.total if passed.total else 0.0


def is_cpu_contended(before: CpuTimes, after: CpuTimes) -> bool:
    """Return whether other programs took the CPUs that the kernel needed, between two readings."""
    passed = after.machine.since(before.machine)
    if passed.total < MIN_WINDOW_TICKS:
        return False
    return passed.unused / passed.total < IDLE_SHARE and compute_foreign_share(before, after) > CONTENDED_SHARE


def is_gpu_contended(
    foreign: Sequence[nvml.Sample], samples: Samples, tolerated: Collection[int] = frozenset()
) -> bool:
    """Return whether other processes' use of a GPU changed the median of a timing.

    A GPU gives time to one process after the other. A launch that is shorter than such a turn is delayed by a whole
    turn or not at all. If a desktop's compositor delays a few, the median does not change; if many are delayed, the
    fast ones are far below the median. A launch that is longer than a turn is stretched by the share that others take,
    and so are all its samples.

    Args:
        foreign: NVML's samples of other processes during the timing.
        samples: the timing's samples.
        tolerated: processes whose share proves nothing about short launches.
    """
    share = _sum_shares(foreign)
    if not share or not len(samples):
        return False
    heavy = _sum_shares(use for use in foreign if use.pid not in tolerated)
    if heavy >= HEAVY_SHARE or (share >= STRETCHING_SHARE and samples.median_us >= TURN_US):
        return True
    return samples.compute_quantile(UNDISTURBED) < samples.median_us * (1 - SHIFTED)


def is_gpu_shared(foreign: Sequence[nvml.Sample]) -> bool:
    """Return whether other processes used a GPU so much that its counters are not those of one process."""
    return _sum_shares(foreign) >= STRETCHING_SHARE


def _sum_shares(uses: Iterable[nvml.Sample]) -> float:
    """Return the share of a GPU's time that processes took together, each by its busiest sample."""
    busiest: dict[int, int] = {}
    for use in uses:
        busiest[use.pid] = max(use.percent, busiest.get(use.pid, 0))
    return sum(busiest.values()) / 100


class CpuWatch:
    """Watches the CPUs, from its construction on."""

    absence = ""

    def __init__(self) -> None:
        self._before = CpuTimes.read()

    def is_contended(self, samples: Samples | None = None) -> bool:
        """Return whether other programs took the CPUs since the watch began."""
        return is_cpu_contended(self._before, CpuTimes.read())

    is_shared = is_contended

    def is_used_by_others(self) -> bool:
        """Return whether other programs have used the CPUs at all since the watch began."""
        return compute_foreign_share(self._before, CpuTimes.read()) >= STRETCHING_SHARE


@dataclass(slots=True)
class _WatchedGpu:
    """A GPU on which this process has a context.

    Attributes:
        gpu: NVML's handle; ``None`` if there is none.
        absence: why use by others cannot be judged; empty if it can.
        sample_us: the time of the latest sample seen, by NVML's clock.
        seen_s: when NVML was asked for that sample, by this process's clock.
    """

    gpu: nvml.Gpu | None
    absence: str = ""
    sample_us: int = 0
    seen_s: float = -math.inf


@cache
def _find_watched_gpu(uuid: str) -> _WatchedGpu:
    try:
        gpu = nvml.Gpu(f"GPU-{uuid}")
        # In another PID namespace, this process's own work would look like another process's.
        return _WatchedGpu(gpu, "" if os.getpid() in gpu.list_context_pids() else FOREIGN_PIDS)
    except nvml.Unavailable as error:
        return _WatchedGpu(None, str(error))


class GpuWatch:
    """Watches one GPU on which this process has a context, from its construction on.

    Without NVML nothing is judged, and :attr:`absence` says why. Asking NVML takes a ms or more, while the GPU is idle.
    So a watch that begins soon after another one does not ask again. It starts from the samples that the previous watch
    has seen, and leaves samples that do not exist yet to the next watch.
    """

    def __init__(
        self, uuid: str, tolerated: Collection[int] = frozenset(), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tolerated = tolerated
        self._clock = clock
        self._watched = _find_watched_gpu(uuid)
        self.absence = self._watched.absence
        self._continues_last_watch = self._is_recent()
        if not self._continues_last_watch:
            self._read_samples(0)
        self._since_us = self._watched.sample_us

    def _is_recent(self) -> bool:
        return self._clock() - self._watched.seen_s <= SAMPLED_EACH_S

    def _read_samples(self, since_us: int) -> list[nvml.Sample]:
        if self._watched.gpu is None or self.absence:
            return []
        try:
            samples = self._watched.gpu.read_samples(since_us)
        except nvml.Unavailable as error:
            self.absence = str(error)
            return []
        self._watched.sample_us = max(self._watched.sample_us, *(sample.at_us for sample in samples), 0)
        self._watched.seen_s = self._clock()
        return samples

    def is_contended(self, samples: Samples) -> bool:
        """Return whether other processes changed the median of the samples that were taken since the watch began."""
        return is_gpu_contended(self._read_foreign_samples(), samples, self._tolerated)

    def is_shared(self) -> bool:
        """Return whether other processes have used a part of the GPU since the watch began."""
        return is_gpu_shared(self._read_foreign_samples())

    is_used_by_others = is_shared

    def _read_foreign_samples(self) -> list[nvml.Sample]:
        if self._continues_last_watch and self._is_recent():
            # There may be a new sample. The next watch will see it, just as this watch saw those of the previous one.
            return []
        unknown_or_own = (0, os.getpid())
        return [use for use in self._read_samples(self._since_us) if use.pid not in unknown_or_own]


def watch_device(device: Device, tolerated: Collection[int] = ()) -> CpuWatch | GpuWatch:
    """Watch a device from now on; on a GPU this process must have a context."""
    if device.kind != "cuda":
        return CpuWatch()
    import torch

    return GpuWatch(str(torch.cuda.get_device_properties(device.name).uuid), tolerated)


class ContentionWatch(LaunchObserver):
    """Discards the figures of a config if other programs disturbed them and the request asks for that.

    A latency is disturbed if its median is. A metric with launches of its own is disturbed by any use that is not
    negligible.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._watch: CpuWatch | GpuWatch | None = None

    def begin_samples(self) -> None:
        """Begin to watch the device."""
        if not self.request.judge_contention:
            self._watch = None
        else:
            tolerated = self.request.tolerated if isinstance(self.request, requests.Trial) else ()
            self._watch = watch_device(self._device, tolerated)

    def end_samples(self, timed: TrialResult, samples: Samples) -> TrialResult:
        """Judge the latency. A hopeless config stays hopeless, however busy other programs were."""
        if self._watch is None or timed.outcome is not Outcome.MEASURED:
            return timed
        return self._make_contended_result(timed) if self._watch.is_contended(samples) else timed

    def complete_result(self, timed: TrialResult, launches: TimedLaunches, restart: Restart) -> TrialResult:
        """Judge what other observers have measured by launches of their own. Say so if use by others cannot be seen."""
        if self._watch is None or timed.latency_us is None:
            return timed
        if timed.metrics and self._watch.is_shared():
            return self._make_contended_result(timed)
        absence = self._watch.absence
        return timed.add_facts("profile", contention=f"not judged: {absence}") if absence else timed

    def _make_contended_result(self, timed: TrialResult) -> TrialResult:
        """Return the result without a figure; the fastest of its timings stays, because disturbance only adds time."""
        used = f"other programs used {self._device.name} while this was timed"
        remedy = "`contention = false` in config.toml keeps such timings, `ktuned config` prints its path"
        result = make_failed_result(Outcome.CONTENDED, f"{used} ({remedy})", Phase.TIMING)
        fastest = min(timed.detail.timing.samples or (), default=timed.detail.timing.low_us)
        return result.add_facts("timing", low_us=fastest)
