from __future__ import annotations

from collections.abc import Sequence

import pytest

from ktuned.model.keys import DeviceModel, KernelName
from ktuned.model.plan import Plan
from ktuned.protocol.jobs import Job, JobState, Priority
from ktuned.scheduling.idle_policy import BUSY_READINGS, POLICIES, REST_READINGS, IdlePolicy, Reading

JOB = Job(1, KernelName("p:k"), {}, DeviceModel("x"), JobState.QUEUED, Priority.SAVED, "saved", Plan(), created=0.0)
CALM = Reading(others=0.01, pressure=0.0)
BUSY = Reading(others=0.6, pressure=0.4)


def apply_readings(*readings: Reading, policy: str = "idle") -> IdlePolicy:
    """Return manners that took these readings."""
    manners = IdlePolicy(policy)
    for reading in readings:
        manners.take_reading(reading)
    return manners


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("level", list(Priority))
@pytest.mark.parametrize("is_busy", [False, True])
def test_each_policy_refuses_its_levels_on_a_busy_machine(policy: str, level: int, is_busy: bool) -> None:
    """``always`` refuses nothing, ``idle`` what no one waits for when it is busy, ``manual`` what no one asked for."""
    manners = apply_readings(*([BUSY] * BUSY_READINGS if is_busy else [CALM]), policy=policy)
    refused = bool(manners.refuse_job(JOB, level))
    if policy == "always" or level >= Priority.WAITED_FOR:
        assert not refused
    elif policy == "idle":
        assert refused is is_busy
    else:
        assert refused is (level < Priority.REQUESTED)


@pytest.mark.parametrize(
    ("readings", "reason"),
    [
        ([], ""),
        ([BUSY] * (BUSY_READINGS - 1), ""),
        ([BUSY] * BUSY_READINGS, "the machine is busy: other programs use 60% of its CPUs"),
        ([BUSY] * (BUSY_READINGS - 1) + [CALM] + [BUSY] * (BUSY_READINGS - 1), ""),
        # Our own compiles press, but others do next to nothing.
        ([Reading(others=0.02, pressure=0.9)] * 9, ""),
        # Others work, and there is room for all.
        ([Reading(others=0.6, pressure=0.0)] * 9, ""),
        # Without a word on pressure, others must take half of the machine.
        ([Reading(others=0.4)] * 9, ""),
        ([Reading(others=0.6)] * 9, "the machine is busy: other programs use 60% of its CPUs"),
        ([Reading(on_battery=True, pressure=0.0)], "the machine runs on battery"),
        ([Reading(pressure=0.0, gpu_users={"cuda:0": 0, "cuda:1": 2})] * BUSY_READINGS, "other programs use cuda:1"),
    ],
)
def test_only_lasting_load_of_others_is_a_reason_to_rest(readings: Sequence[Reading], reason: str) -> None:
    """Only what others do counts, and only when it lasts."""
    assert apply_readings(*readings).reason == reason


def test_rest_must_last_and_pressure_says_nothing_then() -> None:
    """While tuning rests nothing presses: it begins again only when the others have stopped for a while."""
    manners = apply_readings(*[BUSY] * BUSY_READINGS)
    for _ in range(20):
        manners.take_reading(Reading(others=0.6, pressure=0.0))
    assert manners.reason
    for _ in range(REST_READINGS - 1):
        manners.take_reading(CALM)
    manners.take_reading(Reading(others=0.2, pressure=0.0))
    for _ in range(REST_READINGS - 1):
        manners.take_reading(CALM)
    assert manners.reason
    manners.take_reading(CALM)
    assert manners.reason == ""


def test_forgotten_readings_decide_nothing() -> None:
    """After a time in which no one looked, the machine counts as free until it is seen to be used."""
    manners = apply_readings(*[BUSY] * BUSY_READINGS)
    manners.forget_readings()
    assert manners.reason == ""


def test_another_policy_holds_at_once() -> None:
    """What is refused follows the policy as it is now."""
    manners = apply_readings(*[BUSY] * BUSY_READINGS)
    assert manners.refuse_job(JOB, Priority.SAVED)
    manners.policy = "always"
    assert (manners.refuse_job(JOB, Priority.SAVED), manners.reason, manners.needs_readings) == ("", "", False)
