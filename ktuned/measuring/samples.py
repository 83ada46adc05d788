"""Samples of a launch's time, with their median, quartiles and the median's interval. No IO.

A config's latency is a median, never a mean. On a busy machine a few samples take very long, and the mean follows them:
alongside 32 compilers, a kernel of 4.6 µs had a mean of 156 µs.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass, field
from functools import cache

FEWEST_FOR_CI = 6
"""Fewer samples give no 95 % interval, because even their whole range misses the median more often than that."""

_MISSED = 0.025
_Z95 = 1.96
_EXACT_UP_TO = 60
"""Number of samples up to which the interval's ranks are exact; above it, a normal approximation is as good."""


@dataclass
class Samples:
    """Launch times in µs, both sorted and in the order in which they were taken."""

    sorted_us: list[float] = field(default_factory=list)
    taken_us: list[float] = field(default_factory=list)

    def add_sample(self, microseconds: float) -> None:
        """Add a sample."""
        insort(self.sorted_us, microseconds)
        self.taken_us.append(microseconds)

    def __len__(self) -> int:
        return len(self.sorted_us)

    def compute_quantile(self, fraction: float) -> float:
        """Return a compute_quantile by linear interpolation between the closest ranks."""
        position = fraction * (len(self.sorted_us) - 1)
        low = math.floor(position)
        high = math.ceil(position)
        return self.sorted_us[low] + (self.sorted_us[high] - self.sorted_us[low]) * (position - low)

    @property
    def median_us(self) -> float:
        """The median, in µs."""
        return self.compute_quantile(0.5)

    @property
    def spread_us(self) -> float:
        """The interquartile range, in µs."""
        return self.compute_quantile(0.75) - self.compute_quantile(0.25)

    @property
    def interval_us(self) -> tuple[float, float]:
        """The 95 % confidence interval of the median, in µs; the range of fewer than :data:`FEWEST_FOR_CI` samples.

        By order statistics, which assume no distribution (Conover, *Practical Nonparametric Statistics*, 3.2).
        """
        low = _find_interval_rank(len(self.sorted_us))
        return self.sorted_us[low], self.sorted_us[-1 - low]


@cache
def _find_interval_rank(n: int) -> int:
    """Return the rank of the 95 % interval's ends among ``n`` sorted samples, counted from either end.

    The sample of rank k is above the median if at most k of n fair coins show heads.
    """
    if n > _EXACT_UP_TO:
        return max(0, math.floor(n / 2 - _Z95 * math.sqrt(n) / 2) - 1)
    misses = 0
    for k in range(n // 2):
        misses += math.comb(n, k)
        if misses > _MISSED * 2**n:
            return max(0, k - 1)
    return 0
