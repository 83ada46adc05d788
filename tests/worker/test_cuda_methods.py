"""Timing methods on a fake GPU: a figure is only compared with figures of the same method."""

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


class FakeTorch(ModuleType):
    """A torch module with one GPU.

    A launch takes :data:`COLD_US` after a flush and :data:`WARM_US` otherwise, times the next factor of ``slower``
    after each flush. The host takes ``host_us`` for a launch and is ``ahead_us`` ahead of the GPU.
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
            Event=lambda enable_timing: FakeEvent(self),
            CUDAGraph=lambda: SimpleNamespace(replay=self.replay),
            graph=self.capture,
        )
        monkeypatch.setattr(cuda_timer, "perf_counter", lambda: self.now_us / 1e6)

    def device(self, name: str) -> str:
        return name

    def empty(self, size: int, **_: object) -> Any:
        """Return the buffer with which the timer flushes the cache."""
        return SimpleNamespace(zero_=self.flush)

    def ones(self, *_: int, **__: object) -> Any:
        """Return the matrix with which the timer warms the clocks."""
        return FakeMatrix(self)

    def synchronize(self, device: object) -> None:
        """Let the GPU catch up with the host."""
        self.ahead_us = 0.0

    def spin(self, cycles: int) -> None:
        """Keep the GPU busy, so that the host gets ahead."""
        self.ahead_us += cycles / SPIN_HZ * 1e6
        self.now_us += cycles / SPIN_HZ * 1e6

    def flush(self) -> None:
        """Flush the cache."""
        self.ahead_us += 20
        self.now_us += 20
        self.pace = next(self.slower)
        self.is_warm = False

    @contextmanager
    def capture(self, graph: object) -> Iterator[None]:
        """Capture the launches of a block."""
        self.is_capturing = True
        yield
        self.is_capturing = False

    def launch(self) -> None:
        """Run a launch or, while capturing, count it."""
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
        """Run the captured launches."""
        for _ in range(self.captured):
            self.launch()


class FakeMatrix:
    """A matrix that takes a millisecond to multiply."""

    def __init__(self, gpu: FakeTorch) -> None:
        self._gpu = gpu

    def __matmul__(self, other: object) -> None:
        self._gpu.now_us += 1_000


class FakeEvent:
    """An event on the fake GPU."""

    def __init__(self, gpu: FakeTorch) -> None:
        self._gpu = gpu
        self.at_us = 0.0

    def record(self) -> None:
        self.at_us = self._gpu.now_us

    def query(self) -> bool:
        """Return whether the GPU has passed the event: only if the GPU waited for the host."""
        return self._gpu.is_waiting

    def elapsed_time(self, end: FakeEvent) -> float:
        """Return the time between two events in ms."""
        return (end.at_us - self.at_us) / 1000


def test_what_a_slow_host_takes_for_a_launch_is_not_in_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host takes 0.3 ms per launch. The timer queues other work first, so that the GPU does not wait."""
    gpu = FakeTorch(monkeypatch, 1.0)
    gpu.host_us = 300.0
    monkeypatch.setitem(sys.modules, "torch", gpu)
    timing = CudaTimer("cuda:0", EVENTS).time_launches(TimedLaunches(gpu.launch), RaceRules(PRESETS["default"]))
    assert max(timing.samples.sorted_us) == pytest.approx(COLD_US)


@pytest.mark.parametrize(
    ("method", "slower", "is_hopeless"), [(GRAPH, 1.0, False), (GRAPH, 4.0, True), (EVENTS, 1.0, True)]
)
def test_a_cold_first_launch_gives_up_no_config_in_a_graph(
    monkeypatch: pytest.MonkeyPatch, method: str, slower: float, is_hopeless: bool
) -> None:
    """A config that is as fast as the best graph timing is timed to the end, however slow its cold first launch is."""
    gpu = FakeTorch(monkeypatch, slower)
    monkeypatch.setitem(sys.modules, "torch", gpu)
    timing = CudaTimer("cuda:0", method).time_launches(
        TimedLaunches(gpu.launch), RaceRules(PRESETS["default"], stop_above_us=3 * WARM_US)
    )
    assert timing.is_hopeless is is_hopeless


def test_a_graphs_median_is_known_to_the_graphs_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """An event's resolution of 0.5 µs counts once for all launches of a graph."""
    gpu = FakeTorch(monkeypatch, *(1 + index / 50 for index in range(10)))
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
    """Its launches are cold if a restore keeps them out of a graph. A reference that cannot be captured has no
    figure.
    """
    gpu = FakeTorch(monkeypatch, 1.0)
    monkeypatch.setitem(sys.modules, "torch", gpu)

    def reference() -> None:
        if fails and gpu.is_capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        gpu.launch()

    bench = Bench(Registry(), Places({}, "", ""))
    data = SimpleNamespace(restores=restores, make_reference_launch=lambda: reference)
    problem = SimpleNamespace(
        data=data,
        timer=CudaTimer("cuda:0", method),
        device=SimpleNamespace(name="cuda:0"),
        observers=LaunchObserver(),
    )
    monkeypatch.setattr(bench, "_open", problem)
    request = requests.TimeReference(PRESETS["default"], judge_contention=False)
    reply: Any = SimpleNamespace(begin_phase=lambda phase: None)
    measurement = bench.time_reference(request, reply)
    assert measurement.result.latency_us == (None if expected_us is None else pytest.approx(expected_us, rel=0.3))
