"""Energy of a launch: the kernel runs over and over while the device's energy counter is read.

Launches follow each other without pause, so that the device's power is the kernel's, and caches are warm. The energy of
very short launches includes the gaps that the host leaves between them. If inputs are restored before each launch, the
energy of restoring alone is measured as well, and subtracted.

A counter moves in steps, an H100's some ten times a second, so that a single reading may be a whole step old. But the
energy between two steps is exact, and the number of launches between them is known to within one reading. The longer
the run, the less that one reading matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

import msgspec
from msgspec.structs import replace

from ktuned.backends import EnergyCounter, Launch
from ktuned.ipc import requests
from ktuned.measuring.host_timer import count_launches_per_sample
from ktuned.measuring.launch_observer import LaunchObserver, Restart
from ktuned.measuring.results import make_failed_result
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model import ENERGY, Outcome, Phase, Preset, TrialResult

SETTLED_S = 0.1
"""Time in s before the first reading counts: power follows the kernel with a delay, and the counter follows it."""

LEAST_S = 0.5
"""Least time for one config's energy: five steps of a counter that moves ten times a second."""

PATIENCE = 6
"""Multiple of a config's time after which a counter that has not moved twice counts as broken."""

CHUNK_S = 0.002
"""Least work in one chunk of a GPU's queue. Between chunks the number of finished launches is interpolated."""

CHUNK_READINGS = 10
"""Work in one chunk, in multiples of the time that a reading takes (some 2 ms on an H100). While the host reads the
counter and fills the queue again, the GPU must not run dry: idle, it draws a fifth of its power."""

MAX_CHUNK_S = 0.05
"""Most work in one chunk. It is limited because two chunks are still in the queue when a config's time is over."""

MAX_CHUNK = 10_000

IN_FLIGHT = 2
"""Chunks in a GPU's queue, so that it has work while the host waits for the older one."""


class CounterStopped(Exception):
    """The energy counter does not move while a kernel runs."""


class EnergyReadings(msgspec.Struct, eq=False):
    """Readings of an energy counter while a kernel runs over and over for ``limit_s`` seconds."""

    limit_s: float
    _is_complete: bool = False
    _last_j: float = math.inf
    _steps: list[tuple[float, float]] = []

    def wants_reading(self) -> bool:
        """Return whether the time is not over, or the energy is not known yet."""
        return not self._is_complete

    def add_reading(self, launches: float, joules: float, elapsed_s: float) -> None:
        """Add a reading of ``joules`` after so many launches, ``elapsed_s`` after the first launch.

        Raises:
            CounterStopped: the counter does not move.
        """
        if joules > self._last_j and elapsed_s >= SETTLED_S:
            self._steps.append((launches, joules))
        self._last_j = joules
        is_known = len(self._steps) > 1 and self._steps[-1][0] > self._steps[0][0]
        if not is_known and elapsed_s > PATIENCE * self.limit_s:
            raise CounterStopped(f"it did not move in {elapsed_s:.1f} s of work")
        self._is_complete = is_known and elapsed_s >= self.limit_s

    @property
    def launch_j(self) -> float:
        """The energy of one launch in J, once the readings are complete."""
        (first, before_j), (last, after_j) = self._steps[0], self._steps[-1]
        return (after_j - before_j) / (last - first)


class EnergyMeter(LaunchObserver):
    """Measures the energy of finalists' launches on one device, in each of their rounds.

    Args:
        counter: the device's counter.
        device: the device's name.
        returns_early: whether launches return before the device, a GPU, has finished them.
    """

    def __init__(self, counter: EnergyCounter, device: str, *, returns_early: bool) -> None:
        self._counter = counter
        self._device = device
        self._returns_early = returns_early

    def complete_result(self, timed: TrialResult, launches: TimedLaunches, restart: Restart) -> TrialResult:
        """Add the energy of a finalist."""
        if not isinstance(self.request, requests.Time) or timed.latency_us is None:
            return timed
        if timed.outcome is not Outcome.MEASURED:
            return timed
        restart()
        try:
            energy_j = self.measure_energy(launches, self.request.preset, timed.latency_us)
        except CounterStopped as error:
            # A broken counter says nothing about the config, so it will be tried again.
            return make_failed_result(Outcome.CONTENDED, f"the energy counter of {self._device}: {error}", Phase.TIMING)
        return replace(timed, metrics={**timed.metrics, ENERGY: energy_j})

    def measure_energy(self, launches: TimedLaunches, preset: Preset, latency_us: float) -> float:
        """Measure the energy of a launch; return it in J.

        Raises:
            CounterStopped: the counter does not move.
        """
        launch, restore = launches.ring[0], launches.restore
        limit_s = SETTLED_S + max(LEAST_S, preset.timing_s)
        if restore is None:
            return self._run_repeatedly(launch, latency_us, limit_s)
        restoring_j = self._run_repeatedly(restore, latency_us, limit_s)
        return self._run_repeatedly(_join_restore_and_launch(restore, launch), latency_us, limit_s) - restoring_j

    def _run_repeatedly(self, work: Callable[[], object], latency_us: float, limit_s: float) -> float:
        """Return the energy of one call of ``work`` in J."""
        readings = EnergyReadings(limit_s)
        if self._returns_early:
            # Twice: the first reading may have to open the device.
            reading_s = min(self._time_reading_s(), self._time_reading_s())
            work_s = min(MAX_CHUNK_S, max(CHUNK_S, CHUNK_READINGS * reading_s))
            chunk = max(1, min(MAX_CHUNK, math.floor(work_s * 1e6 / max(latency_us, 0.1))))
            self._run_repeatedly_on_gpu(work, chunk, readings)
            return readings.launch_j
        chunk = count_launches_per_sample(int(latency_us * 1000), restores=False)
        launches, began = 0, perf_counter()
        while readings.wants_reading():
            for _ in range(chunk):
                work()
            launches += chunk
            readings.add_reading(launches, self._counter(), perf_counter() - began)
        return readings.launch_j

    def _time_reading_s(self) -> float:
        """Return how long a reading of the counter takes, in s."""
        began = perf_counter()
        self._counter()
        return perf_counter() - began

    def _run_repeatedly_on_gpu(self, work: Callable[[], object], chunk: int, readings: EnergyReadings) -> None:
        """Keep the device busy with chunks of launches, and read the counter while the oldest chunk runs."""
        import torch

        waiting: list[Any] = []
        done, each_s = 0, 0.0
        began = chunk_began = perf_counter()
        while readings.wants_reading():
            while len(waiting) < IN_FLIGHT:
                for _ in range(chunk):
                    work()
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(self._device))
                waiting.append(event)
            while readings.wants_reading() and not waiting[0].query():
                now = perf_counter()
                # Interpolate, assuming that this chunk's launches take as long as those of the previous chunk.
                share = min(1.0, (now - chunk_began) / each_s) if each_s else 0.0
                readings.add_reading(done + share * chunk, self._counter(), now - began)
            if not readings.wants_reading():
                break
            waiting.pop(0)
            done += chunk
            now = perf_counter()
            each_s, chunk_began = now - chunk_began, now
            readings.add_reading(done, self._counter(), now - began)
        torch.cuda.synchronize(self._device)


def _join_restore_and_launch(restore: Callable[[], None], launch: Launch) -> Callable[[], None]:
    def restore_and_launch() -> None:
        restore()
        launch()

    return restore_and_launch
