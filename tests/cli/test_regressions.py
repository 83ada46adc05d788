from __future__ import annotations

import pytest

from ktuned.cli.commands.regressions import compare_answers, find_previous_best, make_answer_case
from ktuned.model import LATENCY, Objective
from tests.cli.samples import DEVICE, make_answer, make_listed_trial


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (100.0, ("fresh", 100.0), "same"),
        (100.0, ("fresh", 103.0), "same"),
        (100.0, ("fresh", 103.1), "slower"),
        (100.0, ("fresh", 97.5), "same"),
        (100.0, ("fresh", 97.0), "faster"),
        (100.0, ("stale", 100.0), "failed"),
        # A neighbour's figure is not this problem's.
        (100.0, ("near", 50.0), "failed"),
        (None, ("fresh", 50.0), "new"),
        (None, ("default", None), "failed"),
    ],
)
def test_a_latency_within_the_tolerance_is_the_same(before: float | None, now: tuple[str, float], verdict: str) -> None:
    """A result without a figure for the present files is a failure."""
    after = make_answer(status=now[0], latency_us=now[1])
    (comparison,) = compare_answers({make_answer_case(after): before}, [after], 0.03)
    assert comparison.verdict == verdict
    assert comparison.is_regression is (verdict in ("slower", "failed"))
    assert comparison.to_plain()["verdict"] == verdict


def test_cases_are_matched_by_kernel_and_problem() -> None:
    """The order of a problem's keys does not matter; a removed case is no regression."""
    before = {
        make_answer_case(make_answer(problem={"a": 1, "b": 2})): 10.0,
        make_answer_case(make_answer(problem={"a": 9})): 1.0,
    }
    after = [make_answer(problem={"b": 2, "a": 1}, latency_us=20.0), make_answer(kernel="p:other", latency_us=3.0)]
    comparisons = compare_answers(before, after, 0.5)
    assert [(entry.before, entry.now, entry.verdict) for entry in comparisons] == [
        (10.0, 20.0, "slower"),
        (None, 3.0, "new"),
    ]


def test_the_previous_best_is_from_the_newest_earlier_state() -> None:
    """Other devices and the present state are ignored."""
    trials = [
        make_listed_trial(1, digest="now", latency_us=1.0, updated=9.0),
        make_listed_trial(2, digest="last", latency_us=30.0, updated=8.0),
        make_listed_trial(3, digest="last", latency_us=20.0, updated=7.0),
        make_listed_trial(4, digest="older", latency_us=5.0, updated=6.0),
        make_listed_trial(5, digest="last", latency_us=2.0, updated=8.5, device="another"),
    ]
    assert find_previous_best(trials, "now", DEVICE, LATENCY) == 20.0
    assert find_previous_best(trials[:1], "now", DEVICE, LATENCY) is None


@pytest.mark.parametrize(
    ("objective", "before", "now", "verdict"),
    [
        ("min:energy", {"energy": 2.0}, {"energy": 1.0}, "faster"),
        ("min:energy", {"energy": 1.0}, {"energy": 1.5}, "slower"),
        ("max:tflops", {"tflops": 2.0}, {"tflops": 4.0}, "faster"),
        ("max:tflops", {"tflops": 4.0}, {"tflops": 2.0}, "slower"),
        ("max:tflops", {"tflops": 4.0}, {"tflops": 4.0}, "same"),
        ("min:bytes", {}, {"bytes": 4.0}, "new"),
        ("min:bytes", {"bytes": 4.0}, {}, "failed"),
    ],
)
def test_winners_of_other_objectives_are_compared_by_their_figures(
    objective: str, before: dict[str, float], now: dict[str, float], verdict: str
) -> None:
    """A winner by another objective is a case of its own, beside the winner by latency."""
    new = make_answer(latency_us=99.0, objective=objective, metrics=now)
    by_latency = make_answer(latency_us=12.5)
    earlier = {make_answer_case(new): next(iter(before.values()), None), make_answer_case(by_latency): 12.5}
    comparisons = compare_answers(earlier, [new, by_latency], 0.03)
    assert [entry.verdict for entry in comparisons] == [verdict, "same"]
    assert (comparisons[0].to_plain()["now"], comparisons[0].to_plain()["now_us"]) == (
        next(iter(now.values()), None),
        None,
    )
    assert comparisons[1].to_plain()["now_us"] == 12.5


def test_the_previous_best_by_another_objective() -> None:
    """Only trials with the figure count."""
    trials = [
        make_listed_trial(1, digest="a", updated=1.0, metrics={"tflops": 9.0}),
        make_listed_trial(2, digest="b", updated=2.0, metrics={"tflops": 3.0}),
        make_listed_trial(3, digest="b", updated=3.0, metrics={"tflops": 4.0}),
        make_listed_trial(4, digest="c", updated=4.0),
    ]
    assert find_previous_best(trials, "now", DEVICE, Objective("max:tflops")) == 4.0
    assert find_previous_best(trials[3:], "now", DEVICE, Objective("max:tflops")) is None
