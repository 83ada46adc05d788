"""When a job gives up: first the rules, then whole jobs of the fake backend."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

import pytest

from ktuned.model.objective import LATENCY
from ktuned.model.values import Config, Outcome
from ktuned.tuning.judgements import ENOUGH, PROBES, Hopelessness, find_symptom
from tests.daemon_parts import Parts, make_kernel_text
from tests.tuning.jobs import run_job

UNDEFINED_MESSAGE = "it.cu:12:9: error: identifier 'UNROL' is undefined"


def make_configs(count: int) -> list[Config]:
    return [{"tile": 2**number, "unroll": 1 + number % 2} for number in range(count)]


def record_failures(configs: Iterable[Config], outcome: Outcome, message: str) -> Hopelessness:
    hopelessness = Hopelessness()
    for config in configs:
        hopelessness.record_proposed([config])
        hopelessness.record_outcome(config, outcome, message, "first_launch")
    return hopelessness


@pytest.mark.parametrize("outcome", list(ENOUGH))
def test_enough_equal_failures_end_a_job_once_probes_have_failed(outcome: Outcome) -> None:
    """Probes are requested at the last necessary failure, not before; when they fail, the job is hopeless."""
    nearly_hopeless = record_failures(make_configs(ENOUGH[outcome] - 1), outcome, UNDEFINED_MESSAGE)
    assert not nearly_hopeless.wants_probes
    hopelessness = record_failures(make_configs(ENOUGH[outcome]), outcome, UNDEFINED_MESSAGE)
    assert hopelessness.wants_probes
    assert not hopelessness.reason
    hopelessness.record_proposed(make_configs(PROBES), are_probes=True)
    assert not hopelessness.wants_probes
    assert hopelessness.reason.startswith(f"stopped: {ENOUGH[outcome]} configs failed alike")
    assert UNDEFINED_MESSAGE in hopelessness.reason
    assert hopelessness.is_proven


@pytest.mark.parametrize("is_exhausted", [False, True])
def test_a_small_budget_proves_nothing_of_the_rest_of_the_space(is_exhausted: bool) -> None:
    """The job ends with the message, but another job may try the rest."""
    hopelessness = record_failures(make_configs(8), Outcome.COMPILE_ERROR, UNDEFINED_MESSAGE)
    hopelessness.record_last_proposed(is_exhausted=is_exhausted)
    assert hopelessness.reason
    assert hopelessness.is_proven is is_exhausted


def test_failures_that_share_a_value_do_not_end_a_job() -> None:
    """If probes show other values of a knob, these must fail, too."""
    hopelessness = record_failures(
        [{"tile": n, "mma": True} for n in range(20)], Outcome.COMPILE_ERROR, UNDEFINED_MESSAGE
    )
    hopelessness.record_proposed([{"tile": 3, "mma": False}], are_probes=True)
    assert not hopelessness.reason
    hopelessness.record_outcome({"tile": 3, "mma": False}, Outcome.COMPILE_ERROR, UNDEFINED_MESSAGE)
    assert hopelessness.reason


@pytest.mark.parametrize("outcome", [Outcome.MEASURED, Outcome.SLOWER])
def test_one_config_that_works_ends_the_suspicion(outcome: Outcome) -> None:
    """It does not matter what fails before or after it."""
    hopelessness = record_failures(make_configs(3), Outcome.HUNG, "")
    hopelessness.record_outcome({"tile": 1, "unroll": 1}, outcome, "")
    for config in make_configs(50):
        hopelessness.record_outcome(config, Outcome.HUNG, "", "first_launch")
    assert not hopelessness.wants_probes
    assert not hopelessness.reason


def test_different_failures_do_not_add_up() -> None:
    """Seven errors at one line and seven at another are not fourteen equal errors."""
    hopelessness = record_failures(make_configs(7), Outcome.COMPILE_ERROR, UNDEFINED_MESSAGE)
    for config in make_configs(7):
        hopelessness.record_outcome(config, Outcome.COMPILE_ERROR, "it.cu:13:1: error: expected a ';'")
    assert not hopelessness.wants_probes


@pytest.mark.parametrize(
    ("message", "other_message", "is_same"),
    [
        (UNDEFINED_MESSAGE, "it.cu:12:30: error: identifier 'UNROL' is undefined", True),
        (UNDEFINED_MESSAGE, "it.cu:14:9: error: identifier 'UNROL' is undefined", False),
        (UNDEFINED_MESSAGE, "it.cu:12:9: error: identifier 'TILE' is undefined", False),
        (f"1 error\n{UNDEFINED_MESSAGE}", f"2 errors\n{UNDEFINED_MESSAGE}", False),
    ],
)
def test_compile_errors_are_equal_by_place_and_text(message: str, other_message: str, is_same: bool) -> None:
    """The column does not count, because a macro's length changes it."""
    symptoms = {find_symptom(Outcome.COMPILE_ERROR, text, None) for text in (message, other_message)}
    assert (len(symptoms) == 1) is is_same


def test_mismatches_are_equal_apart_from_their_numbers() -> None:
    message, other_message = (
        f"output y: {n} of {m} elements differ, by {x}" for n, m, x in ((12, 64, 3.5), (16, 128, 4.25))
    )
    assert find_symptom(Outcome.MISMATCH, message, None) == find_symptom(Outcome.MISMATCH, other_message, None)


@pytest.mark.anyio
class TestJobs:
    """What ends whole jobs, and when."""

    async def test_a_job_ends_after_a_few_of_a_thousand_failing_compiles(self, parts: Parts) -> None:
        """The job fails with the common message; queued configs get no outcome."""
        await parts.inspect_file(
            make_kernel_text(configs="[dict(us=float(us), does='compile_error') for us in range(1, 1001)]")
        )
        ended = await run_job(parts)
        assert ended["state"] == "failed"
        assert "fake.c:1: error: no" in str(ended["message"])
        assert "failed alike" in str(ended["message"])
        outcomes = [trial.outcome for trial in parts.store.list_trials(limit=2000)]
        assert 8 <= outcomes.count(Outcome.COMPILE_ERROR) <= 200
        # A lookup does not request it again, although the job's plan was not the kernel's.
        kernel = parts.catalog.resolve_kernel("it")
        assert parts.daemon.states.find_state(kernel).failed_jobs == {
            (parts.build_context(), LATENCY): ended["message"]
        }

    async def test_a_bad_value_of_a_slow_knob_does_not_end_the_job(self, parts: Parts) -> None:
        """All neighbours share the bad value; a probe from the whole space finds configs that work."""
        configs = "[dict(us=50.0 + n, does=does, tag='x') for does in ('compile_error', 'work') for n in range(300)]"
        await parts.inspect_file(make_kernel_text(configs=configs))
        ended = await run_job(parts, trials=400)
        assert ended["state"] == "done"

    async def test_a_job_ends_at_its_time_limit(self, parts: Parts) -> None:
        """Queued configs are dropped, however many are compiled and wait."""
        await parts.inspect_file(
            make_kernel_text(configs="[dict(us=200_000.0 + us, does='work') for us in range(100)]")
        )
        start = monotonic()
        ended = await run_job(parts, time_limit_s=2.0)
        assert ended["state"] == "done"
        assert int(str(ended["done"])) < 10
        # Two seconds, a lane's batch, the final round, and slack for a busy machine.
        assert monotonic() - start < 20

    async def test_a_launch_that_never_ends_does_not_outlast_the_time_limit(self, parts: Parts) -> None:
        """It is stopped soon after the limit, although its own deadline is a minute."""
        text = make_kernel_text(
            configs="[dict(us=50.0, does='hang')]", deadlines="dict(first_launch=60.0, floor=60.0, compile=60.0)"
        )
        await parts.inspect_file(text)
        start = monotonic()
        ended = await run_job(parts, time_limit_s=1.0)
        assert (ended["state"], ended["message"]) == ("failed", "no config was measured within 1 s")
        assert monotonic() - start < 20
