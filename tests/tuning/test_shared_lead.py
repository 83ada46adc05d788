"""The lead of a job for which others share a winner, without IO."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from ktuned.model.objective import LATENCY, maximize, minimize
from ktuned.model.values import Outcome
from ktuned.sharing.decision import Candidate
from ktuned.tuning.shared_lead import SharedLead
from tests.trials import make_trial

CONFIG, SERVED, DEFAULT = {"BM": 1}, {"BM": 2}, {"BM": 3}
SHARED = Candidate(CONFIG, 100.0)

TRIAL = make_trial(1, CONFIG, latency_us=100.0)


def lead(outcome: Outcome = Outcome.MEASURED, latency_us: float | None = 100.0, **fields: Any) -> SharedLead:
    """Return a lead whose shared config has an outcome."""
    made = SharedLead(SHARED, [SERVED, DEFAULT], **{"objective": LATENCY, "is_decisive": True, **fields})
    made.record_trial(replace(TRIAL, config=SERVED, latency_us=1.0))
    assert not made.ends_job
    made.record_trial(replace(TRIAL, outcome=outcome, latency_us=latency_us))
    return made


def test_the_shared_config_comes_first_and_once() -> None:
    """Then those that are served; without a candidate there is no lead."""
    assert SharedLead(SHARED, [SERVED, CONFIG, DEFAULT, SERVED], objective=LATENCY).configs == (CONFIG, SERVED, DEFAULT)
    empty = SharedLead(None, [SERVED], objective=LATENCY, is_decisive=True)
    empty.record_trial(TRIAL)
    assert (empty.configs, empty.ends_job, empty.describe_lead()) == ((), False, "")


@pytest.mark.parametrize(("latency_us", "ends"), [(50.0, False), (91.0, True), (110.0, True), (111.0, False)])
def test_a_config_that_holds_ends_the_job(latency_us: float, ends: bool) -> None:
    """Within a tenth of the shared figure; the words have both figures in either case."""
    found = lead(latency_us=latency_us)
    assert found.ends_job is ends
    assert f"{latency_us:.4g} µs" in found.describe_lead()
    assert ("nothing else was searched" in found.describe_lead()) is ends
    assert ("the search went on" in found.describe_lead()) is not ends


@pytest.mark.parametrize("outcome", [one for one in Outcome if one is not Outcome.MEASURED])
def test_a_config_that_is_not_measured_ends_no_job(outcome: Outcome) -> None:
    """Whatever became of it, and whatever its first samples were."""
    found = lead(outcome, 100.0)
    assert not found.ends_job
    assert f"ended as {outcome} here" in found.describe_lead()


def test_a_job_with_a_winner_searches_although_the_shared_config_holds() -> None:
    """Where there is a winner of this context already; that its config holds is no news then."""
    found = lead(is_decisive=False)
    assert (found.ends_job, found.describe_lead()) == (False, "")


def test_figures_are_those_of_the_objective() -> None:
    """The energy decides where it is asked for; of a rate the inverse costs."""
    found = SharedLead(msgspec.structs.replace(SHARED, cost=0.5), objective=minimize("energy"), is_decisive=True)
    found.record_trial(replace(TRIAL, metrics={"energy": 0.54}))
    assert found.ends_job
    assert "0.54 energy, 0.5 energy where it was found" in found.describe_lead()
    rate = SharedLead(msgspec.structs.replace(SHARED, cost=0.1), objective=maximize("rate"), is_decisive=True)
    rate.record_trial(replace(TRIAL, metrics={"rate": 5.0}))
    assert not rate.ends_job
    assert "5 rate here, 10 rate where it was found" in rate.describe_lead()
    lacking = SharedLead(SHARED, objective=minimize("energy"), is_decisive=True)
    lacking.record_trial(TRIAL)
    assert not lacking.ends_job
