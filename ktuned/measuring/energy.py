"""Energy of a launch: the kernel runs over and over while the device's energy counter is read.

Launches follow each other without pause, so that the device's power is the kernel's, and caches are warm. The energy of
very short launches includes the gaps that the host leaves between them. If inputs are restored before each launch, the
energy of restoring alone is measured as well, and subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from ktuned.backends import EnergyCounter, Launch
from ktuned.ipc import replies, requests
from ktuned.measuring.energy_trace import SETTLED_S, CounterStopped, EnergyTrace
from ktuned.measuring.host_timer import count_launches_per_sample
from ktuned.measuring.launch_observer import LaunchObserver, Restart
from ktuned.measuring.race import Ending
from ktuned.measuring.results import make_failed_result
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model import Outcome, Phase, Preset, TrialResult, compute_energy_figures

LEAST_S = 0.5
"""Least time for one config's energy: five steps of a counter that moves ten times a second."""

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


class EnergyMeter(LaunchObserver):
    """Measures the energy of launches on one device, as long as the config can win by it.

    Args:
        counter: the device's counter.
        device: the device's name.
        returns_early: whether launches return before the device, a GPU, has finished them.
        compute_cost: returns what a config costs by its latency in µs and its energy in J.
    """

    def __init__(
        self,
        counter: EnergyCounter,
        device: str,
        *,
        returns_early: bool,
        compute_cost: Callable[[float, float], float | None] = lambda latency_us, joules: joules,
    ) -> None:
        self._counter = counter
        self._device = device
        self._returns_early = returns_early
        self._compute_cost = compute_cost

    def complete_result(self, timed: TrialResult, launches: TimedLaunches, restart: Restart) -> TrialResult:
        """Measure the energy, and add the figures that are computed from energy and latency."""
        latency_us, request = timed.latency_us, self.request
        if timed.outcome is not Outcome.MEASURED or latency_us is None:
            return timed
        restart()
        incumbent = request.incumbent if isinstance(request, requests.Trial) else None
        try:
            trace = self.measure_energy(launches, request.preset, latency_us, incumbent)
        except CounterStopped as error:
            # A broken counter says nothing about the config, so it will be tried again.
            return make_failed_result(Outcome.CONTENDED, f"the energy counter of {self._device}: {error}", Phase.TIMING)
        energy = trace.energy
        assert energy is not None
        figures = compute_energy_figures(energy.joules, latency_us)
        timed = replace(timed, metrics={**timed.metrics, **figures}).add_details(
            energy_low=energy.low, energy_high=energy.high
        )
        if trace.ending is not Ending.BEATEN:
            return timed
        message = f"cannot win: {energy.low:.4g} to {energy.high:.4g} J"
        return replace(timed, message=message).add_details(beaten=True)

    def measure_energy(
        self,
        launches: TimedLaunches,
        preset: Preset,
        latency_us: float,
        incumbent: replies.CostRange | None = None,
    ) -> EnergyTrace:
        """Measure the energy of a launch; return the readings that show it.

        Raises:
            CounterStopped: the counter does not move.
        """
        launch, restore = launches.ring[0], launches.restore
        limit_s = SETTLED_S + max(LEAST_S, preset.timing_s)
        restoring_j = 0.0
        if restore is not None:
            restoring = EnergyTrace(limit_s)
            self._run_repeatedly(restore, latency_us, restoring)
            assert restoring.energy is not None
            restoring_j = restoring.energy.joules
        cost = partial(self._compute_cost, latency_us)
        trace = EnergyTrace(limit_s, incumbent=incumbent, cost=cost, restoring_j=restoring_j)
        self._run_repeatedly(
            launch if restore is None else _join_restore_and_launch(restore, launch), latency_us, trace
        )
        return trace

    def _run_repeatedly(self, work: Callable[[], object], latency_us: float, trace: EnergyTrace) -> None:
        if self._returns_early:
            # Twice: the first reading may have to open the device.
            reading_s = min(self._time_reading_s(), self._time_reading_s())
            work_s = min(MAX_CHUNK_S, max(CHUNK_S, CHUNK_READINGS * reading_s))
            chunk = max(1, min(MAX_CHUNK, math.floor(work_s * 1e6 / max(latency_us, 0.1))))
            self._run_repeatedly_on_gpu(work, chunk, trace)
            return
        chunk = count_launches_per_sample(int(latency_us * 1000), restores=False)
        launches, began = 0, perf_counter()
        while trace.wants_reading():
            for _ in range(chunk):
                work()
            launches += chunk
            trace.add_reading(launches, self._counter(), perf_counter() - began)

    def _time_reading_s(self) -> float:
        """Return how long a reading of the counter takes, in s."""
        began = perf_counter()
        self._counter()
        return perf_counter() - began

    def _run_repeatedly_on_gpu(self, work: Callable[[], object], chunk: int, trace: EnergyTrace) -> None:
        """Keep the device busy with chunks of launches, and read the counter while the oldest chunk runs."""
        import torch

        waiting: list[Any] = []
        done, each_s = 0, 0.0
        began = chunk_began = perf_counter()
        while trace.wants_reading():
            while len(waiting) < IN_FLIGHT:
                for _ in range(chunk):
                    work()
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(self._device))
                waiting.append(event)
            while not waiting[0].query():
                now = perf_counter()
                # Interpolate, assuming that this chunk's launches take as long as those of the previous chunk.
                share = min(1.0, (now - chunk_began) / each_s) if each_s else 0.0
                trace.add_reading(done + share * chunk, self._counter(), now - began)
                if not trace.wants_reading():
                    break
            if not trace.wants_reading():
                break
            waiting.pop(0)
            done += chunk
            now = perf_counter()
            each_s, chunk_began = now - chunk_began, now
            trace.add_reading(done, self._counter(), now - began)
        torch.cuda.synchronize(self._device)


def _join_restore_and_launch(restore: Callable[[], None], launch: Launch) -> Callable[[], None]:
    def restore_and_launch() -> None:
        restore()
        launch()

    return restore_and_launch
