"""Methods of timing on a GPU, on one that is played: figures are compared with figures of the same method."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ktuned.backends import Registry
from ktuned.ipc import Places, requests
from ktuned.model import PRESETS
from ktuned.worker import cuda_timer
from ktuned.worker.bench import Bench
from ktuned.worker.cuda_timer import EVENTS, GRAPH, CudaTimer
from ktuned.worker.race import Ending

COLD_US, WARM_US = 3.87, 1.21


class Gpu(ModuleType):
    """A torch whose GPU takes :data:`COLD_US` for a launch after a flush, and :data:`WARM_US` for others.

    After each flush they take the next of the times ``slower``.
    """

    int8 = float16 = None

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *slower: float) -> None:
        super().__init__("torch")
        self.slower = cycle(slower)
        self.pace = 1.0
        self.now_us = 0.0
        self.captured = 0
        self.is_capturing = self.is_warm = False
        self.cuda: Any = SimpleNamespace(
            set_device=lambda device: None,
            get_device_properties=lambda device: SimpleNamespace(L2_cache_size=1),
            synchronize=lambda device: None,
            Event=lambda enable_timing: Event(self),
            CUDAGraph=lambda: SimpleNamespace(replay=self.replay),
            graph=self.capture,
        )
        monkeypatch.setattr(cuda_timer, "perf_counter", lambda: self.now_us / 1e6)

    def device(self, name: str) -> str:
        """Return the device."""
        return name

    def empty(self, size: int, **_: object) -> Any:
        """Return what the timer flushes the cache with."""
        return SimpleNamespace(zero_=self.flush)

    def ones(self, *_: int, **__: object) -> Any:
        """Return what the timer warms the clocks with."""
        return Matrix(self)

    def flush(self) -> None:
        """Empty the cache."""
        self.now_us += 20
        self.pace = next(self.slower)
        self.is_warm = False

    @contextmanager
    def capture(self, graph: object) -> Iterator[None]:
        """Capture launches."""
        self.is_capturing = True
        yield
        self.is_capturing = False

    def launch(self) -> None:
        """Run, or be captured."""
        if self.is_capturing:
            self.captured += 1
            return
        self.now_us += self.pace * (WARM_US if self.is_warm else COLD_US)
        self.is_warm = True

    def replay(self) -> None:
        """Run what was captured."""
        for _ in range(self.captured):
            self.launch()


class Matrix:
    """A matrix that takes a millisecond to multiply."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def __matmul__(self, other: object) -> None:
        """Multiply."""
        self._gpu.now_us += 1_000


class Event:
    """An event on the played GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.at_us = 0.0

    def record(self) -> None:
        """Take the time."""
        self.at_us = self._gpu.now_us

    def elapsed_time(self, end: Event) -> float:
        """Return the ms between two events."""
        return (end.at_us - self.at_us) / 1000


@pytest.mark.parametrize(("method", "slower", "stops"), [(GRAPH, 1.0, False), (GRAPH, 4.0, True), (EVENTS, 1.0, True)])
def test_a_cold_first_launch_gives_up_no_config_in_a_graph(
    monkeypatch: pytest.MonkeyPatch, method: str, slower: float, stops: bool
) -> None:
    """A config that is as fast as the best of its graph is timed to the end, however slow its first, cold launch."""
    gpu = Gpu(monkeypatch, slower)
    monkeypatch.setitem(sys.modules, "torch", gpu)
    timing = CudaTimer("cuda:0", method).time_launches(gpu.launch, PRESETS["default"], stop_above_us=3 * WARM_US)
    assert timing.stopped_early is stops


def test_a_graphs_median_is_known_to_the_graphs_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event's resolution counts once for all launches of a graph: half a µs is nearly half of this figure."""
    gpu = Gpu(monkeypatch, *(1 + place / 50 for place in range(10)))
    monkeypatch.setitem(sys.modules, "torch", gpu)
    timing = CudaTimer("cuda:0", GRAPH).time_launches(gpu.launch, PRESETS["default"])
    assert timing.ending is Ending.KNOWN
    low, high = timing.samples.interval_us
    assert high - low <= 2 * max(0.01 * timing.samples.median_us, 0.5 / cuda_timer.GRAPH_LAUNCHES)


@pytest.mark.parametrize(
    ("method", "restores", "fails", "expected_us"),
    [
        (GRAPH, False, False, WARM_US),
        (GRAPH, True, False, COLD_US),
        (GRAPH, False, True, None),
        (EVENTS, True, False, COLD_US),
    ],
    ids=["graph", "setup", "not-captured", "events"],
)
def test_a_reference_is_timed_as_its_kernel_is(
    monkeypatch: pytest.MonkeyPatch, method: str, restores: bool, fails: bool, expected_us: float | None
) -> None:
    """Cold where what has to be restored is in no graph; without a figure where it cannot be captured itself."""
    gpu = Gpu(monkeypatch, 1.0)
    monkeypatch.setitem(sys.modules, "torch", gpu)

    def reference() -> None:
        if fails and gpu.is_capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        gpu.launch()

    bench = Bench(Registry(), Places({}, "", "", ""))
    data = SimpleNamespace(restores=restores, make_reference_launch=lambda: reference)
    device = SimpleNamespace(name="cuda:0", kind="cuda")
    monkeypatch.setattr(bench, "_open", SimpleNamespace(data=data, timer=CudaTimer("cuda:0", method), device=device))
    request = requests.TimeReference(PRESETS["default"], judge_contention=False)
    reply: Any = SimpleNamespace(begin_phase=lambda phase: None)
    measured = bench.time_reference(request, reply)
    assert measured.result.latency_us == (None if expected_us is None else pytest.approx(expected_us, rel=0.3))
