"""Observers of a config's launches: what each adds to the result, and when it ends the trial."""

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
    TrialResult,
)
from tests.trials import make_detail

CPU = Device(DeviceName("cpu:0"), DeviceModel("m"), Target("t"))
PRESET = Preset("test", warmup=1, repetitions=3, timing_s=1.0, finalists=1, finalist_rounds=1)
UNIT_REF = requests.UnitRef("key", {})
TIMED = TrialResult(Outcome.MEASURED, 100.0, detail=make_detail(low_us=99.0, high_us=101.0))


def make_request(**fields: Any) -> requests.Trial:
    """Return a request to measure one config, judged for contention."""
    return requests.Trial((UNIT_REF,), PRESET, judge_contention=True, **fields)


FINALIST_REQUEST = requests.Time(UNIT_REF, PRESET, judge_contention=True)
"""A request to measure a finalist."""


def run_observer(
    observer: LaunchObserver, request: requests.Trial | requests.Time, timed: TrialResult = TIMED
) -> TrialResult:
    """Take a config through all calls that an observer gets."""
    launch = observer.begin_config(request, lambda: None)
    first = observer.end_first_launch(TrialResult(Outcome.MEASURED))
    if first.outcome is None:
        return first
    observer.begin_samples()
    timed = observer.end_samples(timed, Samples([100.0], [100.0]))
    return observer.complete_result(timed, TimedLaunches(launch), lambda: None)


class FakeCpuWatch:
    """A watch of the CPUs with given verdicts."""

    absence = ""

    def __init__(self, *, is_contended: bool, is_shared: bool) -> None:
        self.is_contended: Callable[[Samples], bool] = lambda samples: is_contended
        self.is_shared = lambda: is_shared


def watch_cpus(monkeypatch: pytest.MonkeyPatch, *, is_contended: bool = False, is_shared: bool = False) -> None:
    """Replace the watch of the CPUs: contended during samples, shared while energy is measured."""
    monkeypatch.setattr(contention, "CpuWatch", lambda: FakeCpuWatch(is_contended=is_contended, is_shared=is_shared))


@pytest.fixture
def tenths(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Let 0.1 s pass at each reading of the energy meter's clock."""
    ticks = count()
    monkeypatch.setattr(energy, "perf_counter", lambda: next(ticks) / 10)
    return ticks


def make_meter(watts: float = 50.0) -> EnergyMeter:
    """Return a meter of a device that takes ``watts``."""
    readings = count()
    return EnergyMeter(lambda: next(readings) * watts / 10, CPU.name, returns_early=False)


def test_a_measured_config_gets_energy_and_metrics(monkeypatch: pytest.MonkeyPatch, tenths: Iterator[int]) -> None:
    """A finalist gets both. In the search, only metrics that need no further launches are measured."""
    watch_cpus(monkeypatch)
    costs = Costs(LATENCY, lambda us: {"speed": 1 / us})
    observers = ObserverGroup([make_meter(), ContentionWatch(CPU), FileMetrics(costs)])
    result = run_observer(observers, FINALIST_REQUEST)
    assert result.outcome is Outcome.MEASURED
    assert result.metrics == {ENERGY: pytest.approx(5.0), "speed": 0.01}
    assert run_observer(observers, make_request()).metrics == {"speed": 0.01}


def test_a_stopped_energy_counter_makes_the_config_contended(tenths: Iterator[int]) -> None:
    """A stopped counter says nothing about the config, so the config is tried again."""
    result = run_observer(make_meter(watts=0.0), FINALIST_REQUEST)
    assert (result.outcome, result.metrics) == (Outcome.CONTENDED, {})
    assert result.message.startswith("the energy counter of cpu:0: it did not move")


def test_a_contended_timing_names_the_setting_its_file_and_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    watch_cpus(monkeypatch, is_contended=True)
    result = run_observer(ContentionWatch(CPU), make_request())
    assert result.outcome is Outcome.CONTENDED
    assert "`contention = false` in config.toml" in result.message
    assert "`ktuned config`" in result.message


def test_a_contended_timing_has_no_energy_and_no_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The observers do not even read the meter or evaluate the metrics."""
    watch_cpus(monkeypatch, is_contended=True)
    costs = Costs(LATENCY, lambda us: pytest.fail("evaluated"))
    meter = EnergyMeter(lambda: pytest.fail("read"), CPU.name, returns_early=False)
    result = run_observer(ObserverGroup([meter, ContentionWatch(CPU), FileMetrics(costs)]), FINALIST_REQUEST)
    assert (result.outcome, result.metrics) == (Outcome.CONTENDED, {})


def test_a_hopeless_timing_is_not_contended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timing whose request does not ask for the check is not contended either."""
    watch_cpus(monkeypatch, is_contended=True)
    hopeless = TrialResult(Outcome.SLOWER, 100.0)
    assert run_observer(ContentionWatch(CPU), make_request(), hopeless) == hopeless
    unjudged = requests.Trial((UNIT_REF,), PRESET, judge_contention=False)
    assert run_observer(ContentionWatch(CPU), unjudged) == TIMED


def test_energy_of_shared_cpus_is_contended(monkeypatch: pytest.MonkeyPatch, tenths: Iterator[int]) -> None:
    """A latency alone is not."""
    watch_cpus(monkeypatch, is_shared=True)
    assert run_observer(ContentionWatch(CPU), make_request()) == TIMED
    result = run_observer(ObserverGroup([make_meter(), ContentionWatch(CPU)]), FINALIST_REQUEST)
    assert result.outcome is Outcome.CONTENDED


def test_a_metric_that_fails_leaves_all_metrics_out() -> None:
    """The figures of other observers stay."""

    def fail(latency_us: float) -> dict[str, float]:
        raise KernelFileError("tflops: division by zero")

    timed = TrialResult(Outcome.MEASURED, 100.0, metrics={ENERGY: 1.0})
    result = run_observer(FileMetrics(Costs(LATENCY, fail)), make_request(), timed)
    assert (result.metrics, result.detail.profile.metrics_fault) == ({ENERGY: 1.0}, result.message)


@pytest.mark.parametrize("cores_limit", [None, 1])
def test_cores_are_counted_only_under_a_limit(cores_limit: int | None) -> None:
    counter = CoreCounter()
    launch = counter.begin_config(make_request(cores=cores_limit), lambda: None)
    launch()
    assert counter.end_first_launch(TIMED) == TIMED
    completed = counter.complete_result(TIMED, TimedLaunches(launch), lambda: None)
    assert completed.detail.profile.cores == cores_limit


def test_a_config_that_needs_more_cores_is_not_timed() -> None:
    """The result has no outcome, but the number of cores that the config needs."""
    counter = CoreCounter()
    counter.begin_config(make_request(cores=1), lambda: None)
    counter.cores = 2
    result = counter.end_first_launch(TIMED)
    assert (result.outcome, result.detail.profile.cores) == (None, 2)
