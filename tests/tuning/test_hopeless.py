"""When a job gives up: pure rules first, then whole jobs of the fake backend."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic

import pytest

from ktuned.model.objective import LATENCY
from ktuned.model.plan import Plan
from ktuned.model.values import Config, Outcome
from ktuned.tuning.judgements import ENOUGH, PROBES, Hopelessness, find_symptom
from tests.daemon_parts import Parts, make_kernel_text, make_winner_key

MISSING = "it.cu:12:9: error: identifier 'UNROL' is undefined"


def _configs(count: int) -> list[Config]:
    return [{"tile": 2**number, "unroll": 1 + number % 2} for number in range(count)]


def _told(configs: Iterable[Config], outcome: Outcome, message: str) -> Hopelessness:
    found = Hopelessness()
    for config in configs:
        found.record_proposed([config])
        found.record_outcome(config, outcome, message, "first_launch")
    return found


@pytest.mark.parametrize("outcome", list(ENOUGH))
def test_enough_equal_failures_end_a_job_once_probes_have_failed(outcome: Outcome) -> None:
    """Probes are asked for at the last failure that is needed and not before, and then the job is hopeless."""
    almost = _told(_configs(ENOUGH[outcome] - 1), outcome, MISSING)
    assert not almost.wants_probes
    found = _told(_configs(ENOUGH[outcome]), outcome, MISSING)
    assert found.wants_probes
    assert not found.reason
    found.record_proposed(_configs(PROBES), are_probes=True)
    assert not found.wants_probes
    assert found.reason.startswith(f"stopped: {ENOUGH[outcome]} configs failed alike")
    assert MISSING in found.reason
    assert found.is_proven


@pytest.mark.parametrize("is_exhausted", [False, True])
def test_a_small_budget_proves_nothing_of_the_rest_of_the_space(is_exhausted: bool) -> None:
    """The job ends by its message, and another one may try what this did not."""
    found = _told(_configs(8), Outcome.COMPILE_ERROR, MISSING)
    found.record_last_proposed(is_exhausted=is_exhausted)
    assert found.reason
    assert found.is_proven is is_exhausted


def test_failures_that_share_a_value_do_not_end_a_job() -> None:
    """Where probes show that a knob has other values, these have to fail as well."""
    found = _told([{"tile": n, "mma": True} for n in range(20)], Outcome.COMPILE_ERROR, MISSING)
    found.record_proposed([{"tile": 3, "mma": False}], are_probes=True)
    assert not found.reason
    found.record_outcome({"tile": 3, "mma": False}, Outcome.COMPILE_ERROR, MISSING)
    assert found.reason


@pytest.mark.parametrize("outcome", [Outcome.MEASURED, Outcome.SLOWER])
def test_one_config_that_works_ends_the_suspicion(outcome: Outcome) -> None:
    """Whatever fails after or before it."""
    found = _told(_configs(3), Outcome.HUNG, "")
    found.record_outcome({"tile": 1, "unroll": 1}, outcome, "")
    for config in _configs(50):
        found.record_outcome(config, Outcome.HUNG, "", "first_launch")
    assert not found.wants_probes
    assert not found.reason


def test_different_failures_do_not_add_up() -> None:
    """Seven errors at one line and seven at another are not fourteen alike."""
    found = _told(_configs(7), Outcome.COMPILE_ERROR, MISSING)
    for config in _configs(7):
        found.record_outcome(config, Outcome.COMPILE_ERROR, "it.cu:13:1: error: expected a ';'")
    assert not found.wants_probes


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (MISSING, "it.cu:12:30: error: identifier 'UNROL' is undefined", True),
        (MISSING, "it.cu:14:9: error: identifier 'UNROL' is undefined", False),
        (MISSING, "it.cu:12:9: error: identifier 'TILE' is undefined", False),
        (f"1 error\n{MISSING}", f"2 errors\n{MISSING}", False),
    ],
)
def test_compile_errors_are_equal_by_place_and_text(first: str, second: str, is_same: bool) -> None:
    """Not by the column, which a macro's length moves."""
    symptoms = {find_symptom(Outcome.COMPILE_ERROR, message, None) for message in (first, second)}
    assert (len(symptoms) == 1) is is_same


def test_mismatches_are_equal_apart_from_their_numbers() -> None:
    """An error of 3.5 in 12 elements is that of 4.25 in 16."""
    one, other = (f"output y: {n} of {m} elements differ, by {x}" for n, m, x in ((12, 64, 3.5), (16, 128, 4.25)))
    assert find_symptom(Outcome.MISMATCH, one, None) == find_symptom(Outcome.MISMATCH, other, None)


@pytest.mark.anyio
class TestJobs:
    """Whole jobs: what ends them, and when."""

    @staticmethod
    async def tune(parts: Parts, **plan: object) -> dict[str, object]:
        """Run one job to its end."""
        full = Plan(**{"preset": "fast", "strategy": "exhaustive", **plan})  # type: ignore[arg-type]
        await parts.jobs.submit_job(make_winner_key({"n": 64}), {"n": 64}, priority=100, reason="test", plan=full)
        async with parts.run_jobs():
            (ended,) = await parts.recorder.wait_for_ended_jobs()
        return ended

    async def test_a_job_ends_after_a_few_of_a_thousand_failing_compiles(self, parts: Parts) -> None:
        """The job fails with the one message; what is queued has no outcome."""
        await parts.inspect_file(
            make_kernel_text(configs="[dict(us=float(us), does='compile_error') for us in range(1, 1001)]")
        )
        ended = await self.tune(parts)
        assert ended["state"] == "failed"
        assert "fake.c:1: error: no" in str(ended["message"])
        assert "failed alike" in str(ended["message"])
        outcomes = [trial.outcome for trial in parts.store.list_trials(limit=2000)]
        assert 8 <= outcomes.count(Outcome.COMPILE_ERROR) <= 200
        # A lookup does not ask for it again, though the job had another plan than the kernel's.
        kernel = parts.catalog.resolve_kernel("it")
        device = parts.machine.find_device(parts.environment, "fake", None)
        context = parts.machine.build_context(kernel, parts.environment, {"n": 64}, device)
        assert parts.daemon.states.find_state(kernel).failed_jobs == {(context, LATENCY): ended["message"]}

    async def test_a_bad_value_of_a_slow_knob_does_not_end_the_job(self, parts: Parts) -> None:
        """Neighbours that all fail share a value; a draw from the whole space finds the configs that work."""
        configs = "[dict(us=50.0 + n, does=does, tag='x') for does in ('compile_error', 'work') for n in range(300)]"
        await parts.inspect_file(make_kernel_text(configs=configs))
        ended = await self.tune(parts, trials=400)
        assert ended["state"] == "done"

    async def test_a_job_ends_at_its_time_limit(self, parts: Parts) -> None:
        """What is queued when it passes is dropped, however many configs are compiled and wait."""
        await parts.inspect_file(
            make_kernel_text(configs="[dict(us=200_000.0 + us, does='work') for us in range(100)]")
        )
        began = monotonic()
        ended = await self.tune(parts, time_limit_s=2.0)
        assert ended["state"] == "done"
        assert int(str(ended["done"])) < 10
        # Two seconds, what a lane's batch and the final round take, and a busy machine.
        assert monotonic() - began < 20

    async def test_a_launch_that_never_ends_does_not_outlast_the_time_limit(self, parts: Parts) -> None:
        """It is stopped soon after, though its own deadline is a minute."""
        text = make_kernel_text(
            configs="[dict(us=50.0, does='hang')]", deadlines="dict(first_launch=60.0, floor=60.0, compile=60.0)"
        )
        await parts.inspect_file(text)
        began = monotonic()
        ended = await self.tune(parts, time_limit_s=1.0)
        assert (ended["state"], ended["message"]) == ("failed", "no config was measured within 1 s")
        assert monotonic() - began < 20
