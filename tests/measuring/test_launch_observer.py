"""Observers of a config's launches: what each adds to its result, and what ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from ktuned.ipc import requests
from ktuned.measuring import contention, energy
from ktuned.measuring.contention import ContentionWatch
from ktuned.measuring.core_count import CoreCounter
from ktuned.measuring.costs import Costs, FileMetrics
from ktuned.measuring.energy import EnergyMeter
from ktuned.measuring.launch_observer import LaunchObserver, ObserverGroup
from ktuned.measuring.samples import Samples
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model import (
    ENERGY,
    LATENCY,
    Device,
    DeviceModel,
    DeviceName,
    KernelFileError,
    Outcome,
    Preset,
    Target,
    TrialDetail,
    TrialResult,
)

CPU = Device(DeviceName("cpu:0"), DeviceModel("m"), Target("t"))
PRESET = Preset("test", warmup=1, repetitions=3, timing_s=1.0, finalists=1, finalist_rounds=1)
UNIT = requests.UnitRef("key", {})
TIMED = TrialResult(Outcome.MEASURED, 100.0, detail=TrialDetail(low_us=99.0, high_us=101.0))


def make_request(**fields: Any) -> requests.Trial:
    """Return a request to measure one config, judged for contention."""
    return requests.Trial((UNIT,), PRESET, judge_contention=True, **fields)


FINAL = requests.Time(UNIT, PRESET, judge_contention=True)
"""A request to measure a finalist."""


def observe(
    observer: LaunchObserver, request: requests.Trial | requests.Time, timed: TrialResult = TIMED
) -> TrialResult:
    """Take a config through all that an observer is told."""
    launch = observer.begin_config(request, lambda: None)
    first = observer.end_first_launch(TrialResult(Outcome.MEASURED))
    if first.outcome is None:
        return first
    observer.begin_samples()
    timed = observer.end_samples(timed, Samples([100.0], [100.0]))
    return observer.complete_result(timed, TimedLaunches(launch), lambda: None)


class Watch:
    """A watch of CPUs that other programs use as a test says."""

    absence = ""

    def __init__(self, *, is_contended: bool, is_shared: bool) -> None:
        self.is_contended: Callable[[Samples], bool] = lambda samples: is_contended
        self.is_shared = lambda: is_shared


def watch_cpus(monkeypatch: pytest.MonkeyPatch, *, is_contended: bool = False, is_shared: bool = False) -> None:
    """Let other programs use the CPUs during samples, or during the measuring of energy."""
    monkeypatch.setattr(contention, "CpuWatch", lambda: Watch(is_contended=is_contended, is_shared=is_shared))


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Let a tenth of a second pass at each look at the clock of the energy meter."""
    ticks = count()
    monkeypatch.setattr(energy, "perf_counter", lambda: next(ticks) / 10)
    return ticks


def make_meter(watts: float = 50.0) -> EnergyMeter:
    """Return a meter whose device uses 5 J between two readings, or nothing at all."""
    readings = count()
    return EnergyMeter(lambda: next(readings) * watts / 10, CPU.name, returns_early=False)


def test_a_measured_config_gets_energy_and_metrics(monkeypatch: pytest.MonkeyPatch, seconds: Iterator[int]) -> None:
    """Finalists have both. In the search, only the metrics that need no launches of their own are measured."""
    watch_cpus(monkeypatch)
    costs = Costs(LATENCY, lambda us: {"speed": 1 / us})
    observers = ObserverGroup([make_meter(), ContentionWatch(CPU), FileMetrics(costs)])
    found = observe(observers, FINAL)
    assert found.outcome is Outcome.MEASURED
    assert found.metrics == {ENERGY: pytest.approx(5.0), "speed": 0.01}
    assert observe(observers, make_request()).metrics == {"speed": 0.01}


def test_a_counter_that_stands_still_contends_the_config(seconds: Iterator[int]) -> None:
    """That says nothing about the config, which is tried again."""
    found = observe(make_meter(watts=0.0), FINAL)
    assert (found.outcome, found.metrics) == (Outcome.CONTENDED, {})
    assert found.message.startswith("the energy counter of cpu:0: it did not move")


def test_a_contended_timing_has_no_energy_and_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is worth its time."""
    watch_cpus(monkeypatch, is_contended=True)
    costs = Costs(LATENCY, lambda us: pytest.fail("evaluated"))
    meter = EnergyMeter(lambda: pytest.fail("read"), CPU.name, returns_early=False)
    found = observe(ObserverGroup([meter, ContentionWatch(CPU), FileMetrics(costs)]), FINAL)
    assert (found.outcome, found.metrics) == (Outcome.CONTENDED, {})


def test_a_hopeless_timing_is_not_contended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one whose request does not ask for it."""
    watch_cpus(monkeypatch, is_contended=True)
    hopeless = TrialResult(Outcome.SLOWER, 100.0)
    assert observe(ContentionWatch(CPU), make_request(), hopeless) == hopeless
    unjudged = requests.Trial((UNIT,), PRESET, judge_contention=False)
    assert observe(ContentionWatch(CPU), unjudged) == TIMED


def test_energy_of_shared_cpus_is_contended(monkeypatch: pytest.MonkeyPatch, seconds: Iterator[int]) -> None:
    """A latency alone is not."""
    watch_cpus(monkeypatch, is_shared=True)
    assert observe(ContentionWatch(CPU), make_request()) == TIMED
    found = observe(ObserverGroup([make_meter(), ContentionWatch(CPU)]), FINAL)
    assert found.outcome is Outcome.CONTENDED


def test_a_metric_that_fails_leaves_all_metrics_out() -> None:
    """The figures that others have found stay."""

    def fail(latency_us: float) -> dict[str, float]:
        raise KernelFileError("tflops: division by zero")

    timed = TrialResult(Outcome.MEASURED, 100.0, metrics={ENERGY: 1.0})
    found = observe(FileMetrics(Costs(LATENCY, fail)), make_request(), timed)
    assert (found.metrics, found.detail.metrics_fault) == ({ENERGY: 1.0}, found.message)


@pytest.mark.parametrize("granted", [None, 1])
def test_cores_are_counted_where_a_request_grants_some(granted: int | None) -> None:
    """Without a limit nothing is counted."""
    counter = CoreCounter()
    launch = counter.begin_config(make_request(cores=granted), lambda: None)
    launch()
    assert counter.end_first_launch(TIMED) == TIMED
    completed = counter.complete_result(TIMED, TimedLaunches(launch), lambda: None)
    assert completed.detail.cores == granted


def test_a_config_that_lacks_cores_is_not_timed() -> None:
    """Its result has no outcome, but the number that it needs."""
    counter = CoreCounter()
    counter.begin_config(make_request(cores=1), lambda: None)
    counter.cores = 2
    found = counter.end_first_launch(TIMED)
    assert (found.outcome, found.detail.cores) == (None, 2)
