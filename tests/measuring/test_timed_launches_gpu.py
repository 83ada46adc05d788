"""Launches on a GPU as they are timed: on poison, some compared on the device, and no wait for it more than before."""

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
N = 1 << 16
RULES = RaceRules(PRESETS["default"])


@kernel(
    backend="none",
    space=space(n=[1]),
    inputs=lambda p: {"x": tensor(N), "y": tensor(N, output=True)},
    reference=lambda x: {"y": 2 * x},
)
def doubled(p: Any, c: Any) -> Any:
    """Return nothing: the test launches what it likes."""


def launches_of(tmp_path: Path, launch: Callable[[Any, Any], object]) -> tuple[ProblemData, TimedLaunches]:
    """Return a problem's data, and the timed launches of a function of x and y."""
    assert isinstance(doubled, Kernel)
    data = ProblemData(doubled, {}, GPU)
    data.provide_expected_outputs(tmp_path / "none")
    data.reset_tensors()
    data.prepare_checked_launch()
    data.tensors["y"].copy_(2 * data.tensors["x"])
    assert data.look_at_outputs(is_last=False)

    def bound(tensors: Any) -> Callable[[], None]:
        return lambda: (launch(tensors["x"], tensors["y"]), None)[1]

    judged = JudgedOutputs(data, is_judged=True, arithmetic=nullcontext)
    bind = lambda number: bound(data.provide_output_copy(number))  # noqa: E731
    return data, TimedLaunches(bound(data.tensors), judged=judged, bind=bind, most_copies=20)


@pytest.mark.parametrize("method", [EVENTS, GRAPH])
def test_a_right_kernel_is_compared_and_timed(tmp_path: Path, method: str) -> None:
    """As fast as without: poison and comparisons are in no figure."""
    import torch

    data, launches = launches_of(tmp_path, lambda x, y: torch.mul(x, 2, out=y))
    timer = CudaTimer("cuda:0", method)
    timed = timer.time_launches(launches, RULES)
    x, y = data.tensors["x"], data.tensors["y"]
    plain = timer.time_launches(TimedLaunches(lambda: (torch.mul(x, 2, out=y), None)[1]), RULES)
    assert launches.compared > 0
    assert timed.samples.median_us < 1.3 * plain.samples.median_us + 1.0


@pytest.mark.parametrize("method", [EVENTS, GRAPH])
def test_a_kernel_that_leaves_the_output_as_it_is_does_not_pass(tmp_path: Path, method: str) -> None:
    """It would be right wherever the launch before had left the right answer."""
    _, launches = launches_of(tmp_path, lambda x, y: x.add_(0))
    timer = CudaTimer("cuda:0", method)
    with pytest.raises(WrongLaunch):
        timer.time_launches(launches, RULES)


def test_a_kernel_that_is_wrong_once_in_twenty_is_found(tmp_path: Path) -> None:
    """In its samples, or at the latest in the launches that a config which may win is given."""
    import random

    import torch

    numbers = random.Random(7)

    def launch(x: Any, y: Any) -> None:
        torch.mul(x, 2, out=y)
        if numbers.random() < 1 / 20:
            y[7] += 1

    _, launches = launches_of(tmp_path, launch)
    timer = CudaTimer("cuda:0", EVENTS)

    def time_and_top_up() -> None:
        timer.time_launches(launches, RULES)
        launches.top_up_comparisons(2 * SURE_COMPARED, 10.0, timer.synchronize)

    with pytest.raises(WrongLaunch):
        time_and_top_up()
