"""Comparison of winners before and after a tuning, to find kernels that became slower. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ktuned.model import (
    LATENCY,
    Objective,
    Problem,
    Record,
    canonical,
    compute_gain,
    cost_of,
    figure_of,
    is_latency,
    record,
)

MEASURED = ("fresh", "stale")
"""Statuses of answers whose latency belongs to the case itself."""


@record
class Comparison(Record):
    """A kernel on a problem by an objective, before and after it was tuned again; figures are in the objective's unit.

    ``verdict`` is ``faster``, ``same``, ``slower`` (by another objective: better or worse), ``new`` (no earlier
    figure) or ``failed`` (no figure for the present files). ``is_noisy`` if the present figure says little.
    """

    kernel: str
    problem: Problem
    device: str
    objective: Objective
    before: float | None
    now: float | None
    verdict: str
    is_noisy: bool = False

    @property
    def gain(self) -> float | None:
        """Times that it is better than before."""
        return compute_gain(self.objective, self.before, self.now)

    @property
    def is_regression(self) -> bool:
        """True for a verdict that fails a check."""
        return self.verdict in ("slower", "failed")

    def to_wire(self) -> dict[str, Any]:
        """Return the line's data for ``--json``."""
        by_latency = is_latency(self.objective)
        return {
            "kernel": self.kernel,
            "problem": dict(self.problem),
            "device": self.device,
            "objective": self.objective,
            "before": self.before,
            "now": self.now,
            "before_us": self.before if by_latency else None,
            "now_us": self.now if by_latency else None,
            "ratio": self.gain,
            "verdict": self.verdict,
            "noisy": self.is_noisy,
        }


def find_previous_best(
    trials: Iterable[Mapping[str, Any]], digest: str, device: str | None, objective: Objective = LATENCY
) -> float | None:
    """Return the best figure of the newest state of a kernel before ``digest``, from its measured trials' maps."""
    earlier = [trial for trial in trials if trial["digest"] != digest and trial["device"] == device]
    known = [
        (trial, cost, figure) for trial in earlier for cost, figure in [_cost_and_figure(trial, objective)] if cost
    ]
    if not known:
        return None
    newest = max((trial for trial, _, _ in known), key=lambda trial: float(trial["updated"]))
    return min((cost, figure) for trial, cost, figure in known if trial["digest"] == newest["digest"])[1]


def compare_answers(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]], tolerance: float
) -> list[Comparison]:
    """Compare the answers of lookups before and after, case by case; ``tolerance`` is a share (0.03 is 3 %).

    Cases only in ``before`` belong to removed kernels, and are left out.
    """
    known = {_case_of_answer(answer): answer for answer in before}
    return [_judge_case(known.get(_case_of_answer(answer)), answer, tolerance) for answer in after]


def objective_of(answer: Mapping[str, Any]) -> Objective:
    """Return the objective of an answer; an earlier daemon knows of one."""
    return Objective(answer.get("objective") or LATENCY)


def _case_of_answer(answer: Mapping[str, Any]) -> tuple[str, str, Objective]:
    return answer["kernel"], canonical(answer["problem"]), objective_of(answer)


def _cost_and_figure(entry: Mapping[str, Any], objective: Objective) -> tuple[float | None, float | None]:
    """Return what the figure of an answer or a trial costs, and the figure."""
    figure = figure_of(objective, entry["latency_us"], entry.get("metrics") or {})
    return cost_of(objective, figure), figure


def _judge_case(before: Mapping[str, Any] | None, after: Mapping[str, Any], tolerance: float) -> Comparison:
    objective = objective_of(after)
    is_known = before is not None and before["status"] in MEASURED
    cost_before, figure_before = (
        _cost_and_figure(before, objective) if before is not None and is_known else (None, None)
    )
    cost_now, figure_now = _cost_and_figure(after, objective) if after["status"] == "fresh" else (None, None)
    if cost_now is None:
        verdict = "failed"
    elif cost_before is None:
        verdict = "new"
    elif cost_now > cost_before * (1 + tolerance):
        verdict = "slower"
    else:
        verdict = "faster" if cost_now * (1 + tolerance) < cost_before else "same"
    return Comparison(
        after["kernel"],
        after["problem"],
        after["device"] or "",
        objective,
        figure_before,
        figure_now,
        verdict,
        is_noisy=str(after.get("message") or "").startswith("noisy:"),
    )
