from __future__ import annotations

import itertools

import pytest

from ktuned.model import (
    Judgement,
    JudgeVerdict,
    Outcome,
    TrialDetail,
    TrialResult,
    compute_factor,
    find_worst,
    list_distinct,
    read_judgement,
)

BY_OUTCOME = {
    None: "refused",
    Outcome.MEASURED: "refused",
    Outcome.SLOWER: "refused",
    Outcome.COMPILE_ERROR: "compile_error",
    Outcome.COMPILE_TIMEOUT: "compile_error",
    Outcome.UNSUPPORTED: "refused",
    Outcome.MISMATCH: "wrong",
    Outcome.LAUNCH_ERROR: "crashed",
    Outcome.CRASHED: "crashed",
    Outcome.HUNG: "hung",
    Outcome.CONTENDED: "refused",
    Outcome.CANCELLED: "refused",
    Outcome.INTERRUPTED: "refused",
}


@pytest.mark.parametrize("outcome", [None, *Outcome])
def test_without_a_referee_the_outcome_is_the_verdict(outcome: Outcome | None) -> None:
    """Only a referee finds a config right, however its trial ended."""
    judged = read_judgement(TrialResult(outcome, 3.0, message="first line\nsecond"))
    assert (judged.verdict, judged.reason) == (BY_OUTCOME[outcome], "first line")
    assert read_judgement(TrialResult(outcome)).reason


@pytest.mark.parametrize("verdict", JudgeVerdict)
def test_the_referees_verdict_counts(verdict: JudgeVerdict) -> None:
    judgement = Judgement(verdict, "why", ("this",), ("that",))
    assert read_judgement(TrialResult(Outcome.MISMATCH, detail=TrialDetail(judged=judgement))) == judgement


def test_the_worst_problem_decides_in_any_order() -> None:
    judgements = [Judgement(verdict, verdict) for verdict in JudgeVerdict]
    for one, other in itertools.permutations(judgements, 2):
        worse = max(one, other, key=judgements.index)
        assert find_worst([one, other]) == worse
    assert find_worst(judgements[:1]).verdict == "right"
    assert find_worst([]).verdict == "refused"


def test_factors_need_both_latencies() -> None:
    assert compute_factor(30.0, 10.0) == 3.0
    assert compute_factor(None, 10.0) is compute_factor(30.0, None) is None


def test_sentences_are_united() -> None:
    assert list_distinct([("a", "b"), ("b", "c"), ()]) == ("a", "b", "c")
