"""Timing of launches by the host's clock, for as many samples as the race asks for.

A sample must last long enough for the clock, yet a short kernel takes less time than reading the clock. So there are
two levels: a *ring* of launches, each on outputs of its own, runs between two readings of the clock, and a sample is as
many rings as last :data:`SAMPLE_FLOOR_NS` together. Between two rings, outputs are poisoned and launches are compared;
this is not timed.
"""

from __future__ import annotations

import math
from functools import cache
from time import perf_counter_ns

from msgspec.structs import replace

from ktuned.measuring.race import Race, RaceRules
from ktuned.measuring.timed_launches import TimedLaunches

SAMPLE_FLOOR_NS = 50_000
"""A sample lasts at least this long, so that reading the clock (some 50 ns) costs under 0.2 % of it."""

MAX_LAUNCHES_PER_SAMPLE = 10_000

RING_FLOOR_NS = 2_500
"""Least time between two readings of the clock. The 50 ns that these take are subtracted, to within a few ns."""

MOST_IN_RING = 16
RING_BYTES = 1 << 16
"""Most memory for a ring's outputs: they must stay in a core's cache, like those of one launch."""

SHORTEST_US, LONGEST_US = 1e-6, 1e15
"""A picosecond and thirty years: a reported time outside this range, or NaN, is refused."""


class InvalidTime(Exception):
    """A launch that times itself has reported a figure that cannot be a time."""


def require_valid_time(microseconds: float) -> float:
    """Return the time that a launch has reported for itself, in µs.

    Raises:
        InvalidTime: the figure cannot be a time.
    """
    if not SHORTEST_US <= microseconds <= LONGEST_US:
        raise InvalidTime(f"the launch reports {microseconds:g} µs, which cannot be a time")
    return microseconds


def count_launches_per_sample(launch_ns: int, *, restores: bool) -> int:
    """Return how many launches of ``launch_ns`` make one sample: one, if inputs are restored before each."""
    if restores or launch_ns >= SAMPLE_FLOOR_NS:
        return 1
    return min(MAX_LAUNCHES_PER_SAMPLE, math.ceil(SAMPLE_FLOOR_NS / max(launch_ns, 1)))


def choose_ring_size(launch_ns: int) -> int:
    """Return how many launches of ``launch_ns`` run between two readings of the clock."""
    return min(MOST_IN_RING, math.ceil(RING_FLOOR_NS / max(launch_ns, 1)))


@cache
def measure_clock_cost_ns() -> int:
    """Return how long two readings of the clock take, in ns, to subtract it from the time between them."""
    return min(-perf_counter_ns() + perf_counter_ns() for _ in range(1000))


class HostTimer:
    """Times launches that return when their work is done (CPU kernels), by the host's monotonic clock.

    Caches are warm: runs follow each other on the same inputs, as in an application's loop.

    Args:
        believes_reports: whether a number that a launch returns is its time, in µs.

    Attributes:
        max_output_bytes: most memory for the outputs of launches that are timed together.
        returns_early: whether launches return before the device has finished them.
        times_in_graph: whether launches are timed in a graph, with warm caches.
    """

    max_output_bytes = RING_BYTES
    returns_early = False
    times_in_graph = False

    def __init__(self, *, believes_reports: bool = False) -> None:
        self._believes_reports = believes_reports

    def synchronize(self) -> None:
        """Do nothing: a launch that has returned is done."""

    def time_launches(self, launches: TimedLaunches, rules: RaceRules) -> Race:
        """Time launches as long as the race wants more samples; return the race, which has ended.

        Raises:
            InvalidTime: the launch reports a figure that cannot be a time.
            WrongLaunch: one of the compared launches is wrong.
        """
        # Warm up, until the caches are filled and the pace is known; a hopeless config may end here. The time of the
        # checked launch is not used, because the check has left the caches cold.
        race = Race(replace(rules, first_us=None))
        start = perf_counter_ns()
        reported_us: float | None = None
        while race.wants_warm_up((perf_counter_ns() - start) / 1e9):
            elapsed_ns, reported_us = self._time_ring(launches)
            race.warm.add_sample(elapsed_ns / 1000 if reported_us is None else reported_us)
        if race.ends_after_warm_up((perf_counter_ns() - start) / 1e9):
            return race
        # Choose the size of a ring and of a sample by the fastest run.
        fastest_ns = int(race.warm.sorted_us[0] * 1000)
        rings = 1
        if reported_us is None:
            launches.widen_ring(choose_ring_size(fastest_ns))
            rings = math.ceil(count_launches_per_sample(fastest_ns, restores=launches.restores) / len(launches.ring))
        # Sample until the race has an end for this config.
        start = perf_counter_ns()
        while batch := race.choose_next_batch((perf_counter_ns() - start) / 1e9):
            for _ in range(batch):
                elapsed_ns = 0
                for _ in range(rings):
                    ring_ns, reported_us = self._time_ring(launches)
                    elapsed_ns += ring_ns
                each_us = elapsed_ns / (rings * len(launches.ring)) / 1000
                race.samples.add_sample(each_us if reported_us is None else reported_us)
                if (perf_counter_ns() - start) / 1e9 >= rules.preset.timing_s:
                    break
        return race

    def _time_ring(self, launches: TimedLaunches) -> tuple[int, float | None]:
        """Time the ring once; return the time of all its launches in ns, and what the last one reports, in µs."""
        launches.prepare_ring()
        ring = launches.ring
        returned: float | None = None
        begin = perf_counter_ns()
        for launch in ring:
            returned = launch()
        elapsed_ns = perf_counter_ns() - begin
        # At least 1 ns: for an empty launch, nothing may remain after the subtraction.
        elapsed_ns = max(1, elapsed_ns - measure_clock_cost_ns())
        launches.compare_ring(elapsed_ns)
        if returned is None or not self._believes_reports:
            return elapsed_ns, None
        return elapsed_ns, require_valid_time(returned)
