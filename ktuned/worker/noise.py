"""Noise of a device's launches, pooled over a kernel's configs: what a few samples of another config are worth. No IO.

Three samples say next to nothing about their own spread, but the relative spread of one kernel's configs on one device
is much the same. So it is taken from those that were sampled in full: an empirical Bayes estimate (Casella, "An
Introduction to Empirical Bayes Data Analysis", The American Statistician 39, 1985). For each of them the rate of
samples beyond a distance from its median is counted, and shrunk towards the rate of all. The chance that *every* sample
of a new config lies beyond it is the mean of those rates' powers, not the power of their mean: where some configs are
noisier than others, the new one may be such a one. Nor are samples independent: a slow spell that covered as many of
them in a row counts as it was seen. No shape of the noise is assumed.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import chain

from ktuned.model import median
from ktuned.worker.samples import Samples

MOST_CONFIGS = 32
"""Configs in the pool, the latest: enough to know one in a thousand, and few enough to follow a device that changes."""

MOST_SAMPLES = 40
"""Samples that count of one config: one that is timed thousands of times is no better an example of the others."""

UNKNOWN = 0.15
"""Distance of :data:`UNKNOWN_COUNT` samples from a median while the pool knows too little.

With the race's margin it is a third, more than chance makes of the best config.
"""

UNKNOWN_COUNT = 3
"""Fewer samples decide nothing while the pool knows too little."""

_WEIGHT = 2.0
"""Samples that the pool's rate is worth in a config's own."""


class _Distances:
    """Distances of one config's samples from its median to one side, relative to it; those to the other side are 0."""

    def __init__(self, taken: Sequence[float]) -> None:
        self._taken = taken
        self.sorted = sorted(taken)
        self._spells: dict[int, Sequence[float]] = {}

    def __len__(self) -> int:
        return len(self.sorted)

    def count_beyond(self, distance: float) -> int:
        """Return how many samples lie beyond a distance."""
        return len(self.sorted) - bisect_right(self.sorted, distance)

    def share_of_spells_beyond(self, distance: float, count: int) -> float:
        """Return the share of so many samples in a row that all lie beyond a distance."""
        if count not in self._spells:
            places = range(len(self._taken) - count + 1)
            self._spells[count] = sorted(min(self._taken[place : place + count]) for place in places)
        spells = self._spells[count]
        return (len(spells) - bisect_right(spells, distance)) / len(spells) if spells else 0.0


class Noise:
    """The pool of one kernel and problem on one device, as one timer sees it.

    The launch that was checked before a config was timed is a sample of another kind: it took at most so long, with
    what the host did for it. How much longer it seems than the median is known from the pool's configs, too.
    """

    def __init__(self) -> None:
        self._firsts: deque[float] = deque(maxlen=MOST_CONFIGS)
        self._above: deque[_Distances] = deque(maxlen=MOST_CONFIGS)
        self._below: deque[_Distances] = deque(maxlen=MOST_CONFIGS)
        self._known: dict[tuple[bool, int, float], float] = {}

    def add_config(self, samples: Samples, first_us: float | None = None) -> None:
        """Add a config that was sampled in full; its checked launch took at most ``first_us``."""
        median_us = samples.median_us
        if median_us <= 0:
            return
        if first_us is not None:
            self._firsts.append(first_us / median_us)
        few = samples.taken_us[:MOST_SAMPLES]
        self._above.append(_Distances([max(0.0, value / median_us - 1) for value in few]))
        self._below.append(_Distances([max(0.0, 1 - value / median_us) for value in few]))
        self._known.clear()

    def is_informative(self, count: int, chance: float) -> bool:
        """Return whether the pool says anything of so many samples, with this chance of an error."""
        return all(
            pool and _compute_chance(pool, _find_farthest(pool), count) <= chance for pool in (self._above, self._below)
        )

    def is_above(self, samples: Samples, latency_us: float, chance: float, first_us: float | None = None) -> bool:
        """Return whether a config's median is above a latency, with no more than this chance of an error.

        Its checked launch of ``first_us`` before the samples says so, too, where it took as long as such a config's
        seldom seem to.
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
        """Return how many samples, ``most`` at the most, show that a config is above a latency, if they say what is to
        be expected after its checked launch of ``first_us``.
        """
        expected = Samples()
        for count in range(1, most if self._firsts else 1):
            expected.add(first_us / median(self._firsts))
            if self.is_above(expected, latency_us, chance, first_us):
                return count
        return most

    def find_lowest_median_us(self, samples: Samples, chance: float) -> float:
        """Return the latency that a config's median is below with no more than this chance."""
        return samples.sorted_us[0] / (1 + self._find_distance(len(samples), chance, is_above=True))

    def find_highest_median_us(self, samples: Samples, chance: float) -> float:
        """Return the latency that a config's median is above with no more than this chance."""
        return samples.sorted_us[-1] / max(1e-9, 1 - self._find_distance(len(samples), chance, is_above=False))

    def _find_distance(self, count: int, chance: float, *, is_above: bool) -> float:
        """Return the distance beyond which so many samples of a config all lie with no more than this chance."""
        key = is_above, count, chance
        if key not in self._known:
            self._known[key] = _find_distance(self._above if is_above else self._below, count, chance)
        return self._known[key]


def _find_farthest(pool: Sequence[_Distances]) -> float:
    return max((one.sorted[-1] for one in pool), default=0.0)


def _find_distance(pool: Sequence[_Distances], count: int, chance: float) -> float:
    if not pool or _compute_chance(pool, _find_farthest(pool), count) > chance:
        return max(_find_farthest(pool), UNKNOWN if count >= UNKNOWN_COUNT else math.inf)
    steps = sorted({0.0, *chain.from_iterable(one.sorted for one in pool)})
    return steps[bisect_left(steps, True, key=lambda step: _compute_chance(pool, step, count) <= chance)]


def _compute_chance(pool: Sequence[_Distances], distance: float, count: int, by_first: float = 1.0) -> float:
    """Return the chance that so many samples of a config like those of the pool all lie beyond a distance, and the
    launch before them took as long as it did, which alone has the chance ``by_first``.
    """
    beyond = [one.count_beyond(distance) for one in pool]
    # Laplace's rule of succession: what was never seen may happen next time.
    common = (sum(beyond) + 1) / (sum(map(len, pool)) + 2)
    # No config is taken to be quieter than the pool.
    rates = [
        max(common, (late + _WEIGHT * common) / (len(one) + _WEIGHT)) for late, one in zip(beyond, pool, strict=True)
    ]
    # A spell that lay over the samples lay over the launch before them as well.
    spell = count + (by_first < 1)
    chances = [
        max(rate**count * by_first, one.share_of_spells_beyond(distance, spell))
        for rate, one in zip(rates, pool, strict=True)
    ]
    return math.fsum(chances) / len(chances)
