"""Samples of a launch's time, and what they say about its median: quartiles, and an interval. No IO.

The figure is a median, never a mean: on a machine that does other things as well, a few samples are very late,
and a mean follows them (a 4.6 µs kernel was seen with a mean of 156 µs beside 32 compilers).
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass, field
from functools import cache

FEWEST_FOR_CI = 6
"""Fewer samples have no 95 % interval: even their whole range misses the median more often than that."""

_MISSED = 0.025
_Z95 = 1.96
_EXACT_UP_TO = 60
"""Sizes up to which the interval's ranks are counted exactly; from there on the normal approximation is as good."""


@dataclass
class Samples:
    """Launch times in µs, kept sorted and as they came, with the statistics that decide."""

    sorted_us: list[float] = field(default_factory=list)
    taken_us: list[float] = field(default_factory=list)

    def add(self, microseconds: float) -> None:
        """Take one more sample."""
        insort(self.sorted_us, microseconds)
        self.taken_us.append(microseconds)

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
    def interval_us(self) -> tuple[float, float]:
        """The median's 95 % confidence interval, in µs; with fewer than :data:`FEWEST_FOR_CI` samples their range.

        By order statistics, which assumes no distribution (Conover, *Practical Nonparametric Statistics*, 3.2).
        """
        low = _find_interval_rank(len(self.sorted_us))
        return self.sorted_us[low], self.sorted_us[-1 - low]


@cache
def _find_interval_rank(n: int) -> int:
    """Return the place, from either end of ``n`` sorted samples, of the 95 % interval's ends.

    The sample at place k is above the median if at most k of n fair coins show heads.
    """
    if n > _EXACT_UP_TO:
        return max(0, math.floor(n / 2 - _Z95 * math.sqrt(n) / 2) - 1)
    misses = 0
    for k in range(n // 2):
        misses += math.comb(n, k)
        if misses > _MISSED * 2**n:
            return max(0, k - 1)
    return 0
