"""The energy of a launch from readings of a counter that moves in steps."""

from __future__ import annotations

import pytest

from ktuned.measuring.energy import SETTLED_S, CounterStopped, EnergyReadings

LAUNCH_S = 0.0001
"""Ten thousand launches a second."""


def read_counter(joules: float, *, step_s: float, at_once: int = 1) -> float:
    """Return the energy of a launch by a counter that moves each ``step_s``, and is read after every few launches."""
    readings, launches = EnergyReadings(0.6), 0
    while readings.wants_reading():
        launches += at_once
        elapsed_s = launches * LAUNCH_S
        readings.add_reading(launches, elapsed_s // step_s * step_s / LAUNCH_S * joules, elapsed_s)
    return readings.launch_j


@pytest.mark.parametrize("step_s", [0.0001, 0.001, 0.02, 0.1])
@pytest.mark.parametrize("at_once", [1, 7])
def test_the_counters_steps_cost_little_error(step_s: float, at_once: int) -> None:
    """Whether it moves ten times a second or with each reading, the energy is known to 1 %."""
    assert read_counter(0.25, step_s=step_s, at_once=at_once) == pytest.approx(0.25, rel=0.01)


def test_readings_before_the_power_has_settled_do_not_count() -> None:
    """A counter that lags shows what came before: its first steps are left out."""
    readings, launch = EnergyReadings(0.6), 0
    while readings.wants_reading():
        launch += 1
        elapsed_s = launch * LAUNCH_S
        early = 0.9 * min(elapsed_s, SETTLED_S) / LAUNCH_S
        readings.add_reading(launch, launch - early, elapsed_s)
    assert readings.launch_j == pytest.approx(1.0, rel=0.02)


def test_a_counter_that_does_not_move_is_an_error() -> None:
    """Nothing waits for it without end."""
    with pytest.raises(CounterStopped, match="did not move in"):
        read_counter(0.0, step_s=0.1)
