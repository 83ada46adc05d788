"""A lane's share of a device beside an application: all sequences of uses and pauses, and simulated programs."""

from __future__ import annotations

import itertools

import pytest

from benchmarks.beside_simulated import PROGRAMS, Program, simulate
from ktuned.fleet.device_share import DUTY, LOOK_S, MOST_SAVED_S, DeviceShare
from tests.clocks import SettableClock

TAKEN_S = (0.0, 0.3, 1.5, 100.0)
"""A free use, a batch, more than can be saved, and a hung config."""

WAITED_S = (0.0, LOOK_S, 30.0)


def test_no_sequence_takes_more_than_the_share() -> None:
    """A lane that pauses as it is told takes at most its share, apart from the last use and what was saved before."""
    for uses in itertools.product(itertools.product(WAITED_S, TAKEN_S), repeat=4):
        clock = SettableClock()
        share = DeviceShare(clock)
        began, taken = clock.now, 0.0
        for waited_s, taken_s in uses:
            clock.now += waited_s
            clock.now += share.pause_s
            assert share.pause_s == pytest.approx(0.0, abs=1e-6)
            assert taken <= 2 * MOST_SAVED_S + DUTY * (clock.now - began) + 1e-6, uses
            share.record_use(taken_s)
            # The debt of a hung config is limited.
            taken += min(taken_s, 2 * MOST_SAVED_S)
            assert share.pause_s <= 2 * MOST_SAVED_S / DUTY
            clock.now += taken_s


def test_a_pause_ends_when_all_is_saved_again() -> None:
    """Not before: batches are taken at one go."""
    clock = SettableClock()
    share = DeviceShare(clock)
    share.record_use(MOST_SAVED_S)
    assert share.pause_s == pytest.approx(MOST_SAVED_S / DUTY)
    clock.now += 0.9 * MOST_SAVED_S / DUTY
    assert share.pause_s == pytest.approx(0.1 * MOST_SAVED_S / DUTY)
    clock.now += 0.1 * MOST_SAVED_S / DUTY + 1e-9
    assert share.pause_s == 0.0
    share.record_use(0.5 * MOST_SAVED_S)
    assert share.pause_s == 0.0, "half is left"


def test_a_device_that_an_application_leaves_is_free() -> None:
    """From the first use that finds it free, to the first that does not."""
    share = DeviceShare(SettableClock())
    share.record_use(2 * MOST_SAVED_S)
    assert share.pause_s > 0.0
    for _ in range(3):
        share.record_use(0.0)
        assert share.pause_s == 0.0
    share.record_use(0.001)
    assert share.pause_s > 0.0


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_twelve_keys_beside_a_program(program: Program) -> None:
    """They are tuned within two minutes, and the median step is within 1.05."""
    found = simulate(program)
    assert found["12 keys s"] < 120.0  # type: ignore[operator]
    assert (found["median step"] or 1.0) <= 1.05  # type: ignore[operator]
    assert (found["mean step"] or 1.0) <= 1.11  # type: ignore[operator]
