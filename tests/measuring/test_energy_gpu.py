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


def measure_energy_and_latency(
    launch: Callable[[], object], restore: Callable[[], None] | None = None
) -> tuple[float, float]:
    """Return a launch's energy in J and its latency in s."""
    uuid = gpu_uuids()["cuda:0"]
    launches = TimedLaunches(lambda: (launch(), None)[1])
    timing = CudaTimer("cuda:0", EVENTS).time_launches(launches, RaceRules(PRESETS["default"]))
    latency_us = timing.samples.median_us
    meter = EnergyMeter(nvml.Gpu(uuid).read_energy_j, "cuda:0", returns_early=True)
    restored_j = TimedLaunches(lambda: (launch(), None)[1], restore=restore)
    return meter.measure_energy(restored_j, PRESETS["default"], latency_us), latency_us / 1e6


def test_the_probe_finds_the_gpus_energy_counter() -> None:
    from ktuned.backends.registry import Registry

    registry = Registry()
    backend = registry.load("torch")
    devices = backend.devices()
    assert isinstance(devices, (list, tuple))
    assert energy.explain_missing_energy(backend, devices[0]) == ""


def test_the_power_is_plausible_and_the_figure_repeats() -> None:
    """The power lies between an idle GPU's and the largest limit of any GPU; two measurements agree."""
    import torch

    a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
    # While a GPU comes from its idle clocks to those of work, its power changes.
    measure_energy_and_latency(lambda: a @ a)
    first, latency_s = measure_energy_and_latency(lambda: a @ a)
    second, _ = measure_energy_and_latency(lambda: a @ a)
    print(f"{first} J, {first / latency_s:.0f} W, then {second} J")
    assert 50 < first / latency_s < 1_500
    assert first == pytest.approx(second, rel=0.08)


def test_twice_the_work_takes_twice_the_energy() -> None:
    import torch

    small, large = (torch.zeros(size << 20, dtype=torch.int8, device="cuda") for size in (256, 512))
    ratio = measure_energy_and_latency(large.zero_)[0] / measure_energy_and_latency(small.zero_)[0]
    print(f"ratio {ratio:.3f}")
    assert ratio == pytest.approx(2.0, rel=0.15)


def test_restoring_tensors_is_not_the_kernels_energy() -> None:
    """The energy of restoring is measured by itself and subtracted."""
    import torch

    x, y = (torch.zeros(256 << 20, dtype=torch.int8, device="cuda") for _ in range(2))
    plain_j = measure_energy_and_latency(x.zero_)[0]
    restored_j = measure_energy_and_latency(x.zero_, lambda: (y.zero_(), None)[1])[0]
    print(f"{plain_j:.4f} J alone, {restored_j:.4f} J beside as much of restoring")
    assert restored_j == pytest.approx(plain_j, rel=0.25)
