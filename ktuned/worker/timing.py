"""Timing of a launch: samples until the median is known well enough. The deciding part does no IO.

The figure is a median, never a mean: on a machine that does other things as well, a few samples are very late,
and a mean follows them (a 4.6 µs kernel was seen with a mean of 156 µs beside 32 compilers).
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter_ns

from ktuned.model import Preset

RELATIVE_CI = 0.01
"""Half-width of the median's 95 % confidence interval, relative to the median, at which sampling stops."""

SAMPLE_FLOOR_NS = 50_000
"""A sample lasts at least this long, so that reading the clock (some 50 ns) costs under 0.2 % of it."""

MAX_LAUNCHES_PER_SAMPLE = 10_000
EARLY_STOP_LAUNCHES = 5
"""Launches whose best decides whether a kernel is too slow to go on: one alone may just have been interrupted."""

_MIN_SAMPLES_FOR_CI = 6
_Z95 = 1.96


@dataclass
class Samples:
    """Launch times in µs, kept sorted, with the statistics that decide."""

    sorted_us: list[float] = field(default_factory=list)

    def add(self, microseconds: float) -> None:
        """Take one more sample."""
        insort(self.sorted_us, microseconds)

    def __len__(self) -> int:
        return len(self.sorted_us)

    def quantile(self, fraction: float) -> float:
        """Return a quantile by linear interpolation between the closest ranks."""
        position = fraction * (len(self.sorted_us) - 1)
        low = math.floor(position)
        high = math.ceil(position)
        return self.sorted_us[low] + (self.sorted_us[high] - self.sorted_us[low]) * (position - low)

    @property
    def median_us(self) -> float:
        """The median, in µs."""
        return self.quantile(0.5)

    @property
    def spread_us(self) -> float:
        """The interquartile range, in µs."""
        return self.quantile(0.75) - self.quantile(0.25)

    @property
    def relative_ci(self) -> float:
        """:attr:`ci_us` relative to the median; infinite when there are too few samples."""
        return self.ci_us / self.median_us if self.median_us else 0.0

    @property
    def ci_us(self) -> float:
        """Half the width of the median's 95 % confidence interval, in µs; infinite when there are too few samples.

        By order statistics, which assumes no distribution: the ranks are n/2 ∓ 1.96 √n / 2 (Conover, *Practical
        Nonparametric Statistics*, 3.2).
        """
        n = len(self.sorted_us)
        if n < _MIN_SAMPLES_FOR_CI:
            return math.inf
        reach = _Z95 * math.sqrt(n) / 2
        low = max(0, math.floor(n / 2 - reach) - 1)
        high = min(n - 1, math.ceil(n / 2 + reach))
        return (self.sorted_us[high] - self.sorted_us[low]) / 2


def is_enough(samples: Samples, preset: Preset, elapsed_s: float, *, known_to_us: float = 0.0) -> bool:
    """Decide whether to stop sampling: the median is known to 1 % or to ``known_to_us``, or the time is spent."""
    if not len(samples):
        return False
    if elapsed_s >= preset.timing_s:
        return True
    is_known = samples.relative_ci <= RELATIVE_CI or samples.ci_us <= known_to_us
    return len(samples) >= preset.repetitions and is_known


def launches_per_sample(launch_ns: int, *, restores: bool) -> int:
    """Return how many launches make one sample of a kernel that takes ``launch_ns``.

    One, when something must be restored before each run.
    """
    if restores or launch_ns >= SAMPLE_FLOOR_NS:
        return 1
    return min(MAX_LAUNCHES_PER_SAMPLE, math.ceil(SAMPLE_FLOOR_NS / max(launch_ns, 1)))


@dataclass(frozen=True, slots=True)
class Timing:
    """The samples of one kernel; ``stopped_early`` when it was too slow to go on."""

    samples: Samples
    stopped_early: bool


def time_on_host(
    launch: Callable[[], None],
    preset: Preset,
    *,
    restore: Callable[[], None] | None = None,
    stop_above_us: float | None = None,
) -> Timing:
    """Time a launch that returns when its work is done (a CPU kernel), by the host's monotonic clock.

    Caches are warm: the runs follow each other on the same data, as in a loop of an application. ``restore`` runs,
    untimed, before each launch. Sampling does not begin when the best of the first launches exceeds ``stop_above_us``.
    """
    warm = Samples()
    wanted = max(1, preset.warmup, EARLY_STOP_LAUNCHES if stop_above_us is not None else 0)
    start = perf_counter_ns()
    while len(warm) < wanted and (len(warm) == 0 or (perf_counter_ns() - start) / 1e9 < preset.timing_s):
        if restore is not None:
            restore()
        begin = perf_counter_ns()
        launch()
        warm.add((perf_counter_ns() - begin) / 1000)
    fastest_us = warm.sorted_us[0]
    if stop_above_us is not None and fastest_us > stop_above_us:
        return Timing(warm, stopped_early=True)
    launches = launches_per_sample(int(fastest_us * 1000), restores=restore is not None)
    samples = Samples()
    start = perf_counter_ns()
    while not is_enough(samples, preset, (perf_counter_ns() - start) / 1e9):
        for _ in range(preset.repetitions):
            if restore is not None:
                restore()
            begin = perf_counter_ns()
            for _ in range(launches):
                launch()
            samples.add((perf_counter_ns() - begin) / launches / 1000)
            if (perf_counter_ns() - start) / 1e9 >= preset.timing_s:
                break
    return Timing(samples, stopped_early=False)


class HostTimer:
    """Times launches that return when their work is done, by the host's clock."""

    def synchronize(self) -> None:
        """Do nothing: there is nothing to wait for."""

    def time(
        self,
        launch: Callable[[], None],
        preset: Preset,
        *,
        restore: Callable[[], None] | None = None,
        stop_above_us: float | None = None,
    ) -> Timing:
        """Sample a launch; see :func:`time_on_host`."""
        return time_on_host(launch, preset, restore=restore, stop_above_us=stop_above_us)
