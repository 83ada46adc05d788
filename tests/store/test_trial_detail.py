"""A trial's detail: each fact survives the worker's pipe, the store and the wire."""

from __future__ import annotations

import json

import msgpack
import msgspec
import pytest

from ktuned.model import Outcome, TrialDetail, TrialResult
from ktuned.store.rows import decode_detail, encode_detail
from tests.trials import make_detail

FULL = make_detail(
    phase="timing",
    signal="SIGSEGV",
    after_s=2.0,
    granted={"deadline_s": 2.0},
    tries=2,
    deaths=1,
    story=("lane_taken", "timed"),
    stdout="out",
    stderr="err",
    count=20,
    samples=(1.0, 2.0),
    low_us=1.0,
    high_us=2.0,
    beaten=True,
    disturbed=True,
    max_error=0.5,
    mismatched_ratio=0.25,
    contention="not judged",
    overwritten=("x",),
    cores=2,
    phase_s={"load": 0.001, "timing": 0.004},
    metrics_fault="the metric gf(p, t): KeyError",
    undisputed=Outcome.MEASURED,
    build={"entry": "k", "grid": [1, 2]},
    facts={"registers": 32},
    content="ab",
    inputs="ef",
    read="cd",
    open_s=0.5,
    spans=(("compile", "slot 1", 1.5), ("lane", "cpu:0", 2.5)),
    carried_from=7,
    rounds=3,
    round_medians_us=(1.0, 2.0),
    first_latency_us=3.0,
    reference_us=4.0,
    reference_spread_us=0.5,
    bits=("0123456789abcdef", ""),
    same_bits=True,
    nondeterministic=True,
    compared=90,
    verdict="right",
    reason="all outputs are right",
    checked=("outputs",),
    not_enforced=("no namespaces",),
)


STAGES = msgspec.structs.fields(TrialDetail)
EACH = [TrialDetail(**{stage.name: getattr(FULL, stage.name)}) for stage in STAGES]


def test_every_fact_survives_pipe_store_and_wire() -> None:
    """Absent stages are not written."""
    for stage in STAGES:
        facts = getattr(FULL, stage.name)
        assert all(getattr(facts, field.name) for field in msgspec.structs.fields(facts)), "a fact is missing here"
    for detail in (TrialDetail(), *EACH, FULL):
        assert decode_detail(encode_detail(TrialResult(None, detail=detail))) == (detail, {})
        wire = msgpack.unpackb(msgpack.packb(msgspec.to_builtins(detail)))
        assert len(wire) == sum(getattr(detail, stage.name) != stage.default for stage in STAGES)
        assert msgspec.convert(wire, TrialDetail) == detail


def test_metrics_are_kept_beside_the_detail() -> None:
    """SQL finds them there."""
    text = encode_detail(TrialResult(None, detail=make_detail(count=3), metrics={"tflops": 1.5}))
    assert json.loads(text) == {"timing": {"count": 3}, "metrics": {"tflops": 1.5}}
    assert decode_detail(text) == (make_detail(count=3), {"tflops": 1.5})


@pytest.mark.parametrize("text", ["{", "[1]", '{"timing": {"count": "many"}}', '{"metrics": 7}'])
def test_a_damaged_detail_is_an_error(text: str) -> None:
    """Its row is left out."""
    with pytest.raises(ValueError, match=r"malformed|truncated|Expected"):
        decode_detail(text)
