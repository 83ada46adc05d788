"""Timing by the GPU's own clock."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import pytest

from ktuned.measuring.cuda_timer import EVENTS, GRAPH, CudaTimer
from ktuned.measuring.race import RaceRules
from ktuned.measuring.timed_launches import TimedLaunches
from ktuned.model.plan import PRESETS

pytestmark = pytest.mark.gpu

MEGABYTES = 1 << 20


def time_median_us(method: str, launch: Callable[[], object]) -> float:
    """Return the median latency that a CUDA timer finds for a launch, in µs."""
    launches = TimedLaunches(lambda: (launch(), None)[1])
    timing = CudaTimer("cuda:0", method).time_launches(launches, RaceRules(PRESETS["default"]))
    assert not timing.is_hopeless
    return timing.samples.median_us


def test_twice_the_work_takes_twice_the_time() -> None:
    """The cache is flushed before each run, so the time grows with the memory that is written."""
    import torch

    small, large = (torch.zeros(size * MEGABYTES, dtype=torch.int8, device="cuda") for size in (256, 512))
    ratio = time_median_us(EVENTS, large.zero_) / time_median_us(EVENTS, small.zero_)
    assert 1.6 < ratio < 2.4


def test_a_cached_kernel_is_timed_without_its_cache() -> None:
    """Events follow a flush and see memory; a graph replays launches back to back and sees the cache."""
    import torch

    x = torch.zeros(16 * MEGABYTES, dtype=torch.int8, device="cuda")
    y = torch.empty_like(x)
    assert time_median_us(GRAPH, lambda: y.copy_(x)) < time_median_us(EVENTS, lambda: y.copy_(x))


def test_a_tiny_kernel_is_resolved_by_a_graph() -> None:
    """A graph resolves a few µs, less than two events around one launch report."""
    import torch

    x = torch.zeros(1, device="cuda")
    by_graph = time_median_us(GRAPH, lambda: x.add_(1))
    assert 0 < by_graph < 5
    assert by_graph <= time_median_us(EVENTS, lambda: x.add_(1))


def test_a_slow_config_is_given_up_early() -> None:
    import torch

    x = torch.zeros(256 * MEGABYTES, dtype=torch.int8, device="cuda")
    timing = CudaTimer("cuda:0", EVENTS).time_launches(
        TimedLaunches(lambda: (x.zero_(), None)[1]), RaceRules(PRESETS["default"], stop_above_us=1.0)
    )
    assert timing.is_hopeless


def test_restoring_inputs_is_not_timed() -> None:
    """A restore that takes far longer than the kernel does not change the kernel's figure."""
    import torch

    x = torch.zeros(1, device="cuda")
    large = torch.zeros(512 * MEGABYTES, dtype=torch.int8, device="cuda")
    launches = TimedLaunches(lambda: (x.add_(1), None)[1], restore=lambda: (large.zero_(), None)[1])
    restoring = CudaTimer("cuda:0", EVENTS).time_launches(launches, RaceRules(PRESETS["fast"]))
    assert restoring.samples.median_us < time_median_us(EVENTS, large.zero_) / 2


def test_a_host_that_is_slower_than_the_kernel_is_not_in_the_figure() -> None:
    """A launch takes the host 0.3 ms, during which the GPU would flush its cache ten times."""
    import torch

    x = torch.zeros(1, device="cuda")

    def launch_slowly() -> None:
        # Not a sleep, which lasts longer than it should.
        until = perf_counter() + 0.0003
        while perf_counter() < until:
            pass
        x.add_(1)

    slow_host_us = time_median_us(EVENTS, launch_slowly)
    assert slow_host_us < 3 * time_median_us(EVENTS, lambda: x.add_(1))
    assert slow_host_us < 50
