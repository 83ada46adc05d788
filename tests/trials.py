"""Makes trials, results and measurements from the few fields that a test is about."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from ktuned.ipc import replies
from ktuned.model import Config, DeviceModel, KernelName, Outcome, Phase, TrialDetail, TrialResult
from ktuned.protocol import Trial


def make_detail(**facts: Any) -> TrialDetail:
    """Return the detail with these facts, each in its stage; a fact that is None is left out."""
    stages: dict[str, dict[str, Any]] = {}
    for stage in structs.fields(TrialDetail):
        known = {fact.name for fact in structs.fields(stage.type)}
        stages[stage.name] = {name: facts.pop(name) for name in known & facts.keys()}
    assert not facts, f"no stage has the facts {sorted(facts)}"
    detail = TrialDetail()
    for name, given in stages.items():
        given = {fact: value for fact, value in given.items() if value is not None}
        if given:
            detail = structs.replace(detail, **{name: structs.replace(getattr(detail, name), **given)})
    return detail


def make_result(
    outcome: Outcome | None,
    message: str = "",
    phase: Phase | None = None,
    *,
    latency_us: float | None = None,
    spread_us: float | None = None,
    **detail: Any,
) -> TrialResult:
    """Return a result; ``detail`` are fields of its detail."""
    return TrialResult(outcome, latency_us, spread_us, message=message, detail=make_detail(phase=phase, **detail))


def make_measurement(
    outcome: Outcome | None,
    message: str = "",
    phase: Phase | None = None,
    *,
    is_guilty: bool = False,
    is_unsound: bool = False,
    leftover: str = "",
    **result: Any,
) -> replies.Measurement:
    """Return a measurement of the result that :func:`make_result` makes; its cost is the latency with its interval."""
    trial_result = make_result(outcome, message, phase, **result)
    detail = trial_result.detail
    ends = detail.timing.low_us, detail.timing.high_us
    cost = replies.CostRange(trial_result.latency_us, *ends) if trial_result.latency_us and ends[1] else None
    return replies.Measurement(trial_result, cost, is_guilty, is_unsound, leftover=leftover)


def make_trial(
    number: int = 1,
    config: Config | None = None,
    outcome: Outcome | None = Outcome.MEASURED,
    *,
    latency_us: float | None = 1.0,
    detail: TrialDetail | None = None,
    **fields: Any,
) -> Trial:
    """Return a trial of the kernel ``p:k`` on a CPU."""
    defaults: dict[str, Any] = {
        "job": 1,
        "kernel": KernelName("p:k"),
        "problem": {},
        "device": DeviceModel("cpu"),
        "digest": "digest",
        "updated": 0.0,
        "spread_us": 0.0,
        **fields,
    }
    return Trial(
        outcome,
        id=number,
        config={} if config is None else config,
        latency_us=latency_us,
        detail=detail or TrialDetail(),
        **defaults,
    )
