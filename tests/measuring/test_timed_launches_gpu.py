"""Timed launches on a GPU: poisoned outputs, comparisons on the device, and no further wait for the device."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from ktuned.checking.judged_outputs import JudgedOutputs
from ktuned.checking.problem_data import ProblemData
from ktuned.declaration import Kernel, kernel, space, tensor
from ktuned.measuring.cuda_timer import EVENTS, GRAPH, CudaTimer
from ktuned.measuring.race import RaceRules
from ktuned.measuring.timed_launches import SURE_COMPARED, TimedLaunches, WrongLaunch
from ktuned.model import PRESETS, Device, DeviceModel, DeviceName, Target

pytestmark = pytest.mark.gpu

GPU = Device(DeviceName("cuda:0"), DeviceModel("m"), Target("t"))
ELEMENTS = 1 << 16
RULES = RaceRules(PRESETS["default"])


@kernel(
    backend="none",
    space=space(n=[1]),
    inputs=lambda p: {"x": tensor(ELEMENTS), "y": tensor(ELEMENTS, output=True)},
    reference=lambda x: {"y": 2 * x},
)
def declared_kernel(p: Any, c: Any) -> Any:
    """Return nothing: each test launches a function of its own."""


def make_timed_launches(tmp_path: Path, launch: Callable[[Any, Any], object]) -> tuple[ProblemData, TimedLaunches]:
    """Return a problem's data, and the timed launches of a function of x and y."""
    assert isinstance(declared_kernel, Kernel)
    data = ProblemData(declared_kernel, {}, GPU)
    data.provide_expected_outputs(tmp_path / "none")
    data.reset_tensors()
    data.prepare_checked_launch()
    data.tensors["y"].copy_(2 * data.tensors["x"])
    assert data.look_at_outputs(is_last=False)

    def bind_tensors(tensors: Any) -> Callable[[], None]:
        return lambda: (launch(tensors["x"], tensors["y"]), None)[1]

    judged = JudgedOutputs(data, is_judged=True, arithmetic=nullcontext)
    bind = lambda number: bind_tensors(data.provide_output_copy(number))  # noqa: E731
    return data, TimedLaunches(bind_tensors(data.tensors), judged=judged, bind=bind, most_copies=20)


@pytest.mark.parametrize("method", [EVENTS, GRAPH])
def test_a_right_kernel_is_compared_and_timed(tmp_path: Path, method: str) -> None:
    """Poison and comparisons do not change the figure."""
    import torch

    data, launches = make_timed_launches(tmp_path, lambda x, y: torch.mul(x, 2, out=y))
    timer = CudaTimer("cuda:0", method)
    timing = timer.time_launches(launches, RULES)
    x, y = data.tensors["x"], data.tensors["y"]
    plain_timing = timer.time_launches(TimedLaunches(lambda: (torch.mul(x, 2, out=y), None)[1]), RULES)
    assert launches.compared > 0
    assert timing.samples.median_us < 1.3 * plain_timing.samples.median_us + 1.0


@pytest.mark.parametrize("method", [EVENTS, GRAPH])
def test_a_kernel_that_leaves_the_output_as_it_is_does_not_pass(tmp_path: Path, method: str) -> None:
    """Without poison, the previous launch's output would make it pass."""
    _, launches = make_timed_launches(tmp_path, lambda x, y: x.add_(0))
    timer = CudaTimer("cuda:0", method)
    with pytest.raises(WrongLaunch):
        timer.time_launches(launches, RULES)


def test_a_kernel_that_is_wrong_once_in_twenty_is_found(tmp_path: Path) -> None:
    """The samples find it, or at the latest the extra launches of a config that may win."""
    import random

    import torch

    numbers = random.Random(7)

    def launch(x: Any, y: Any) -> None:
        torch.mul(x, 2, out=y)
        if numbers.random() < 1 / 20:
            y[7] += 1

    _, launches = make_timed_launches(tmp_path, launch)
    timer = CudaTimer("cuda:0", EVENTS)

    def time_and_top_up() -> None:
        timer.time_launches(launches, RULES)
        launches.top_up_comparisons(2 * SURE_COMPARED, 10.0, timer.synchronize)

    with pytest.raises(WrongLaunch):
        time_and_top_up()
