"""A trial's detail: each of its fields survives the store."""

from __future__ import annotations

import json
from dataclasses import fields, replace

from ktuned.model import Outcome
from ktuned.tuning.trial_detail import NO_DETAIL, TrialDetail

FULL = TrialDetail(
    phase="timing",
    signal="SIGSEGV",
    after_s=2.0,
    story=("lane_taken", "timed"),
    stdout="out",
    stderr="err",
    count=20,
    samples=(1.0, 2.0),
    low_us=1.0,
    high_us=2.0,
    beaten=True,
    max_error=0.5,
    mismatched_ratio=0.25,
    contention="not judged",
    overwritten=("x",),
    cores=2,
    phase_s={"load": 0.001, "timing": 0.004},
    metrics={"tflops": 1.5},
    metrics_fault="the metric gf(p, t): KeyError",
    undisputed=Outcome.MEASURED,
    build={"entry": "k", "grid": [1, 2]},
    facts={"registers": 32},
    content="ab",
    open_s=0.5,
    spans=(("compile", "slot 1", 1.5), ("lane", "cpu:0", 2.5)),
    carried_from=7,
    read="9f",
    energy_low=0.25,
    energy_high=0.5,
    energy_rounds=3,
    round_costs=(0.5, 0.75),
    rounds=3,
    round_medians_us=(1.0, 2.0),
    first_latency_us=3.0,
    reference_us=4.0,
    reference_spread_us=0.5,
    bits=("0123456789abcdef", ""),
    same_bits=True,
    nondeterministic=True,
    compared=90,
)


def test_every_field_survives_the_store() -> None:
    """Were one not understood, the detail would count as empty: a finalist would have lost its Build."""
    assert all(getattr(FULL, field.name) != field.default for field in fields(TrialDetail)), "a field is missing here"
    for field in fields(TrialDetail):
        one = replace(NO_DETAIL, **{field.name: getattr(FULL, field.name)})
        assert TrialDetail.from_json(json.loads(json.dumps(one.to_json()))) == one
    assert TrialDetail.from_json(json.loads(json.dumps(FULL.to_json()))) == FULL
