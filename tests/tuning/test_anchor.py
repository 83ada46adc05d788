"""The anchor: when its bits are known, whose have to be found out, and why it can be none."""

from __future__ import annotations

from typing import Any

import pytest

from ktuned.model import Outcome, TrialDetail
from ktuned.protocol import Trial
from ktuned.tuning.judgements import Anchor
from tests.trials import make_result, make_trial

CONFIG = {"K": 1}
BITS = ("a", "b")


def _ended(outcome: Outcome = Outcome.MEASURED, config: Any = CONFIG, message: str = "", **detail: Any) -> Trial:
    return make_trial(1, config, outcome, message=message, detail=TrialDetail(**detail))


def test_bits_are_compared_with_those_of_the_anchors_measurement() -> None:
    """One that was measured before is compared by the store."""
    anchor = Anchor(CONFIG, 2)
    other = make_result(Outcome.MEASURED, bits=BITS)
    assert anchor.judge_bits({"K": 2}, other).detail.same_bits is None
    assert anchor.judge_bits(CONFIG, other).detail.same_bits is True
    assert anchor.request.anchor == BITS
    assert anchor.judge_bits({"K": 2}, other).detail.same_bits is True
    assert anchor.judge_bits({"K": 2}, other.add_details(bits=("a", "x"))).detail.same_bits is False
    assert anchor.judge_bits({"K": 2}, other.add_details(nondeterministic=True)).detail.same_bits is False
    assert anchor.judge_bits({"K": 2}, make_result(Outcome.HUNG)).detail.same_bits is None


@pytest.mark.parametrize(
    ("ended", "fault"),
    [
        (
            _ended(Outcome.COMPILE_ERROR, message="no such file\nmore"),
            "the anchor K=1 failed: compile_error: no such file",
        ),
        (_ended(bits=("a",), nondeterministic=True), "the anchor K=1 is nondeterministic: "),
        (_ended(), "the anchor K=1 leaves no outputs whose bits could be compared"),
        (_ended(Outcome.CONTENDED), ""),
        (_ended(Outcome.HUNG, {"K": 2}), ""),
        (_ended(bits=("a", "b")), ""),
    ],
)
def test_an_anchor_that_fails_or_is_nondeterministic_says_so_in_one_line(ended: Trial, fault: str) -> None:
    """What says nothing of the config, or is another's, is no fault."""
    anchor = Anchor(CONFIG, 2)
    anchor.record_trial_end(ended)
    assert anchor.fault.startswith(fault)
    assert bool(anchor.fault) == bool(fault)
    assert "\n" not in anchor.fault


@pytest.mark.parametrize(
    ("known", "lacks"),
    [
        (_ended(config={"K": 2}), True),
        (_ended(config={"K": 2}, bits=("a",)), False),
        (_ended(config={"K": 2}, bits=("x",)), False),
        (_ended(config={"K": 2}, bits=("a", "x")), False),
        (_ended(config={"K": 2}, nondeterministic=True), False),
        (_ended(bits=("a",)), True),
    ],
)
def test_a_config_lacks_bits_until_it_was_launched_for_them(known: Trial, lacks: bool) -> None:
    """And the anchor where it was launched on fewer inputs; others wait until they may be finalists."""
    anchor = Anchor(CONFIG, 2)
    anchor.record_trial_end(_ended(bits=BITS))
    assert anchor.lacks_bits(known) is lacks


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
    """It is sure once it was launched on all inputs; one that differs from itself has nobody's."""
    anchor = Anchor(CONFIG, 2)
    anchor.record_trial_end(_ended(bits=BITS))
    known = _ended(config={"K": 2}, bits=bits)
    assert (anchor.may_equal_anchor(known), anchor.has_all_bits(known)) == (may_have, is_sure)
    assert not anchor.may_equal_anchor(_ended(config={"K": 2}, bits=bits, nondeterministic=True))
