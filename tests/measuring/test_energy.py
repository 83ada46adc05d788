"""The energy of a launch, from readings of a counter that moves in steps."""

from __future__ import annotations

import pytest

from ktuned.measuring.energy import SETTLED_S, CounterStopped, EnergyReadings

LAUNCH_S = 0.0001
"""Ten thousand launches a second."""


def measure_launch_j(joules: float, *, step_s: float, launches_per_reading: int = 1) -> float:
    """Return the energy of a launch by a counter that moves each ``step_s`` and is read after every few launches."""
    readings, launches = EnergyReadings(0.6), 0
    while readings.wants_reading():
        launches += launches_per_reading
        elapsed_s = launches * LAUNCH_S
        readings.add_reading(launches, elapsed_s // step_s * step_s / LAUNCH_S * joules, elapsed_s)
    return readings.launch_j


@pytest.mark.parametrize("step_s", [0.0001, 0.001, 0.02, 0.1])
@pytest.mark.parametrize("launches_per_reading", [1, 7])
def test_the_energy_is_known_to_one_percent_whatever_the_step(step_s: float, launches_per_reading: int) -> None:
    assert measure_launch_j(0.25, step_s=step_s, launches_per_reading=launches_per_reading) == pytest.approx(
        0.25, rel=0.01
    )


def test_readings_before_the_power_has_settled_do_not_count() -> None:
    """A counter that lags first shows the power before the launches, so its first steps are left out."""
    readings, launch = EnergyReadings(0.6), 0
    while readings.wants_reading():
        launch += 1
        elapsed_s = launch * LAUNCH_S
        early = 0.9 * min(elapsed_s, SETTLED_S) / LAUNCH_S
        readings.add_reading(launch, launch - early, elapsed_s)
    assert readings.launch_j == pytest.approx(1.0, rel=0.02)


def test_a_counter_that_does_not_move_is_an_error() -> None:
    with pytest.raises(CounterStopped, match="did not move in"):
        measure_launch_j(0.0, step_s=0.1)
