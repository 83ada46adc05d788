"""Energy of launches by the GPU's own counter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ktuned.backends import energy, nvml
from ktuned.backends.cuda import gpu_uuids
from ktuned.measuring.cuda_timer import EVENTS, CudaTimer
from ktuned.measuring.energy import EnergyMeter
from ktuned.measuring.race import RaceRules
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model.plan import PRESETS

pytestmark = pytest.mark.gpu(alone=True)
"""The energy counter counts what all programs on the GPU take."""


def measured(launch: Callable[[], object], restore: Callable[[], None] | None = None) -> tuple[float, float]:
    """Return a launch's energy in J, and its latency in s."""
    uuid = gpu_uuids()["cuda:0"]
    launches = TimedLaunches(lambda: (launch(), None)[1])
    timing = CudaTimer("cuda:0", EVENTS).time_launches(launches, RaceRules(PRESETS["default"]))
    latency_us = timing.samples.median_us
    meter = EnergyMeter(nvml.Gpu(uuid).read_energy_j, "cuda:0", returns_early=True)
    restored = TimedLaunches(lambda: (launch(), None)[1], restore=restore)
    return meter.measure_energy(restored, PRESETS["default"], latency_us), latency_us / 1e6


def test_a_gpu_counts_its_energy() -> None:
    """An H100 does: its probe finds the counter, which moves."""
    from ktuned.backends.registry import Registry

    registry = Registry()
    backend = registry.load("torch")
    devices = backend.devices()
    assert isinstance(devices, (list, tuple))
    assert energy.explain_missing_energy(backend, devices[0]) == ""


def test_the_power_is_one_that_a_gpu_has_and_the_figure_repeats() -> None:
    """Between an idle GPU's and the largest limit there is; two measurements agree."""
    import torch

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    # While a GPU comes from its idle clocks to those of work, its power changes.
    measured(lambda: a @ a)
    first, latency_s = measured(lambda: a @ a)
    second, _ = measured(lambda: a @ a)
    print(f"{first} J, {first / latency_s:.0f} W, then {second} J")
    assert 50 < first / latency_s < 1_500
    assert first == pytest.approx(second, rel=0.08)


def test_twice_the_work_takes_twice_the_energy() -> None:
    """Of one kind of work."""
    import torch

    small, large = (torch.zeros(size << 20, dtype=torch.int8, device="cuda") for size in (256, 512))
    ratio = measured(large.zero_)[0] / measured(small.zero_)[0]
    print(f"ratio {ratio:.3f}")
    assert ratio == pytest.approx(2.0, rel=0.15)


def test_restoring_tensors_is_not_the_kernels_energy() -> None:
    """It is measured by itself and taken off."""
    import torch

    x, y = (torch.zeros(256 << 20, dtype=torch.int8, device="cuda") for _ in range(2))
    plain = measured(x.zero_)[0]
    restored = measured(x.zero_, lambda: (y.zero_(), None)[1])[0]
    print(f"{plain:.4f} J alone, {restored:.4f} J beside as much of restoring")
    assert restored == pytest.approx(plain, rel=0.25)
