"""When something that failed may be tried again."""

from __future__ import annotations

import pytest

from ktuned.fleet.failures import FIRST_PAUSE_S, LAST_PAUSE_S, Health
from tests.clocks import SettableClock


@pytest.mark.parametrize("tolerated", [0, 3])
def test_tolerated_failures_cost_no_pause(tolerated: int) -> None:
    """Tolerated failures in a row are retried at once; the next failure is not."""
    health = Health(tolerated=tolerated, clock=SettableClock())
    for _ in range(tolerated):
        health.record_failure("no")
        assert (health.is_sick, health.pause_s) == (False, 0.0)
    health.record_failure("still no")
    assert (health.is_sick, health.pause_s, health.reason) == (True, FIRST_PAUSE_S, "still no")


def test_pauses_double_up_to_the_last() -> None:
    clock = SettableClock()
    health = Health(clock=clock)
    pauses = []
    for _ in range(12):
        health.record_failure("no")
        pauses.append(health.pause_s)
        clock.now += health.pause_s
        assert health.pause_s == 0.0
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(pauses) == pauses[-1] == LAST_PAUSE_S


def test_success_forgets_everything() -> None:
    """After a success, the next failure counts as the first."""
    health = Health(clock=SettableClock())
    for _ in range(5):
        health.record_failure("no")
    health.record_success()
    assert (health.is_sick, health.pause_s, health.failures, health.reason) == (False, 0.0, 0, "")
    health.record_failure("no")
    assert health.pause_s == FIRST_PAUSE_S
