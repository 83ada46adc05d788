"""Launches as they are timed: each on poison, some compared, the flags of a device read once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from ktuned.checking.judged_outputs import JudgedOutputs
from ktuned.checking.problem_data import ProblemData
from ktuned.checking.quick_look import QuickLook
from ktuned.declaration import Kernel, kernel, space, tensor
from ktuned.measuring.host_timer import HostTimer
from ktuned.measuring.race import RaceRules
from ktuned.measuring.timed_launches import SURE_COMPARED, TimedLaunches, WrongLaunch
from ktuned.model import Device, DeviceModel, DeviceName, Preset, Target

CPU = Device(DeviceName("cpu:0"), DeviceModel("m"), Target("t"))
PRESET = Preset("test", warmup=1, repetitions=10, timing_s=1.0, finalists=1, finalist_rounds=1)


def doubled(x: Any) -> Any:
    """Return 2 x in its dtype, in which torch may not be able to add."""
    return (2 * x.float()).to(x.dtype)


def declare(dtype: str = "float32", reference: Callable[..., Any] = lambda x: {"y": doubled(x)}) -> Kernel:
    """Return a kernel with one input and one output."""

    @kernel(
        backend="none",
        space=space(n=[1]),
        inputs=lambda p: {"x": tensor(64, dtype, fill="integer"), "y": tensor(64, dtype, output=True)},
        reference=reference,
    )
    def it(p: Any, c: Any) -> Any:
        return None

    assert isinstance(it, Kernel)
    return it


def opened(tmp_path: Any, declared: Kernel) -> ProblemData:
    """Return the data of a problem whose first launch was right."""
    data = ProblemData(declared, {}, CPU)
    data.provide_expected_outputs(tmp_path / "none")
    data.reset_tensors()
    data.prepare_checked_launch()
    data.tensors["y"].copy_(doubled(data.tensors["x"]))
    return data


def launches_of(data: ProblemData, launch: Callable[[Any, Any, int], None], copies: int = 4) -> TimedLaunches:
    """Return the timed launches of a function of x, y and the number of the launch."""
    numbers = iter(range(10**9))

    def bound(tensors: Any) -> Callable[[], None]:
        return lambda: launch(tensors["x"], tensors["y"], next(numbers))

    return TimedLaunches(
        bound(data.tensors),
        judged=JudgedOutputs(data, is_judged=True, arithmetic=nullcontext),
        bind=lambda number: bound(data.provide_output_copy(number)),
        most_copies=copies,
    )


def work(x: Any, y: Any, number: int) -> None:
    """Do what is right."""
    y.copy_(x + x)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "int8", "float8_e4m3fnuz"])
def test_each_timed_launch_finds_poison(tmp_path: Any, dtype: str) -> None:
    """In each output of the ring, of every dtype, also of those whose poison is an ordinary number."""
    data = opened(tmp_path, declare(dtype))
    right = data.tensors["y"].clone()
    found: list[bool] = []

    def launch(x: Any, y: Any, number: int) -> None:
        found.append(torch.equal(y.view(torch.uint8), right.view(torch.uint8)))
        y.copy_(right)

    HostTimer().time_launches(launches_of(data, launch), RaceRules(PRESET))
    assert len(found) > 10
    assert not any(found)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "int8", "float8_e4m3fnuz"])
def test_an_element_that_is_not_written_is_found(tmp_path: Any, dtype: str) -> None:
    """Though the poison of a narrow type may be the right number by chance: the next launch has another."""
    data = opened(tmp_path, declare(dtype))

    def launch(x: Any, y: Any, number: int) -> None:
        y[1:] = doubled(x)[1:]

    with pytest.raises(WrongLaunch):
        HostTimer().time_launches(launches_of(data, launch), RaceRules(PRESET))


def test_poison_is_found_where_the_reference_has_nan(tmp_path: Any) -> None:
    """NaN equals NaN, but no launch that writes nothing is right."""
    data = ProblemData(declare(reference=lambda x: {"y": torch.full((64,), torch.nan)}), {}, CPU)
    data.provide_expected_outputs(tmp_path / "none")
    data.reset_tensors()
    data.prepare_checked_launch()
    assert data.check_outputs().message == "y was never written"
    data.tensors["y"].fill_(torch.nan)
    assert data.check_outputs().ok


def test_outputs_whose_last_bits_differ_are_judged_in_full(tmp_path: Any) -> None:
    """Sums in another order are no mismatch."""
    data = opened(tmp_path, declare())

    def launch(x: Any, y: Any, number: int) -> None:
        y.copy_((x + x) * (1 + 1e-6 * (number % 3)))

    launches = launches_of(data, launch)
    HostTimer().time_launches(launches, RaceRules(PRESET))
    assert launches.compared > 0


def test_a_wrong_launch_in_twenty_is_found_in_99_of_100_tries(tmp_path: Any) -> None:
    """By the launches that a config which may win is given; the trial's own are not counted here."""
    data = opened(tmp_path, declare())
    missed = 0
    for seed in range(200):
        chance = torch.Generator().manual_seed(seed)

        def launch(x: Any, y: Any, number: int, chance: torch.Generator = chance) -> None:
            y.copy_(x + x)
            if float(torch.rand(1, generator=chance)) < 1 / 20:
                y[7] += 1

        work(data.tensors["x"], data.tensors["y"], 0)
        launches = launches_of(data, launch)
        try:
            launches.top_up_comparisons(SURE_COMPARED, 60.0, lambda: None)
            missed += 1
        except WrongLaunch:
            pass
    # Of 200 tries 2 are to be missed; more than 8 are in one of 2,000 such tests.
    assert missed <= 8


def test_flags_of_a_device_say_which_launches_are_right(tmp_path: Any) -> None:
    """They are read once for all; a wrong launch ends the timing, and the message has the element."""
    data = opened(tmp_path, declare())
    look = QuickLook.from_expected(
        "cpu", data.tensors, data._expected, rtol=1e-4, atol=1e-4, keep=lambda name, value: value
    )
    assert look is not None
    data.quick_look = look
    assert data.look_at_outputs(is_last=False)
    is_wrong = False

    def launch(x: Any, y: Any, number: int) -> None:
        y.copy_(x + x)
        if is_wrong:
            y[7] += 1

    launches = launches_of(data, launch)

    def flags(count: int) -> list[Any]:
        found = []
        for _ in range(count):
            launches.prepare_ring()
            launches.ring[0]()
            found.append(launches.make_right_flag(0))
        return found

    launches.judge_flags(flags(3), 1.0, lambda: None)
    assert launches.compared == 3
    is_wrong = True
    with pytest.raises(WrongLaunch, match=r"y: 1 of 64 elements .* the first at \[7\]"):
        launches.judge_flags(flags(2), 1.0, lambda: None)


def test_a_flag_by_bounds_is_believed_even_if_later_launches_are_right(tmp_path: Any) -> None:
    """The launch that it was of left outputs that are out of tolerance beyond doubt."""
    data = opened(tmp_path, declare())
    data.quick_look = QuickLook.from_expected(
        "cpu", data.tensors, data._expected, rtol=1e-4, atol=1e-4, keep=lambda name, value: value
    )
    assert data.look_at_outputs(is_last=False)
    launches = launches_of(data, lambda x, y, number: y.copy_(x + x + (number == 0)))
    launches.prepare_ring()
    launches.ring[0]()
    with pytest.raises(WrongLaunch, match="1 of 1 timed launches left outputs out of tolerance"):
        launches.judge_flags([launches.make_right_flag(0)], 1.0, lambda: None)


def test_a_flag_by_bits_is_dropped_if_later_launches_are_right(tmp_path: Any) -> None:
    """Of integers there is no look at bounds: other launches are judged, and then bits say nothing more."""
    data = opened(tmp_path, declare("int64"))
    launches = launches_of(data, lambda x, y, number: y.copy_(x + x + (number == 0)))
    launches.prepare_ring()
    launches.ring[0]()
    launches.judge_flags([launches.make_right_flag(0)], 1.0, lambda: None)
    assert launches.make_right_flag(0) is None
