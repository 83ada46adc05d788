"""Limits of a job's requests: how many configs share one, how many are under way at once, how long each phase may take.

*Batches.* Each message wakes a process, which costs as much as everything else that the daemon does for a trial. So
short work shares a request, as long as nothing is decided in between. Long work has a request for itself: its result is
seen at once, another job can have the lane next, and a strategy that learns can use the result. The size of a batch
follows from the time that the latest requests took.

*Groups.* A backend may compile several configs as one program. That saves time if most of it goes into common headers,
but it delays results: a group delivers nothing until it is complete. So the gain is measured with an occasional pair,
and groups grow only while they pay and the lanes have work.

*Sharing out.* The last configs are divided among all lanes and slots, so that they finish at about the same time.

*Deadlines.* Each phase of a trial has a deadline. A known best config shortens those of later trials.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, TypeVar

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ktuned.model import Phase, Preset, median
from ktuned.protocol import ChannelInfo

MAX_BATCH = 16
"""Most configs in one request. On one machine, eight are enough to make a message's cost small; to another machine a
message costs a millisecond, and it takes sixteen."""

LEAST_ASKED = 4
MAX_ASKED = 32
"""Fewest and most configs in one question to a strategy, and so in one commit. Small questions cannot keep hundreds of
lanes busy; large ones delay lookups by 20 µs for each config."""

OPENING_AHEAD = 64
"""Additional configs that may be compiled in the one to three seconds while the lanes are opened; the slots would be
idle otherwise. Not used if the strategy learns, or if time ends the search before these configs could be measured."""

LANE_S = 0.5
"""Time that one batch may take on a lane: another job may wait for the lane."""

COMPILE_S = 0.1
"""Time that one batch may take in a slot: a lane may wait for the batch's first config."""

HOLD_GPU_S = 0.05
"""How long a GPU's worker holds results back to send them together. A CPU's worker does so for :data:`LANE_S`, because
the daemon's work on a result would disturb the next timing."""

_LATEST = 15
"""Number of latest requests whose median time counts. A median, because a process's first request takes longer."""


class BatchSize:
    """The number of configs in a request that takes at most ``limit_s``; 1 until a request's time is known."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._each_s: deque[float] = deque(maxlen=_LATEST)

    def record_request(self, configs: int, seconds: float) -> None:
        """Take note of the time that a request took in all, in s."""
        if configs:
            self._each_s.append(seconds / configs)

    @property
    def next_size(self) -> int:
        """The size of the next batch."""
        if not self._each_s:
            return 1
        return max(1, min(MAX_BATCH, int(self._limit_s / max(median(self._each_s), 1e-6))))


def limit_share(waiting: int, takers: int) -> int:
    """Return the most waiting configs that one of ``takers`` (lanes or slots) takes, so that all finish together."""
    return max(1, -(-waiting // max(1, takers)))


def limit_question_size(*, lanes: int, batch: int) -> int:
    """Return the number of configs in one question to a strategy that does not learn: a batch for each lane."""
    return min(MAX_ASKED, max(LEAST_ASKED, lanes * batch))


def limit_configs_under_way(*, slots: int, group: int, lanes: int, batch: int, is_opening: bool = False) -> int:
    """Return how many configs may be under way, without an outcome, before the strategy is asked for more.

    Each slot has a group and another that waits for it. Each lane has a batch that it measures, and one that it takes
    next. While the lanes are opened, :data:`OPENING_AHEAD` more are allowed.
    """
    most = 2 * slots * max(group, batch) + 2 * lanes * batch + group + lanes
    return most + OPENING_AHEAD if is_opening else most


WORTHWHILE = 0.75
"""Groups pay if a config in a group costs at most this share of a config alone. Less gain is not worth the delay."""

TRY_EVERY = 8
"""Unless groups are known to pay, one request in this many is a pair, to find out: the gain may change, for example
when workers have precompiled headers."""

_ALONE = 9
_TOGETHER = 3
"""Numbers of latest figures whose median counts, for configs alone and in groups. A median, because configs differ and
the first one in a process takes longer."""


class GroupSize(msgspec.Struct, eq=False):
    """Decides how large the next group is: larger while the lanes have work, smaller while they starve.

    The first group is a single config, so that something is measured soon. Groups become larger than pairs only while
    they pay: until a large group is complete, it delivers nothing, and the lanes may run out of work.
    """

    largest: int
    _count: int = 0
    _size: int = 2
    _alone: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=_ALONE))
    _together: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=_TOGETHER))

    def choose_next_size(self, *, lanes_starve: bool) -> int:
        """Return the next group's size."""
        self._count += 1
        if self.largest == 1 or self._count == 1:
            return 1
        if not self.saves_time:
            return 2 if self._count % TRY_EVERY == 2 else 1
        size = self._size
        self._size = max(1, size // 2) if lanes_starve else min(self.largest, size * 2)
        return size

    def record_group(self, configs: int, seconds: float) -> None:
        """Take note of the time that a group took in all, in s; each of its configs must have compiled."""
        (self._together if configs > 1 else self._alone).append(seconds / configs)

    @property
    def saves_time(self) -> bool:
        """True if a config in a group is known to take clearly less time than a config alone."""
        if not (self._alone and self._together):
            return False
        return median(self._together) <= WORTHWHILE * median(self._alone)


T = TypeVar("T")


def describe_stream(stream: MemoryObjectSendStream[Any]) -> ChannelInfo:
    """Return how full a channel is."""
    now = stream.statistics()
    return ChannelInfo(now.current_buffer_used, int(now.max_buffer_size))


def receive_waiting(first: T, channel: MemoryObjectReceiveStream[T], most: int | None = None) -> list[T]:
    """Return ``first``, which was received already, and items that wait in its channel; in total at most ``most``."""
    received = [first]
    with suppress(anyio.WouldBlock, anyio.EndOfStream):
        while most is None or len(received) < most:
            received.append(channel.receive_nowait())
    return received


DEFAULT_DEADLINES: Mapping[str, float] = MappingProxyType(
    {
        # An interpreter starts in 0.1 s, but may need many seconds on a swapping machine or a cold network file system.
        "spawn": 30.0,
        # A kernel file may import torch: 2 to 10 s when the disk is cold.
        "inspect": 60.0,
        # nvcc takes half a minute for a heavy template; ptxas sometimes never ends.
        "compile": 180.0,
        # Loading is a dlopen or a module load, but the first one on a GPU makes a context.
        "load": 60.0,
        # The reference is an unoptimised program, run once.
        "reference": 120.0,
        # One run of a kernel takes milliseconds; ten seconds are for kernels that build tables first.
        "first_launch": 10.0,
        # Comparing two tensors, or the kernel file's own check.
        "check": 60.0,
        # The preset caps the total of many runs; this deadline is for a single run that never returns.
        "timing": 30.0,
        # The least that a deadline is shortened to: thread pools start, pages fault in, the machine may be busy.
        "floor": 2.0,
    }
)
"""Seconds that a phase may take before its worker is killed; ``floor`` is not a phase."""

HOPELESS_RATIO = 50.0
"""A config that takes this many times as long as the best is given up before the fixed deadline."""


def merge_deadlines(*layers: Mapping[str, float]) -> dict[str, float]:
    """Return the defaults overridden by each layer in turn (``config.toml``, then the kernel file)."""
    result = dict(DEFAULT_DEADLINES)
    for layer in layers:
        result.update(layer)
    return result


def shorten_for_trial(deadlines: Mapping[str, float], preset: Preset, best_launch_s: float | None) -> dict[str, float]:
    """Return a trial's deadlines, in s by phase; some are shorter if a launch of the best config so far is known.

    The first launch may then take :data:`HOPELESS_RATIO` times ``best_launch_s``, but at least the ``floor``. Timing
    may take this time in addition to the preset's. A launch's time is that of the wall clock, and not its latency: a
    program that prepares for seconds may print a few milliseconds.
    """
    result = dict(deadlines)
    # The next config of a batch is loaded while this one is timed.
    result[Phase.LOAD_NEXT] = result["load"]
    if best_launch_s is None:
        return result
    hopeless_s = max(deadlines["floor"], HOPELESS_RATIO * best_launch_s)
    result["first_launch"] = min(result["first_launch"], hopeless_s)
    result["timing"] = min(result["timing"], preset.timing_s + hopeless_s)
    return result
