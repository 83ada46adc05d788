"""Energy of a launch, by the counter of its device: the kernel runs over and over while the counter is read.

Launches follow each other, so that caches are warm and the device's power is the kernel's; what the host leaves of
gaps between very short ones is in the figure. Where tensors are restored before each launch, the energy of restoring
them alone is taken off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ktuned.backends import EnergyCounter, Launch
from ktuned.ipc import requests
from ktuned.model import Preset, Record, record
from ktuned.worker.energy_trace import SETTLED_S, Energy, EnergyTrace
from ktuned.worker.race import Cost
from ktuned.worker.timing import count_launches_per_sample

LEAST_S = 0.5
"""Time for one config's energy: five steps of a counter that moves ten times a second."""

CHUNK_S = 0.002
"""Least work in one chunk of a GPU's queue; how much of it is done is known to much less."""

CHUNK_READINGS = 10
"""Work in one chunk by the time that a reading takes (an H100's: some 2 ms): while the host waits for the counter, and
then fills the queue, the GPU must not run dry: at rest it draws a fifth of its power, which would be the kernel's."""

MAX_CHUNK_S = 0.05
"""Most work in one chunk: two of them are still in the queue when a config's time is over."""

MAX_CHUNK = 10_000

IN_FLIGHT = 2
"""Chunks in a GPU's queue: it has work while the host waits for the older one."""


@record
class EnergyMeter(Record):
    """Measures launches on one device; ``device`` is a CUDA device's name where launches return before their end."""

    counter: EnergyCounter
    device: str = ""

    def measure_energy(
        self,
        launch: Launch,
        preset: Preset,
        latency_us: float,
        *,
        restore: Callable[[], None] | None = None,
        incumbent: requests.Incumbent | None = None,
        cost: Cost = lambda joules: joules,
    ) -> tuple[Energy, EnergyTrace]:
        """Return the energy of a launch, and the trace that shows why there are no more readings.

        Raises:
            CounterStopped: the counter does not move.
        """
        limit_s = SETTLED_S + max(LEAST_S, preset.timing_s)
        apart_j = 0.0
        if restore is not None:
            alone = EnergyTrace(limit_s)
            self._run_repeatedly(restore, latency_us, alone)
            apart_j = _require_energy(alone).joules
        trace = EnergyTrace(limit_s, incumbent=incumbent, cost=cost, apart_j=apart_j)
        self._run_repeatedly(launch if restore is None else _restore_before(restore, launch), latency_us, trace)
        return _require_energy(trace), trace

    def _run_repeatedly(self, work: Callable[[], object], latency_us: float, trace: EnergyTrace) -> None:
        if self.device:
            # The first reading may open the device.
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
        """Return how long the counter takes to read."""
        began = perf_counter()
        self.counter()
        return perf_counter() - began

    def _run_on_gpu(self, work: Callable[[], object], chunk: int, trace: EnergyTrace) -> None:
        """Keep the device busy with chunks of launches, and look at the counter until the oldest is done."""
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
                # Within a chunk launches are as long as those of the one before.
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
    found = trace.energy
    assert found is not None
    return found


def _restore_before(restore: Callable[[], None], launch: Launch) -> Callable[[], None]:
    def work() -> None:
        restore()
        launch()

    return work
