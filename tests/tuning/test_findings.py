"""Findings of a whole job: knobs without effect, inputs that are overwritten."""

from __future__ import annotations

from itertools import product

import pytest

from ktuned.model.values import Config, Scalar
from ktuned.tuning.findings import COMPARED, Findings, without_effect


def contents(configs: list[Config], *decisive: str) -> dict[tuple[tuple[str, Scalar], ...], str]:
    """Return configs with a content that only some of their knobs decide."""
    return {tuple(sorted(config.items())): str([config[name] for name in decisive]) for config in configs}


GRID: list[Config] = [dict(BM=bm, STAGES=stages, SPARE=spare) for bm, stages, spare in product((1, 2), (3, 4), (5, 6))]


@pytest.mark.parametrize(
    ("configs", "decisive", "found"),
    [
        (GRID, ("BM", "STAGES"), {"SPARE": 8}),
        (GRID, ("BM",), {"STAGES": 8, "SPARE": 8}),
        (GRID, ("BM", "STAGES", "SPARE"), {}),
        ([dict(SPARE=1), dict(SPARE=2)], (), {"SPARE": 2}),
        ([dict(SPARE=1)], (), {}),
        # In the company of one BM a knob may well have no effect.
        ([dict(BM=1, SPARE=1), dict(BM=1, SPARE=2), dict(BM=2, SPARE=1)], ("BM",), {}),
        # Of configs that no two differ in one knob alone nothing is known.
        ([dict(BM=1, SPARE=1), dict(BM=2, SPARE=2)], (), {}),
    ],
)
def test_knobs_without_effect(configs: list[Config], decisive: tuple[str, ...], found: dict[str, int]) -> None:
    """A knob has none where all configs that differ in it alone have one content."""
    assert without_effect(contents(configs, *decisive)) == found


def test_a_knob_that_has_an_effect_once_has_one() -> None:
    """One config of many is enough."""
    made = contents(GRID, "BM", "STAGES")
    made[next(iter(made))] = "another"
    assert without_effect(made) == {}


def test_findings_are_sentences() -> None:
    """Configs without a content, as failed ones, are not compared; each overwritten input is counted."""
    findings = Findings()
    for number, config in enumerate(GRID):
        findings.note(config, {"content": str(config["BM"]), "count": 9, "overwritten": ["x"] if number < 3 else None})
    findings.note(dict(BM=9, STAGES=9, SPARE=9), {"phase": "compile"})
    spare, stages, x = findings.lines()
    assert (spare.split()[0], stages.split()[0]) == ("SPARE", "STAGES")
    assert "(8 compared)" in spare
    assert x.startswith("the kernel overwrites its input x, which is neither an output nor in `setup`")
    assert x.endswith("(3 of 8 configs)")


def test_metrics_that_fail_are_said_once() -> None:
    """By their first fault, with the number of configs that have none."""
    findings = Findings()
    for number in range(3):
        findings.note(dict(N=number), {"count": 9, "metrics_fault": f"the metric gf(p, t): fault {number}"})
    assert findings.lines() == ["the metric gf(p, t): fault 0 (3 of 3 configs have no metrics)"]


def test_a_long_job_is_compared_in_part() -> None:
    """The comparison is bounded, however many configs there were."""
    findings = Findings()
    for number in range(COMPARED + 10):
        findings.note(dict(N=number), {"content": "same"})
    (line,) = findings.lines()
    assert f"({COMPARED} compared)" in line
