"""Comparison of winners before and after a tuning, to find kernels that became slower. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ktuned.cli.progress import ratio
from ktuned.model import Problem, canonical

MEASURED = ("fresh", "stale")
"""Statuses of answers whose latency belongs to the case itself."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A kernel on a problem, before and after it was tuned again; latencies in µs.

    ``verdict`` is ``faster``, ``same``, ``slower``, ``new`` (no earlier latency) or ``failed`` (no latency for the
    present files).
    """

    kernel: str
    problem: Problem
    device: str
    before_us: float | None
    now_us: float | None
    verdict: str

    @property
    def is_regression(self) -> bool:
        """True for a verdict that fails a check."""
        return self.verdict in ("slower", "failed")

    def to_wire(self) -> dict[str, Any]:
        """Return the line's data for ``--json``."""
        return {
            "kernel": self.kernel,
            "problem": dict(self.problem),
            "device": self.device,
            "before_us": self.before_us,
            "now_us": self.now_us,
            "ratio": ratio(self.before_us, self.now_us),
            "verdict": self.verdict,
        }


def previous_us(trials: Iterable[Mapping[str, Any]], digest: str, device: str | None) -> float | None:
    """Return the best figure (µs) of the newest state of a kernel before ``digest``, from its measured trials' maps."""
    earlier = [trial for trial in trials if trial["digest"] != digest and trial["device"] == device]
    newest = max(earlier, key=lambda trial: trial["updated"], default=None)
    if newest is None:
        return None
    return min(float(trial["latency_us"]) for trial in earlier if trial["digest"] == newest["digest"])


def compare(
    before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]], tolerance: float
) -> list[Comparison]:
    """Compare the answers of lookups before and after, case by case; ``tolerance`` is a share (0.03 is 3 %).

    Cases only in ``before`` belong to removed kernels, and are left out.
    """
    known = {(answer["kernel"], canonical(answer["problem"])): answer for answer in before}
    return [_judge(known.get((answer["kernel"], canonical(answer["problem"]))), answer, tolerance) for answer in after]


def _judge(before: Mapping[str, Any] | None, after: Mapping[str, Any], tolerance: float) -> Comparison:
    before_us = before["latency_us"] if before is not None and before["status"] in MEASURED else None
    now_us = after["latency_us"] if after["status"] == "fresh" else None
    if now_us is None:
        verdict = "failed"
    elif before_us is None:
        verdict = "new"
    elif now_us > before_us * (1 + tolerance):
        verdict = "slower"
    else:
        verdict = "faster" if now_us * (1 + tolerance) < before_us else "same"
    return Comparison(after["kernel"], after["problem"], after["device"] or "", before_us, now_us, verdict)
