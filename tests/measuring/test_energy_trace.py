"""The energy of a launch from readings of a counter that moves in steps."""

from __future__ import annotations

import pytest

from ktuned.ipc import replies
from ktuned.measuring.energy_trace import SETTLED_S, CounterStopped, EnergyTrace
from ktuned.measuring.race import Ending

LAUNCH_S = 0.0001
"""Ten thousand launches a second."""


def run(trace: EnergyTrace, joules: float, *, step_s: float, at_once: int = 1, until_s: float = 100.0) -> EnergyTrace:
    """Feed a trace with a counter that moves each ``step_s``, read after every few launches."""
    launches = 0
    while trace.wants_reading() and launches * LAUNCH_S < until_s:
        launches += at_once
        elapsed_s = launches * LAUNCH_S
        trace.add_reading(launches, elapsed_s // step_s * step_s / LAUNCH_S * joules, elapsed_s)
    return trace


@pytest.mark.parametrize("step_s", [0.0001, 0.001, 0.02, 0.1])
@pytest.mark.parametrize("at_once", [1, 7])
def test_the_counters_steps_cost_little_error(step_s: float, at_once: int) -> None:
    """Whether it moves ten times a second or with each reading, the energy is known to 1 %, and it says how well."""
    trace = run(EnergyTrace(0.6), 0.25, step_s=step_s, at_once=at_once)
    assert trace.energy is not None
    assert trace.energy.joules == pytest.approx(0.25, rel=0.01)
    assert trace.energy.low <= 0.25 <= trace.energy.high
    assert trace.ending in (Ending.KNOWN, Ending.OUT_OF_TIME)


def test_readings_before_the_power_has_settled_do_not_count() -> None:
    """A counter that lags shows what came before: its first steps are left out."""
    trace = EnergyTrace(0.6)
    for launch in range(1, 20_000):
        elapsed_s = launch * LAUNCH_S
        early = 0.9 * min(elapsed_s, SETTLED_S) / LAUNCH_S
        trace.add_reading(launch, launch - early, elapsed_s)
        if not trace.wants_reading():
            break
    assert trace.energy is not None
    assert trace.energy.joules == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(("joules", "ending"), [(1.3, Ending.BEATEN), (1.05, None), (0.9, None)])
def test_a_config_that_cannot_win_is_measured_no_further(joules: float, ending: Ending | None) -> None:
    """A few steps decide it; one that is within the margin goes on."""
    incumbent = replies.CostRange(1.0, 0.99, 1.01)
    trace = run(EnergyTrace(5.0, incumbent=incumbent), joules, step_s=0.1, until_s=0.6)
    assert trace.ending is ending


def test_configs_race_by_the_objectives_cost_of_their_energy() -> None:
    """More joules may be better, or cost nothing at all."""
    incumbent = replies.CostRange(1.0, 0.99, 1.01)
    best = run(EnergyTrace(5.0, incumbent=incumbent, cost=lambda joules: 1 / joules), 2.0, step_s=0.1, until_s=0.6)
    worst = run(EnergyTrace(5.0, incumbent=incumbent, cost=lambda joules: 1 / joules), 0.5, step_s=0.1, until_s=0.6)
    assert (best.ending, worst.ending) == (None, Ending.BEATEN)


def test_the_energy_of_restoring_is_subtracted() -> None:
    """The energy of restoring its tensors does not count."""
    trace = run(EnergyTrace(0.6, restoring_j=0.2), 0.5, step_s=0.02)
    assert trace.energy is not None
    assert trace.energy.joules == pytest.approx(0.3, rel=0.02)


def test_a_counter_that_does_not_move_is_an_error() -> None:
    """Nothing waits for it without end."""
    with pytest.raises(CounterStopped, match="did not move in"):
        run(EnergyTrace(0.6), 0.0, step_s=0.1)
