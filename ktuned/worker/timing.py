"""Timing of launches on the host's clock: samples for as long as the race wants them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from time import perf_counter_ns

from ktuned.backends import Launch
from ktuned.ipc import requests
from ktuned.model import Preset, Record, record
from ktuned.worker.noise import Noise
from ktuned.worker.race import Cost, Ending, Race
from ktuned.worker.samples import Samples
from ktuned.worker.timed_launches import TimedLaunches

SAMPLE_FLOOR_NS = 50_000
"""A sample lasts at least this long, so that reading the clock (some 50 ns) costs under 0.2 % of it."""

MAX_LAUNCHES_PER_SAMPLE = 10_000

RING_FLOOR_NS = 2_500
"""Least time between two readings of the clock: of the 50 ns that they take, all but a few ns are known."""

MOST_IN_RING = 16
RING_BYTES = 1 << 16
"""Outputs of a ring of launches: they stay in a core's cache, as those of one launch do."""

SHORTEST_US, LONGEST_US = 1e-6, 1e15
"""A picosecond and thirty years: what a launch reports beyond them is no time, and nor is NaN."""


class NoTime(Exception):
    """A launch reported a figure that is no time; the message says which."""


def require_time(microseconds: float) -> float:
    """Return a launch's own figure.

    Raises:
        NoTime: it is none.
    """
    if not SHORTEST_US <= microseconds <= LONGEST_US:
        raise NoTime(f"the launch reports a time of {microseconds:g} µs, which is none")
    return microseconds


def launches_per_sample(launch_ns: int, *, restores: bool) -> int:
    """Return how many launches are timed together as one sample, of a kernel that takes ``launch_ns``.

    One, when something must be restored before each run.
    """
    if restores or launch_ns >= SAMPLE_FLOOR_NS:
        return 1
    return min(MAX_LAUNCHES_PER_SAMPLE, math.ceil(SAMPLE_FLOOR_NS / max(launch_ns, 1)))


def size_of_ring(launch_ns: int) -> int:
    """Return how many launches follow each other between two readings of the clock, each on outputs of its own."""
    return min(MOST_IN_RING, math.ceil(RING_FLOOR_NS / max(launch_ns, 1)))


@cache
def clock_ns() -> int:
    """Return what two readings of the clock take, which is no part of what lies between them."""
    return min(-perf_counter_ns() + perf_counter_ns() for _ in range(1000))


@record
class Timing(Record):
    """The samples of one kernel, the reason why there are no more, and the 95 % interval of their median in µs.

    ``is_full`` if there are as many as were wanted, or as there was time for, and enough for an interval;
    ``ends_checked`` if the last launch's outputs are where those of a first launch would be, to be judged again.
    """

    samples: Samples
    ending: Ending
    interval_us: tuple[float, float]
    is_full: bool
    ends_checked: bool = False

    @classmethod
    def of(cls, race: Race, *, ends_checked: bool = False) -> Timing:
        """Return a race's end."""
        assert race.ending is not None
        return cls(race.samples, race.ending, race.interval_us, race.is_full, ends_checked)

    @property
    def stopped_early(self) -> bool:
        """True if the kernel was so slow that its figure says nothing else."""
        return self.ending is Ending.HOPELESS


def time_on_host(
    launch: Launch | TimedLaunches,
    preset: Preset,
    *,
    restore: Callable[[], None] | None = None,
    stop_above_us: float | None = None,
    incumbent: requests.Incumbent | None = None,
    cost: Cost | None = None,
    noise: Noise | None = None,
) -> Timing:
    """Time a launch that returns when its work is done (a CPU kernel), by the host's monotonic clock.

    Caches are warm: the runs follow each other on the same inputs, as in a loop of an application. Outputs are poisoned
    and ``restore`` runs, untimed, before each launch; short ones are timed in a ring (:mod:`~ktuned.worker.
    timed_launches`), and a sample is as many rings as last long enough together. A launch that times itself is
    believed. The :class:`~ktuned.worker.race.Race` decides how many samples there are.

    Raises:
        NoTime: a launch reports a figure that is none.
        WrongLaunch: one of the launches that were compared is wrong.
    """
    race = Race(preset, stop_above_us=stop_above_us, incumbent=incumbent, cost=cost, noise=noise)
    launches = TimedLaunches.of(launch, restore)
    start = perf_counter_ns()
    reported_us: float | None = None
    while race.wants_warm_up((perf_counter_ns() - start) / 1e9):
        elapsed_ns, reported_us = _time_ring(launches)
        race.warm.add(elapsed_ns / 1000 if reported_us is None else reported_us)
    if race.gives_up((perf_counter_ns() - start) / 1e9):
        return Timing.of(race)
    fastest_ns = int(race.warm.sorted_us[0] * 1000)
    rings = 1
    if reported_us is None:
        launches.widen(size_of_ring(fastest_ns))
        rings = math.ceil(launches_per_sample(fastest_ns, restores=launches.restores) / len(launches.ring))
    start = perf_counter_ns()
    while batch := race.next_batch((perf_counter_ns() - start) / 1e9):
        for _ in range(batch):
            elapsed_ns = 0
            for _ in range(rings):
                ring_ns, reported_us = _time_ring(launches)
                elapsed_ns += ring_ns
            each_us = elapsed_ns / (rings * len(launches.ring)) / 1000
            race.samples.add(each_us if reported_us is None else reported_us)
            if (perf_counter_ns() - start) / 1e9 >= preset.timing_s:
                break
    return Timing.of(race)


def _time_ring(launches: TimedLaunches) -> tuple[int, float | None]:
    """Return the time in ns of the ring's launches together, and what the last one has reported, if it times itself."""
    launches.prepare()
    ring = launches.ring
    reported_us: float | None = None
    begin = perf_counter_ns()
    for one in ring:
        reported_us = one()
    elapsed_ns = perf_counter_ns() - begin
    # Where nothing lies between the readings, they may be as fast as they were at their fastest.
    elapsed_ns = max(1, elapsed_ns - clock_ns())
    launches.inspect(elapsed_ns)
    return elapsed_ns, None if reported_us is None else require_time(reported_us)


class HostTimer:
    """Times launches that return when their work is done, by the host's clock."""

    def synchronize(self) -> None:
        """Do nothing: there is nothing to wait for."""

    def time(
        self,
        launch: Launch | TimedLaunches,
        preset: Preset,
        *,
        restore: Callable[[], None] | None = None,
        stop_above_us: float | None = None,
        incumbent: requests.Incumbent | None = None,
        cost: Cost | None = None,
        first_us: float | None = None,
        noise: Noise | None = None,
    ) -> Timing:
        """Sample a launch; see :func:`time_on_host`. After a check the caches are cold, whatever ``first_us`` says."""
        return time_on_host(
            launch, preset, restore=restore, stop_above_us=stop_above_us, incumbent=incumbent, cost=cost, noise=noise
        )
