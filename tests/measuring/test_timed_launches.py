"""Timed launches: outputs are poisoned before each, some outputs are compared, and the device's flags are read once."""

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


def double_in_dtype(x: Any) -> Any:
    """Return 2 x in the dtype of x, in which torch may not be able to add."""
    return (2 * x.float()).to(x.dtype)


def declare_kernel(
    dtype: str = "float32", reference: Callable[..., Any] = lambda x: {"y": double_in_dtype(x)}
) -> Kernel:
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


def make_problem_data(tmp_path: Any, declared: Kernel) -> ProblemData:
    """Return the data of a problem whose first launch was right."""
    data = ProblemData(declared, {}, CPU)
    data.provide_expected_outputs(tmp_path / "none")
    data.reset_tensors()
    data.prepare_checked_launch()
    data.tensors["y"].copy_(double_in_dtype(data.tensors["x"]))
    return data


def make_timed_launches(data: ProblemData, launch: Callable[[Any, Any, int], None], copies: int = 4) -> TimedLaunches:
    """Return the timed launches of a function of x, y and the launch's number."""
    numbers = iter(range(10**9))

    def bind_tensors(tensors: Any) -> Callable[[], None]:
        return lambda: launch(tensors["x"], tensors["y"], next(numbers))

    return TimedLaunches(
        bind_tensors(data.tensors),
        judged=JudgedOutputs(data, is_judged=True, arithmetic=nullcontext),
        bind=lambda number: bind_tensors(data.provide_output_copy(number)),
        most_copies=copies,
    )


def write_right_output(x: Any, y: Any, number: int) -> None:
    y.copy_(x + x)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "int8", "float8_e4m3fnuz"])
def test_each_timed_launch_gets_poisoned_outputs(tmp_path: Any, dtype: str) -> None:
    """Every output of the ring is poisoned, also in dtypes whose poison is an ordinary number."""
    data = make_problem_data(tmp_path, declare_kernel(dtype))
    right_output = data.tensors["y"].clone()
    saw_right_output: list[bool] = []

    def launch(x: Any, y: Any, number: int) -> None:
        saw_right_output.append(torch.equal(y.view(torch.uint8), right_output.view(torch.uint8)))
        y.copy_(right_output)

    HostTimer().time_launches(make_timed_launches(data, launch), RaceRules(PRESET))
    assert len(saw_right_output) > 10
    assert not any(saw_right_output)


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "uint8", "int8", "float8_e4m3fnuz"])
def test_an_element_that_is_not_written_is_found(tmp_path: Any, dtype: str) -> None:
    """A narrow dtype's poison may equal the right number by chance, but the next launch gets another poison."""
    data = make_problem_data(tmp_path, declare_kernel(dtype))

    def launch(x: Any, y: Any, number: int) -> None:
        y[1:] = double_in_dtype(x)[1:]

    with pytest.raises(WrongLaunch):
        HostTimer().time_launches(make_timed_launches(data, launch), RaceRules(PRESET))


def test_poison_is_found_where_the_reference_has_nan(tmp_path: Any) -> None:
    """NaN equals NaN in the check, but a launch that writes nothing is still wrong."""
    data = ProblemData(declare_kernel(reference=lambda x: {"y": torch.full((64,), torch.nan)}), {}, CPU)
    data.provide_expected_outputs(tmp_path / "none")
    data.reset_tensors()
    data.prepare_checked_launch()
    assert data.check_outputs().message.startswith("y was never written")
    data.tensors["y"].fill_(torch.nan)
    assert data.check_outputs().ok


def test_outputs_whose_last_bits_differ_are_judged_in_full(tmp_path: Any) -> None:
    """Sums in another order are no mismatch."""
    data = make_problem_data(tmp_path, declare_kernel())

    def launch(x: Any, y: Any, number: int) -> None:
        y.copy_((x + x) * (1 + 1e-6 * (number % 3)))

    launches = make_timed_launches(data, launch)
    HostTimer().time_launches(launches, RaceRules(PRESET))
    assert launches.compared > 0


def test_a_wrong_launch_in_twenty_is_found_in_99_of_100_tries(tmp_path: Any) -> None:
    """The extra launches of a config that may win find it; the trial's own comparisons are not counted here."""
    data = make_problem_data(tmp_path, declare_kernel())
    missed = 0
    for seed in range(200):
        chance = torch.Generator().manual_seed(seed)

        def launch(x: Any, y: Any, number: int, chance: torch.Generator = chance) -> None:
            y.copy_(x + x)
            if float(torch.rand(1, generator=chance)) < 1 / 20:
                y[7] += 1

        write_right_output(data.tensors["x"], data.tensors["y"], 0)
        launches = make_timed_launches(data, launch)
        try:
            launches.top_up_comparisons(SURE_COMPARED, 60.0, lambda: None)
            missed += 1
        except WrongLaunch:
            pass
    # On average 2 of 200 tries miss it; more than 8 miss it in one of 2,000 such tests.
    assert missed <= 8


def test_flags_of_a_device_say_which_launches_are_right(tmp_path: Any) -> None:
    """All flags are read at once. A wrong launch ends the timing, and the message names the element."""
    data = make_problem_data(tmp_path, declare_kernel())
    quick_look = QuickLook.from_expected(
        "cpu", data.tensors, data._expected, rtol=1e-4, atol=1e-4, keep=lambda name, value: value
    )
    assert quick_look is not None
    data.quick_look = quick_look
    assert data.look_at_outputs(is_last=False)
    is_wrong = False

    def launch(x: Any, y: Any, number: int) -> None:
        y.copy_(x + x)
        if is_wrong:
            y[7] += 1

    launches = make_timed_launches(data, launch)

    def launch_and_flag(count: int) -> list[Any]:
        right_flags = []
        for _ in range(count):
            launches.prepare_ring()
            launches.ring[0]()
            right_flags.append(launches.make_right_flag(0))
        return right_flags

    launches.judge_flags(launch_and_flag(3), 1.0, lambda: None)
    assert launches.compared == 3
    is_wrong = True
    with pytest.raises(WrongLaunch, match=r"y: 1 of 64 elements .* the first at \[7\]"):
        launches.judge_flags(launch_and_flag(2), 1.0, lambda: None)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_device_compares_many_launches_with_one_wait(tmp_path: Any, dtype: str) -> None:
    """Twenty launches for a wait, until enough are compared; a wrong one among them ends the timing."""
    data = make_problem_data(tmp_path, declare_kernel(dtype))
    is_wrong = False
    launches = make_timed_launches(data, lambda x, y, number: y.copy_(x + x + is_wrong))
    launches.top_up_comparisons(50, 60.0, lambda: None, by_flags=True)
    assert launches.compared == 50
    is_wrong = True
    with pytest.raises(WrongLaunch):
        launches.top_up_comparisons(60, 60.0, lambda: None, by_flags=True)


def test_a_flag_by_bounds_is_believed_even_if_later_launches_are_right(tmp_path: Any) -> None:
    """The flagged launch left outputs that are out of tolerance beyond doubt."""
    data = make_problem_data(tmp_path, declare_kernel())
    data.quick_look = QuickLook.from_expected(
        "cpu", data.tensors, data._expected, rtol=1e-4, atol=1e-4, keep=lambda name, value: value
    )
    assert data.look_at_outputs(is_last=False)
    launches = make_timed_launches(data, lambda x, y, number: y.copy_(x + x + (number == 0)))
    launches.prepare_ring()
    launches.ring[0]()
    with pytest.raises(WrongLaunch, match="1 of 1 timed launches left outputs out of tolerance"):
        launches.judge_flags([launches.make_right_flag(0)], 1.0, lambda: None)


def test_a_flag_by_bits_is_dropped_if_later_launches_are_right(tmp_path: Any) -> None:
    """Integers have no check of bounds: other launches are judged in full, and flags by bits are not used again."""
    data = make_problem_data(tmp_path, declare_kernel("int64"))
    launches = make_timed_launches(data, lambda x, y, number: y.copy_(x + x + (number == 0)))
    launches.prepare_ring()
    launches.ring[0]()
    launches.judge_flags([launches.make_right_flag(0)], 1.0, lambda: None)
    assert launches.make_right_flag(0) is None
