"""Timing of launches on the host's clock: samples for as long as the race wants them."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter_ns

from ktuned.backends import Launch
from ktuned.ipc import requests
from ktuned.model import Preset, Record, record
from ktuned.worker.noise import Noise
from ktuned.worker.race import Cost, Ending, Race
from ktuned.worker.samples import Samples

SAMPLE_FLOOR_NS = 50_000
"""A sample lasts at least this long, so that reading the clock (some 50 ns) costs under 0.2 % of it."""

MAX_LAUNCHES_PER_SAMPLE = 10_000


def launches_per_sample(launch_ns: int, *, restores: bool) -> int:
    """Return how many launches are timed together as one sample, of a kernel that takes ``launch_ns``.

    One, when something must be restored before each run.
    """
    if restores or launch_ns >= SAMPLE_FLOOR_NS:
        return 1
    return min(MAX_LAUNCHES_PER_SAMPLE, math.ceil(SAMPLE_FLOOR_NS / max(launch_ns, 1)))


@record
class Timing(Record):
    """The samples of one kernel, the reason why there are no more, and the 95 % interval of their median in µs.

    ``is_full`` if there are as many as were wanted, or as there was time for, and enough for an interval;
    ``ends_checked`` if the last launch was prepared so that what it left can be judged.
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
    launch: Launch,
    preset: Preset,
    *,
    restore: Callable[[], None] | None = None,
    stop_above_us: float | None = None,
    incumbent: requests.Incumbent | None = None,
    cost: Cost | None = None,
    noise: Noise | None = None,
) -> Timing:
    """Time a launch that returns when its work is done (a CPU kernel), by the host's monotonic clock.

    Caches are warm: the runs follow each other on the same data, as in a loop of an application. ``restore`` runs,
    untimed, before each launch. A launch that times itself is believed. The :class:`~ktuned.worker.race.Race` decides
    how many there are.
    """
    race = Race(preset, stop_above_us=stop_above_us, incumbent=incumbent, cost=cost, noise=noise)
    reported_us: float | None = None
    start = perf_counter_ns()
    while race.wants_warm_up((perf_counter_ns() - start) / 1e9):
        if restore is not None:
            restore()
        begin = perf_counter_ns()
        reported_us = launch()
        race.warm.add((perf_counter_ns() - begin) / 1000 if reported_us is None else reported_us)
    if race.gives_up((perf_counter_ns() - start) / 1e9):
        return Timing.of(race)
    times_itself = reported_us is not None
    launches = launches_per_sample(int(race.warm.sorted_us[0] * 1000), restores=restore is not None or times_itself)
    start = perf_counter_ns()
    while batch := race.next_batch((perf_counter_ns() - start) / 1e9):
        for _ in range(batch):
            if restore is not None:
                restore()
            begin = perf_counter_ns()
            for _ in range(launches):
                reported_us = launch()
            race.samples.add((perf_counter_ns() - begin) / launches / 1000 if reported_us is None else reported_us)
            if (perf_counter_ns() - start) / 1e9 >= preset.timing_s:
                break
    return Timing.of(race)


class HostTimer:
    """Times launches that return when their work is done, by the host's clock."""

    def synchronize(self) -> None:
        """Do nothing: there is nothing to wait for."""

    def time(
        self,
        launch: Launch,
        preset: Preset,
        *,
        restore: Callable[[], None] | None = None,
        stop_above_us: float | None = None,
        incumbent: requests.Incumbent | None = None,
        cost: Cost | None = None,
        first_us: float | None = None,
        noise: Noise | None = None,
        begin_checked: Callable[[], None] | None = None,
    ) -> Timing:
        """Sample a launch; see :func:`time_on_host`. After a check the caches are cold, whatever ``first_us`` says.

        None of the launches is one to be judged: poisoning the outputs before it would leave the caches colder.
        """
        return time_on_host(
            launch, preset, restore=restore, stop_above_us=stop_above_us, incumbent=incumbent, cost=cost, noise=noise
        )
