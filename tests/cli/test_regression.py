from __future__ import annotations

import pytest

from ktuned.cli.regression import compare, previous_us
from tests.cli.samples import DEVICE, answer_map, trial_map


@pytest.mark.parametrize(
    ("before", "now", "verdict"),
    [
        (("stale", 100.0), ("fresh", 100.0), "same"),
        (("stale", 100.0), ("fresh", 103.0), "same"),
        (("stale", 100.0), ("fresh", 103.1), "slower"),
        (("fresh", 100.0), ("fresh", 97.5), "same"),
        (("fresh", 100.0), ("fresh", 97.0), "faster"),
        (("default", None), ("fresh", 50.0), "new"),
        # A neighbour's figure is not this problem's.
        (("near", 1.0), ("fresh", 50.0), "new"),
        (("stale", 100.0), ("stale", 100.0), "failed"),
        (("default", None), ("default", None), "failed"),
        (None, ("fresh", 50.0), "new"),
        (None, ("default", None), "failed"),
    ],
)
def test_verdicts(before: tuple[str, float] | None, now: tuple[str, float], verdict: str) -> None:
    """Within the tolerance is the same; without a figure for the files as they are, it failed."""
    answers = [] if before is None else [answer_map(status=before[0], latency_us=before[1])]
    (found,) = compare(answers, [answer_map(status=now[0], latency_us=now[1])], 0.03)
    assert found.verdict == verdict
    assert found.is_regression is (verdict in ("slower", "failed"))
    assert found.to_wire()["verdict"] == verdict


def test_cases_are_compared_by_kernel_and_problem() -> None:
    """The order of a problem's keys does not matter; what is gone is no regression."""
    before = [
        answer_map(problem={"a": 1, "b": 2}, latency_us=10.0),
        answer_map(problem={"a": 9}, latency_us=1.0),
    ]
    after = [answer_map(problem={"b": 2, "a": 1}, latency_us=20.0), answer_map(kernel="p:other", latency_us=3.0)]
    found = compare(before, after, 0.5)
    assert [(entry.before_us, entry.now_us, entry.verdict) for entry in found] == [
        (10.0, 20.0, "slower"),
        (None, 3.0, "new"),
    ]


def test_figure_of_the_state_before() -> None:
    """The newest earlier state of the kernel counts, with its best; other devices and the present state do not."""
    trials = [
        trial_map(1, digest="now", latency_us=1.0, updated=9.0),
        trial_map(2, digest="last", latency_us=30.0, updated=8.0),
        trial_map(3, digest="last", latency_us=20.0, updated=7.0),
        trial_map(4, digest="older", latency_us=5.0, updated=6.0),
        trial_map(5, digest="last", latency_us=2.0, updated=8.5, device="another"),
    ]
    assert previous_us(trials, "now", DEVICE) == 20.0
    assert previous_us(trials[:1], "now", DEVICE) is None
