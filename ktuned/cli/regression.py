"""Comparison of winners before and after a tuning, to find kernels that became slower. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ktuned.model import (
    LATENCY,
    Objective,
    Record,
    Status,
    as_latency,
    canonical,
    compute_gain,
    cost_of,
    figure_of,
    record,
)
from ktuned.protocol import Answer

Case = tuple[str, str, Objective]
"""What is compared: a kernel, a problem's canonical text, an objective."""


@record
class Comparison(Record):
    """A kernel on a problem by an objective, before and after it was tuned again.

    Attributes:
        answer: the answer after the tuning.
        before: the figure before, in the objective's unit; None if there was none.
        now: the figure for the present files; None if there is none.
        verdict: ``faster``, ``same``, ``slower``, ``new`` (no figure before) or ``failed`` (no figure now).
    """

    answer: Answer
    before: float | None
    now: float | None
    verdict: str

    @property
    def is_noisy(self) -> bool:
        """True if the present figure says little."""
        return self.answer.message.startswith("noisy:")

    @property
    def gain(self) -> float | None:
        """Times that it is better than before."""
        return compute_gain(self.answer.objective, self.before, self.now)

    @property
    def is_regression(self) -> bool:
        """True for a verdict that fails a check."""
        return self.verdict in ("slower", "failed")

    def to_wire(self) -> dict[str, Any]:
        """Return the line's data for ``--json``."""
        objective = self.answer.objective
        return {
            "kernel": self.answer.kernel,
            "problem": dict(self.answer.problem),
            "device": self.answer.device or "",
            "objective": objective,
            "before": self.before,
            "now": self.now,
            "before_us": as_latency(objective, self.before),
            "now_us": as_latency(objective, self.now),
            "ratio": self.gain,
            "verdict": self.verdict,
            "noisy": self.is_noisy,
        }


def find_previous_best(
    trials: Iterable[Mapping[str, Any]], digest: str, device: str | None, objective: Objective = LATENCY
) -> float | None:
    """Return the best figure of the newest state of a kernel before ``digest``, from its measured trials' maps."""
    known = []
    for trial in trials:
        figure = figure_of(objective, trial["latency_us"], trial.get("metrics") or {})
        cost = cost_of(objective, figure)
        if cost and trial["digest"] != digest and trial["device"] == device:
            known.append((trial, cost, figure))
    if not known:
        return None
    newest = max((trial for trial, _, _ in known), key=lambda trial: float(trial["updated"]))
    return min((cost, figure) for trial, cost, figure in known if trial["digest"] == newest["digest"])[1]


def case_of(answer: Answer) -> Case:
    """Return what an answer is compared as."""
    return answer.kernel, canonical(answer.problem), answer.objective


def compare_answers(before: Mapping[Case, float | None], after: Iterable[Answer], tolerance: float) -> list[Comparison]:
    """Compare the figures ``before`` with the answers ``after``; ``tolerance`` is a share (0.03 is 3 %).

    Cases only in ``before`` belong to removed kernels, and are left out.
    """
    return [_judge_case(before.get(case_of(answer)), answer, tolerance) for answer in after]


def _judge_case(before: float | None, answer: Answer, tolerance: float) -> Comparison:
    now = answer.figure if answer.status is Status.FRESH else None
    cost_before, cost_now = cost_of(answer.objective, before), cost_of(answer.objective, now)
    if cost_now is None:
        verdict = "failed"
    elif cost_before is None:
        verdict = "new"
    elif cost_now > cost_before * (1 + tolerance):
        verdict = "slower"
    else:
        verdict = "faster" if cost_now * (1 + tolerance) < cost_before else "same"
    return Comparison(answer, before, now, verdict)
