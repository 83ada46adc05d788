"""The anchor: when its bits are known, whose bits must be found out, and what makes it unusable."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.model import Outcome
from ktuned.protocol import Trial
from ktuned.tuning.judgements import Anchor
from tests.trials import make_detail, make_result, make_trial

CONFIG = {"K": 1}
BITS = ("a", "b")


def make_ended_trial(
    outcome: Outcome = Outcome.MEASURED, config: Any = CONFIG, message: str = "", **detail: Any
) -> Trial:
    return make_trial(1, config, outcome, message=message, detail=make_detail(**detail))


def test_bits_are_compared_with_those_of_the_anchors_measurement() -> None:
    """The store compares a config that was measured before the anchor."""
    anchor = Anchor(CONFIG, 2)
    measurement = make_result(Outcome.MEASURED, bits=BITS)
    assert anchor.judge_bits({"K": 2}, measurement).detail.numerics.same_bits is None
    assert anchor.judge_bits(CONFIG, measurement).detail.numerics.same_bits is True
    assert anchor.request.anchor == BITS
    assert anchor.judge_bits({"K": 2}, measurement).detail.numerics.same_bits is True
    assert (
        anchor.judge_bits({"K": 2}, measurement.add_facts("numerics", bits=("a", "x"))).detail.numerics.same_bits
        is False
    )
    assert (
        anchor.judge_bits({"K": 2}, measurement.add_facts("numerics", nondeterministic=True)).detail.numerics.same_bits
        is False
    )
    assert anchor.judge_bits({"K": 2}, make_result(Outcome.HUNG)).detail.numerics.same_bits is None


@pytest.mark.parametrize(
    ("trial", "fault"),
    [
        (
            make_ended_trial(Outcome.COMPILE_ERROR, message="no such file\nmore"),
            "the anchor K=1 failed: compile_error: no such file",
        ),
        (make_ended_trial(bits=("a",), nondeterministic=True), "the anchor K=1 is nondeterministic: "),
        (make_ended_trial(), "the anchor K=1 leaves no outputs whose bits could be compared"),
        (make_ended_trial(Outcome.CONTENDED), ""),
        (make_ended_trial(Outcome.HUNG, {"K": 2}), ""),
        (make_ended_trial(bits=("a", "b")), ""),
    ],
)
def test_an_anchor_that_fails_or_is_nondeterministic_says_so_in_one_line(trial: Trial, fault: str) -> None:
    """A disturbed trial, or another config's, is no fault."""
    anchor = Anchor(CONFIG, 2)
    anchor.record_trial_end(trial)
    assert anchor.fault.startswith(fault)
    assert bool(anchor.fault) == bool(fault)
    assert "\n" not in anchor.fault


@pytest.mark.parametrize(
    ("trial", "lacks_bits"),
    [
        (make_ended_trial(config={"K": 2}), True),
        (make_ended_trial(config={"K": 2}, bits=("a",)), False),
        (make_ended_trial(config={"K": 2}, bits=("x",)), False),
        (make_ended_trial(config={"K": 2}, bits=("a", "x")), False),
        (make_ended_trial(config={"K": 2}, nondeterministic=True), False),
        (make_ended_trial(bits=("a",)), True),
    ],
)
def test_a_config_lacks_bits_until_it_was_launched_for_them(trial: Trial, lacks_bits: bool) -> None:
    """The anchor needs its bits on all inputs; other configs wait until they may be finalists."""
    anchor = Anchor(CONFIG, 2)
    anchor.record_trial_end(make_ended_trial(bits=BITS))
    assert anchor.lacks_bits(trial) is lacks_bits


@pytest.mark.parametrize(
    ("bits", "may_have", "is_sure"),
    [
        ([], False, False),
        (["a"], True, False),
        (["x"], False, False),
        (["a", "b"], True, True),
        (["a", "x"], False, True),
    ],
)
def test_a_config_may_equal_the_anchor_until_an_input_shows_other_bits(
    bits: list[str], may_have: bool, is_sure: bool
) -> None:
    """It is sure once all inputs were launched; a nondeterministic config equals nobody."""
    anchor = Anchor(CONFIG, 2)
    anchor.record_trial_end(make_ended_trial(bits=BITS))
    trial = make_ended_trial(config={"K": 2}, bits=bits)
    assert (anchor.may_equal_anchor(trial), anchor.has_all_bits(trial)) == (may_have, is_sure)
    assert not anchor.may_equal_anchor(make_ended_trial(config={"K": 2}, bits=bits, nondeterministic=True))
