"""Sizes of requests: how many configs travel together, and how far ahead of their outcomes they are asked for. No IO.

Each message wakes a process, which costs as much as all else that the daemon does for a trial. So what takes little
time travels together, as long as nothing is decided between. What takes long travels alone: a result is seen at once,
another job may have the lane, and a strategy that learns chooses with it.

A *group* is compiled as one program, where a backend gains by that: its gain is learned, and its delay bounded.
"""

from __future__ import annotations

from collections import deque

from ktuned.model import median

MAX_BATCH = 16
"""Configs that travel together at most. Eight share most of a message's cost here; to another
machine, where a message costs a millisecond, sixteen do."""

LEAST_ASKED = 4
MAX_ASKED = 32
"""Configs in one question and in one commit: one question after the other would hold up hundreds of lanes, and a larger
one holds up lookups, by 20 µs a config."""

OPENING_AHEAD = 64
"""Configs besides that may be compiled while the lanes are opened, for a second or three: slots that stand still then
are missed later. Not where the strategy learns or time ends the search, since they would be measured after it."""

LANE_S = 0.5
"""Time of a lane for one batch: another job may wait for it."""

COMPILE_S = 0.1
"""Time of a slot for one batch: a lane may wait for the first of it."""

HOLD_GPU_S = 0.05
"""Time for which a GPU's results are held back: the daemon's work does not disturb its timing."""

_LATEST = 15
"""Latest figures of which the median counts: the first in a process costs more than the others."""


class BatchSize:
    """Says how many configs one request may hold, so that it takes at most ``limit_s``; one, until that is known."""

    def __init__(self, limit_s: float, most: int = MAX_BATCH) -> None:
        self._limit_s = limit_s
        self._most = most
        self._each_s: deque[float] = deque(maxlen=_LATEST)

    def record_request(self, configs: int, seconds: float) -> None:
        """Take note of what a request took in all."""
        if configs:
            self._each_s.append(seconds / configs)

    @property
    def next_size(self) -> int:
        """The size of the next batch."""
        if not self._each_s:
            return 1
        return max(1, min(self._most, int(self._limit_s / max(median(self._each_s), 1e-6))))


def limit_share_of_lane(*, waiting: int, lanes: int, batch: int) -> int:
    """Return how many of those that wait a lane takes at once, so that all lanes end at about the same time."""
    return min(batch, max(1, -(-waiting // lanes)))


def limit_question_size(*, lanes: int, batch: int) -> int:
    """Return how many configs a strategy that does not learn is asked for in one request: a batch for each lane."""
    return min(MAX_ASKED, max(LEAST_ASKED, lanes * batch))


def limit_configs_under_way(*, slots: int, group: int, lanes: int, batch: int, is_opening: bool = False) -> int:
    """Return how many configs may be under way, without an outcome, before more are asked for.

    A group in each slot and one more that waits for it; for each lane what it measures and what it takes next; more
    while the lanes are opened.
    """
    most = 2 * slots * max(group, batch) + 2 * lanes * batch + group + lanes
    return most + OPENING_AHEAD if is_opening else most


PAYS = 0.75
"""Groups pay where a config costs at most this part of one alone: each config is ready only with the last."""

TRY_EVERY = 8
"""One group in so many is a pair while groups do not pay, or that is unknown: the gain may change, for example because
a worker has precompiled headers since."""

_ALONE = 9
_TOGETHER = 3
"""Latest figures of which the median counts: configs differ, and the first in a process costs more than the others."""


def limit_share_of_slot(*, waiting: int, slots: int) -> int:
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

    def choose_next_size(self, *, lanes_starve: bool) -> int:
        """Return the next group's size."""
        self._count += 1
        if self._largest == 1 or self._count == 1:
            return 1
        if not self.pays:
            return 2 if self._count % TRY_EVERY == 2 else 1
        size = self._size
        self._size = max(1, size // 2) if lanes_starve else min(self._largest, size * 2)
        return size

    def record_group(self, configs: int, seconds: float) -> None:
        """Take note of what a group took in all, each of whose configs did compile."""
        (self._together if configs > 1 else self._alone).append(seconds / configs)

    @property
    def pays(self) -> bool:
        """True if a config in a group is known to cost clearly less than one alone."""
        if not (self._alone and self._together):
            return False
        return median(self._together) <= PAYS * median(self._alone)
