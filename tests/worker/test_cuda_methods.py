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
from ktuned.measuring import cuda_timer
from ktuned.measuring.cuda_timer import EVENTS, GRAPH, SPIN_HZ, CudaTimer
from ktuned.measuring.launch_observer import LaunchObserver
from ktuned.measuring.race import Ending, RaceRules
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model import PRESETS
from ktuned.worker.bench import Bench

COLD_US, WARM_US = 3.87, 1.21


class Gpu(ModuleType):
    """A torch whose GPU takes :data:`COLD_US` for a launch after a flush, and :data:`WARM_US` for others.

    After each flush they take the next of the times ``slower``. The host takes ``host_us`` for a launch, and is
    ``ahead_us`` ahead of the GPU.
    """

    int8 = float16 = None

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *slower: float) -> None:
        super().__init__("torch")
        self.slower = cycle(slower)
        self.pace = 1.0
        self.now_us = 0.0
        self.captured = 0
        self.is_capturing = self.is_warm = self.is_waiting = False
        self.host_us = self.ahead_us = 0.0
        self.cuda: Any = SimpleNamespace(
            set_device=lambda device: None,
            get_device_properties=lambda device: SimpleNamespace(L2_cache_size=1),
            synchronize=self.synchronize,
            _sleep=self.spin,
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

    def synchronize(self, device: object) -> None:
        """Let the GPU catch up with the host."""
        self.ahead_us = 0.0

    def spin(self, cycles: int) -> None:
        """Be busy, so that the host gets ahead."""
        self.ahead_us += cycles / SPIN_HZ * 1e6
        self.now_us += cycles / SPIN_HZ * 1e6

    def flush(self) -> None:
        """Empty the cache."""
        self.ahead_us += 20
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
        self.ahead_us -= self.host_us
        self.is_waiting = self.ahead_us < 0
        self.now_us -= min(0.0, self.ahead_us)
        self.ahead_us = max(0.0, self.ahead_us)
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

    def query(self) -> bool:
        """Return whether the GPU has passed it: only if it waited for what the host enqueued then."""
        return self._gpu.is_waiting

    def elapsed_time(self, end: Event) -> float:
        """Return the ms between two events."""
        return (end.at_us - self.at_us) / 1000


def test_what_a_slow_host_takes_for_a_launch_is_not_in_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.3 ms for each launch, in which the GPU would wait; then it gets more to do first, and does not."""
    gpu = Gpu(monkeypatch, 1.0)
    gpu.host_us = 300.0
    monkeypatch.setitem(sys.modules, "torch", gpu)
    timing = CudaTimer("cuda:0", EVENTS).time_launches(TimedLaunches(gpu.launch), RaceRules(PRESETS["default"]))
    assert max(timing.samples.sorted_us) == pytest.approx(COLD_US)


@pytest.mark.parametrize(("method", "slower", "stops"), [(GRAPH, 1.0, False), (GRAPH, 4.0, True), (EVENTS, 1.0, True)])
def test_a_cold_first_launch_gives_up_no_config_in_a_graph(
    monkeypatch: pytest.MonkeyPatch, method: str, slower: float, stops: bool
) -> None:
    """A config that is as fast as the best of its graph is timed to the end, however slow its first, cold launch."""
    gpu = Gpu(monkeypatch, slower)
    monkeypatch.setitem(sys.modules, "torch", gpu)
    timing = CudaTimer("cuda:0", method).time_launches(
        TimedLaunches(gpu.launch), RaceRules(PRESETS["default"], stop_above_us=3 * WARM_US)
    )
    assert timing.is_hopeless is stops


def test_a_graphs_median_is_known_to_the_graphs_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event's resolution counts once for all launches of a graph: half a µs is nearly half of this figure."""
    gpu = Gpu(monkeypatch, *(1 + place / 50 for place in range(10)))
    monkeypatch.setitem(sys.modules, "torch", gpu)
    timing = CudaTimer("cuda:0", GRAPH).time_launches(TimedLaunches(gpu.launch), RaceRules(PRESETS["default"]))
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

    bench = Bench(Registry(), Places({}, "", ""))
    data = SimpleNamespace(restores=restores, make_reference_launch=lambda: reference)
    opened = SimpleNamespace(
        data=data,
        timer=CudaTimer("cuda:0", method),
        device=SimpleNamespace(name="cuda:0"),
        observers=LaunchObserver(),
    )
    monkeypatch.setattr(bench, "_open", opened)
    request = requests.TimeReference(PRESETS["default"], judge_contention=False)
    reply: Any = SimpleNamespace(begin_phase=lambda phase: None)
    measured = bench.time_reference(request, reply)
    assert measured.result.latency_us == (None if expected_us is None else pytest.approx(expected_us, rel=0.3))
