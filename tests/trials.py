"""Makes trials, results and measurements from the few fields that a test is about."""

from __future__ import annotations

from typing import Any

from ktuned.ipc import replies
from ktuned.model import Config, DeviceModel, KernelName, Outcome, Phase, TrialDetail, TrialResult
from ktuned.protocol import Trial


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
    return TrialResult(outcome, latency_us, spread_us, message=message, detail=TrialDetail(phase=phase, **detail))


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
    figures = [value for value in (trial_result.latency_us, detail.low_us, detail.high_us) if value is not None]
    cost = replies.CostRange(*figures) if len(figures) == 3 else None
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
