"""Energy of a launch: the kernel runs over and over while the device's energy counter is read.

Launches follow each other without pause, so that the device's power is the kernel's, and caches are warm. With very
short launches, the host's gaps between them are in the figure. If inputs are restored before each launch, the energy of
restoring alone is measured as well, and subtracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ktuned.backends import EnergyCounter, Launch
from ktuned.ipc import replies
from ktuned.model import Preset, Record, record
from ktuned.worker.energy_trace import SETTLED_S, Energy, EnergyTrace
from ktuned.worker.race import Cost
from ktuned.worker.timing import count_launches_per_sample

LEAST_S = 0.5
"""Least time for one config's energy: five steps of a counter that moves ten times a second."""

CHUNK_S = 0.002
"""Least work in one chunk of a GPU's queue. Between chunks the number of finished launches is interpolated."""

CHUNK_READINGS = 10
"""Work in one chunk, in multiples of the time that a reading takes (some 2 ms on an H100). While the host reads the
counter and fills the queue again, the GPU must not run dry: idle, it draws a fifth of its power."""

MAX_CHUNK_S = 0.05
"""Most work in one chunk: two chunks are still in the queue when a config's time is over."""

MAX_CHUNK = 10_000

IN_FLIGHT = 2
"""Chunks in a GPU's queue, so that it has work while the host waits for the older one."""


@record
class EnergyMeter(Record):
    """Measures launches on one device. ``device`` is a CUDA device's name if launches return before they are done."""

    counter: EnergyCounter
    device: str = ""

    def measure_energy(
        self,
        launch: Launch,
        preset: Preset,
        latency_us: float,
        *,
        restore: Callable[[], None] | None = None,
        incumbent: replies.CostRange | None = None,
        cost: Cost = lambda joules: joules,
    ) -> tuple[Energy, EnergyTrace]:
        """Measure the energy of a launch; return it with the trace, whose ending says why measuring has stopped.

        Raises:
            CounterStopped: the counter does not move.
        """
        limit_s = SETTLED_S + max(LEAST_S, preset.timing_s)
        apart_j = 0.0
        if restore is not None:
            restoring = EnergyTrace(limit_s)
            self._run_repeatedly(restore, latency_us, restoring)
            apart_j = _require_energy(restoring).joules
        trace = EnergyTrace(limit_s, incumbent=incumbent, cost=cost, apart_j=apart_j)
        self._run_repeatedly(launch if restore is None else _restore_before(restore, launch), latency_us, trace)
        return _require_energy(trace), trace

    def _run_repeatedly(self, work: Callable[[], object], latency_us: float, trace: EnergyTrace) -> None:
        if self.device:
            # Twice: the first reading may have to open the device.
            reading_s = min(self._time_reading_s(), self._time_reading_s())
            work_s = min(MAX_CHUNK_S, max(CHUNK_S, CHUNK_READINGS * reading_s))
            chunk = max(1, min(MAX_CHUNK, math.floor(work_s * 1e6 / max(latency_us, 0.1))))
            self._run_on_gpu(work, chunk, trace)
            return
        chunk = count_launches_per_sample(int(latency_us * 1000), restores=False)
        launches, began = 0, perf_counter()
        while trace.wants_more():
            for _ in range(chunk):
                work()
            launches += chunk
            trace.add_reading(launches, self.counter(), perf_counter() - began)

    def _time_reading_s(self) -> float:
        """Return how long a reading of the counter takes, in s."""
        began = perf_counter()
        self.counter()
        return perf_counter() - began

    def _run_on_gpu(self, work: Callable[[], object], chunk: int, trace: EnergyTrace) -> None:
        """Keep the device busy with chunks of launches, and read the counter while the oldest chunk runs."""
        import torch

        waiting: list[Any] = []
        done, each_s = 0, 0.0
        began = chunk_began = perf_counter()
        while trace.wants_more():
            while len(waiting) < IN_FLIGHT:
                for _ in range(chunk):
                    work()
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(torch.cuda.current_stream(self.device))
                waiting.append(event)
            while not waiting[0].query():
                now = perf_counter()
                # Interpolate: launches of this chunk take as long as those of the one before.
                share = min(1.0, (now - chunk_began) / each_s) if each_s else 0.0
                trace.add_reading(done + share * chunk, self.counter(), now - began)
                if not trace.wants_more():
                    break
            if not trace.wants_more():
                break
            waiting.pop(0)
            done += chunk
            now = perf_counter()
            each_s, chunk_began = now - chunk_began, now
            trace.add_reading(done, self.counter(), now - began)
        torch.cuda.synchronize(self.device)


def _require_energy(trace: EnergyTrace) -> Energy:
    energy = trace.energy
    assert energy is not None
    return energy


def _restore_before(restore: Callable[[], None], launch: Launch) -> Callable[[], None]:
    def restore_and_launch() -> None:
        restore()
        launch()

    return restore_and_launch
