"""Group sizes for compiling: the gain of grouping is learned, the delay is bounded. No IO."""

from __future__ import annotations

from collections import deque

from ktuned.model import median

PAYS = 0.75
"""Groups pay where a config costs at most this part of one alone: each config is ready only with the last."""

TRY_EVERY = 8
"""One group in so many is a pair while groups do not pay, or that is unknown: the gain may change, for example because
a worker has precompiled headers since."""

_ALONE = 9
_TOGETHER = 3
"""Latest figures of which the median counts: configs differ, and the first in a process costs more than the others."""


def share_of_slot(*, waiting: int, slots: int) -> int:
    """Return how many of the configs that wait one slot takes at most: the last ones are shared among all slots.

    Else one slot has a whole group left while the others stand still.
    """
    return max(1, -(-waiting // max(1, slots)))


class GroupSize:
    """Says how large the next group is: more while the lanes have work, fewer while they wait for it.

    The first is a single config, so that something is measured soon. Beyond pairs it grows only while groups pay:
    several workers with a group each deliver nothing for as long as a group takes, while the lanes run out of work.
    """

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._count = 0
        self._size = 2
        self._alone: deque[float] = deque(maxlen=_ALONE)
        self._together: deque[float] = deque(maxlen=_TOGETHER)

    def next(self, *, lanes_starve: bool) -> int:
        """Return the next group's size."""
        self._count += 1
        if self._largest == 1 or self._count == 1:
            return 1
        if not self.pays:
            return 2 if self._count % TRY_EVERY == 2 else 1
        size = self._size
        self._size = max(1, size // 2) if lanes_starve else min(self._largest, size * 2)
        return size

    def took(self, configs: int, seconds: float) -> None:
        """Take note of what a group took in all, each of whose configs did compile."""
        (self._together if configs > 1 else self._alone).append(seconds / configs)

    @property
    def pays(self) -> bool:
        """True if a config in a group is known to cost clearly less than one alone."""
        if not (self._alone and self._together):
            return False
        return median(self._together) <= PAYS * median(self._alone)
