"""Trials: a trial is a result with an identity."""

from __future__ import annotations

import msgspec
import pytest

from ktuned.model import NO_DETAIL, Objective, Outcome, TrialResult
from ktuned.protocol import ListedTrial
from tests.trials import make_detail, make_result, make_trial


def test_details_are_added_to_a_result() -> None:
    """A fact belongs to a stage; the original result is unchanged."""
    result = make_result(Outcome.MEASURED, latency_us=5.0, count=3)
    added = result.add_facts("profile", cores=2)
    assert (added.latency_us, added.detail) == (5.0, make_detail(cores=2, count=3))
    assert result.detail == make_detail(count=3)
    with pytest.raises(TypeError, match="colour"):
        result.add_facts("profile", colour="red")


def test_a_trial_is_its_result_with_an_identity() -> None:
    """Lists and events omit the detail."""
    trial = make_trial(7, {"B": 1}, latency_us=5.0, detail=make_detail(count=3), metrics={"x": 1.0})
    result = TrialResult(Outcome.MEASURED, 5.0, 0.0, detail=make_detail(count=3), metrics={"x": 1.0})
    assert trial.result == result
    short = trial.without_detail()
    assert short.detail == NO_DETAIL
    assert msgspec.to_builtins(trial)["detail"] == {"timing": {"count": 3}}


def test_the_interval_of_a_figure_is_relative_to_the_figure() -> None:
    """The doubt is unknown if one end is."""
    result = make_result(Outcome.MEASURED, latency_us=10.0, low_us=9.0, high_us=12.0)
    assert (result.interval(), result.doubt()) == ((0.9, 1.2), pytest.approx(0.15))
    assert make_result(Outcome.MEASURED, latency_us=10.0, low_us=9.0).doubt() is None


def test_a_listed_trial_has_the_protocols_names() -> None:
    """One of them, ``class``, is a keyword in Python."""
    sent = {
        **msgspec.to_builtins(make_trial(7).without_detail()),
        "class": "A",
        "winner": True,
        "objectives": ["min:energy"],
    }
    listed = msgspec.convert(sent, ListedTrial)
    assert (listed.bit_class, listed.winner, listed.objectives) == ("A", True, (Objective("min:energy"),))
    assert msgspec.to_builtins(listed)["class"] == "A"
