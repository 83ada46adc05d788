"""For how long an outcome stands: until more is granted of what the config may have failed for want of."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from ktuned.model import Outcome, Phase, Role, TrialResult
from ktuned.protocol import Trial
from ktuned.tuning.evidence import Grant, Grants, is_outcome_final
from tests.trials import make_detail
from tests.tuning.test_trial_machine import TWIN

GRANTS = Grants({Phase.COMPILE: 60.0, Phase.FIRST_LAUNCH: 5.0}, {Role.COMPILE: 1 << 30, Role.BENCH: 1 << 31})


def record_failure(
    outcome: Outcome, phase: Phase, message: str = "", *, grants: Grants = GRANTS, after_s: float | None = None
) -> Trial:
    """Return the trial of a config that failed with what ``grants`` gave it."""
    result = TrialResult(outcome, message=message, detail=make_detail(phase=phase, after_s=after_s))
    noted = grants.note_grants(result)
    return replace(TWIN, outcome=outcome, message=noted.message, detail=noted.detail)


@pytest.mark.parametrize(
    ("outcome", "is_final"),
    [
        (Outcome.HUNG, True),
        (Outcome.CRASHED, True),
        (Outcome.MEASURED, True),
        (Outcome.CONTENDED, False),
        (Outcome.CANCELLED, False),
        (Outcome.INTERRUPTED, False),
        (None, False),
    ],
)
def test_outcomes_that_say_something_about_a_config_are_final(outcome: Outcome | None, is_final: bool) -> None:
    assert is_outcome_final(replace(TWIN, outcome=outcome), GRANTS) is is_final


@pytest.mark.parametrize(
    ("outcome", "phase", "after_s"),
    [(Outcome.COMPILE_TIMEOUT, Phase.COMPILE, 60.0), (Outcome.HUNG, Phase.FIRST_LAUNCH, 0.5)],
)
def test_a_config_that_took_too_long_is_tried_again_with_a_longer_deadline(
    outcome: Outcome, phase: Phase, after_s: float
) -> None:
    """A deadline that was learned from the best config is shorter than the one that was granted: that is no reason."""
    known = record_failure(outcome, phase, after_s=after_s)
    assert is_outcome_final(known, GRANTS)
    longer = replace(GRANTS, deadlines={**GRANTS.deadlines, phase: GRANTS.deadlines[phase] + 1})
    assert not is_outcome_final(known, longer)


def test_a_compile_that_was_given_up_before_its_deadline_is_tried_again() -> None:
    """It was a straggler, and the next job may wait for it."""
    assert not is_outcome_final(record_failure(Outcome.COMPILE_TIMEOUT, Phase.COMPILE, after_s=3.0), GRANTS)


@pytest.mark.parametrize(
    ("phase", "role", "message"),
    [
        (Phase.COMPILE, Role.COMPILE, "out of memory: the worker used 1.0 GiB of the 1.0 GiB it may during compile"),
        (Phase.COMPILE, Role.COMPILE, "cc1plus: out of memory allocating 65536 bytes"),
        (Phase.TIMING, Role.BENCH, "out of memory: the worker's allocation failed during timing"),
    ],
)
def test_a_config_that_met_our_limit_of_memory_is_tried_again_with_a_higher_one(
    phase: Phase, role: Role, message: str
) -> None:
    known = record_failure(Outcome.CRASHED, phase, message)
    assert is_outcome_final(known, GRANTS)
    for other in (Role.COMPILE, Role.BENCH):
        raised = replace(GRANTS, memory_bytes={**GRANTS.memory_bytes, other: GRANTS.memory_bytes[other] + 1})
        assert is_outcome_final(known, raised) is (other is not role)


def test_a_config_that_failed_on_a_mount_with_noexec_is_tried_again_when_it_allows_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the directory. A failure of the config's own on such a mount is only repeated once more."""
    grants = replace(GRANTS, artifacts=str(tmp_path))
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    known = record_failure(Outcome.LAUNCH_ERROR, Phase.LOAD, "failed to map segment", grants=grants)
    assert known.message == f"failed to map segment; {tmp_path} is on a mount with noexec"
    assert known.detail.failure.granted == {Grant.EXECUTION: 0.0}
    assert is_outcome_final(known, grants)
    monkeypatch.undo()
    assert not is_outcome_final(known, grants)


def test_a_failure_of_the_configs_own_has_no_condition() -> None:
    known = record_failure(Outcome.MISMATCH, Phase.CHECK, "64 of 64 elements differ")
    assert known.detail.failure.granted == {}
