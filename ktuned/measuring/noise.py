"""Noise of a device's launches, pooled over a kernel's configs, to judge a few samples of a new config. No IO.

Three samples say next to nothing about their own spread. But the configs of one kernel on one device have much the same
relative spread, so it is taken from those that were sampled in full. This is an empirical Bayes estimate (Casella, "An
Introduction to Empirical Bayes Data Analysis", The American Statistician 39, 1985):

1.  For each config of the pool, count the share of samples beyond some distance from its median, and shrink it towards
    the share in the whole pool.
2.  The chance that *every* one of n samples of a new config lies beyond that distance is the mean of the n-th powers of
    those shares. It is not the n-th power of their mean, because the new config may be one of the noisier ones.
3.  Samples are not independent: a slow clock lasts for several of them. If n samples in a row were seen to lie beyond
    the distance more often than the power says, the observed share is used instead.

No shape of the noise is assumed.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import chain

from ktuned.measuring.samples import Samples
from ktuned.model import median

MOST_CONFIGS = 32
"""Most configs in the pool, which keeps the latest: enough to estimate a chance of one in a thousand, and few enough to
follow a device that changes."""

MOST_SAMPLES = 40
"""Most samples of one config that count: thousands would say no more about other configs."""

UNKNOWN = 0.15
"""Relative distance within which :data:`UNKNOWN_COUNT` samples are assumed to lie while the pool is too small.

Together with the race's margin, a config must be about a third slower than the best one, which is more than noise
explains.
"""

UNKNOWN_COUNT = 3
"""Fewer samples decide nothing while the pool is too small."""

_WEIGHT = 2.0
"""Weight of the pool's share against a config's own, as a number of samples."""


class _Distances:
    """Relative distances of one config's samples from its median, on one side; samples on the other side have 0."""

    def __init__(self, taken: Sequence[float]) -> None:
        self._taken = taken
        self.sorted = sorted(taken)
        self._spells: dict[int, Sequence[float]] = {}

    def __len__(self) -> int:
        return len(self.sorted)

    def count_beyond(self, distance: float) -> int:
        """Return the number of samples beyond a distance."""
        return len(self.sorted) - bisect_right(self.sorted, distance)

    def compute_spell_share(self, distance: float, count: int) -> float:
        """Return the share of runs of ``count`` samples in a row of which all lie beyond a distance."""
        if count not in self._spells:
            places = range(len(self._taken) - count + 1)
            self._spells[count] = sorted(min(self._taken[place : place + count]) for place in places)
        spells = self._spells[count]
        return (len(spells) - bisect_right(spells, distance)) / len(spells) if spells else 0.0


class Noise:
    """The pool of one kernel and problem on one device, for one timer.

    The launch that was checked before timing is a sample of another kind: only an upper bound of its time is known,
    which includes the host's work. The pool also learns the ratio of that bound to the median.
    """

    def __init__(self) -> None:
        self._firsts: deque[float] = deque(maxlen=MOST_CONFIGS)
        self._above: deque[_Distances] = deque(maxlen=MOST_CONFIGS)
        self._below: deque[_Distances] = deque(maxlen=MOST_CONFIGS)
        self._distances: dict[tuple[bool, int, float], float] = {}

    def add_config(self, samples: Samples, first_us: float | None = None) -> None:
        """Add a config that was sampled in full, and whose checked launch took at most ``first_us``."""
        median_us = samples.median_us
        if median_us <= 0:
            return
        if first_us is not None:
            self._firsts.append(first_us / median_us)
        counted_us = samples.taken_us[:MOST_SAMPLES]
        self._above.append(_Distances([max(0.0, value / median_us - 1) for value in counted_us]))
        self._below.append(_Distances([max(0.0, 1 - value / median_us) for value in counted_us]))
        self._distances.clear()

    def is_informative(self, count: int, chance: float) -> bool:
        """Return whether the pool is large enough to judge ``count`` samples with this chance of an error."""
        return all(
            pool and _compute_chance(pool, _find_farthest(pool), count) <= chance for pool in (self._above, self._below)
        )

    def is_median_above(
        self, samples: Samples, latency_us: float, chance: float, first_us: float | None = None
    ) -> bool:
        """Return whether a config's median is above a latency, with at most this chance of an error.

        The time of its checked launch, ``first_us``, is further evidence if it is longer than is usual for a config
        with that latency.
        """
        distance = samples.sorted_us[0] / latency_us - 1 if latency_us > 0 else math.inf
        if distance < 0:
            return False
        if len(samples) >= UNKNOWN_COUNT and distance > max(UNKNOWN, _find_farthest(self._above)):
            return True
        if not self._above:
            return False
        by_first = 1.0
        if first_us is not None and latency_us > 0:
            longer = sum(ratio >= first_us / latency_us for ratio in self._firsts)
            by_first = (longer + 1) / (len(self._firsts) + 2)
        return _compute_chance(self._above, distance, len(samples), by_first) <= chance

    def count_deciding_samples(self, first_us: float, latency_us: float, chance: float, most: int) -> int:
        """Return how many samples, at most ``most``, will show that a config is above a latency.

        The samples are predicted from the time of its checked launch, ``first_us``.
        """
        expected = Samples()
        for count in range(1, most if self._firsts else 1):
            expected.add_sample(first_us / median(self._firsts))
            if self.is_median_above(expected, latency_us, chance, first_us):
                return count
        return most

    def find_lowest_median_us(self, samples: Samples, chance: float) -> float:
        """Return a lower bound of a config's median in µs. The median is below it with at most this chance."""
        return samples.sorted_us[0] / (1 + self._find_distance(len(samples), chance, is_above=True))

    def find_highest_median_us(self, samples: Samples, chance: float) -> float:
        """Return an upper bound of a config's median in µs. The median is above it with at most this chance."""
        return samples.sorted_us[-1] / max(1e-9, 1 - self._find_distance(len(samples), chance, is_above=False))

    def _find_distance(self, count: int, chance: float, *, is_above: bool) -> float:
        """Return the distance beyond which all of ``count`` samples lie with at most this chance."""
        key = is_above, count, chance
        if key not in self._distances:
            pool = self._above if is_above else self._below
            farthest = _find_farthest(pool)
            if not pool or _compute_chance(pool, farthest, count) > chance:
                self._distances[key] = max(farthest, UNKNOWN if count >= UNKNOWN_COUNT else math.inf)
            else:
                steps = sorted({0.0, *chain.from_iterable(config.sorted for config in pool)})
                place = bisect_left(steps, True, key=lambda step: _compute_chance(pool, step, count) <= chance)
                self._distances[key] = steps[place]
        return self._distances[key]


def _find_farthest(pool: Sequence[_Distances]) -> float:
    return max((config.sorted[-1] for config in pool), default=0.0)


def _compute_chance(pool: Sequence[_Distances], distance: float, count: int, by_first: float = 1.0) -> float:
    """Return the chance that all of ``count`` samples of another config lie beyond a distance.

    ``by_first`` is the chance that the checked launch before them took as long as it did.
    """
    beyond = [config.count_beyond(distance) for config in pool]
    # Laplace's rule of succession: samples may lie farther away than was ever seen.
    common = (sum(beyond) + 1) / (sum(map(len, pool)) + 2)
    # No config is assumed to be quieter than the pool.
    rates = [
        max(common, (late + _WEIGHT * common) / (len(config) + _WEIGHT))
        for late, config in zip(beyond, pool, strict=True)
    ]
    # A slow spell that covers the samples also covers the launch before them.
    spell = count + (by_first < 1)
    chances = [
        max(rate**count * by_first, config.compute_spell_share(distance, spell))
        for rate, config in zip(rates, pool, strict=True)
    ]
    return math.fsum(chances) / len(chances)
