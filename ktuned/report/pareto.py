"""Pareto front: trials for which no other trial of the same problem and device is better in one figure and at least as
good in all others. No IO.

For ``latency``, ``energy`` and ``edp``, less is better; for any other metric, more is better. ``-NAME`` names a metric
for which less is better.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ktuned.model import BUILT_IN, Outcome, Trial, canonical, is_maximized, maximize, minimize, select_figure

T = TypeVar("T", bound=Trial)


def compute_cost(trial: Trial, name: str) -> float | None:
    """Return a trial's latency (µs) or metric, negated if more is better; ``None`` if the trial does not have it."""
    plain = name.removeprefix("-")
    objective = minimize(plain) if name != plain or plain in BUILT_IN else maximize(plain)
    value = select_figure(objective, trial.latency_us, trial.metrics)
    return -value if value is not None and is_maximized(objective) else value


def pareto_front(trials: Sequence[T], names: Sequence[str]) -> list[T]:
    """Return the measured trials on the Pareto front of each problem and device, ordered by the first figure."""
    groups: dict[tuple[str, str], list[tuple[tuple[float, ...], T]]] = {}
    for trial in trials:
        costs = tuple(value for name in names if (value := compute_cost(trial, name)) is not None)
        if trial.outcome is Outcome.MEASURED and len(costs) == len(names):
            groups.setdefault((canonical(trial.problem), trial.device), []).append((costs, trial))
    kept: list[T] = []
    for _, group in sorted(groups.items(), key=lambda pair: pair[0]):
        group.sort(key=lambda pair: (pair[0], pair[1].id))
        best: list[tuple[float, ...]] = []
        for costs, trial in group:
            # In this order, only an earlier trial can beat a later one. Trials with equal figures are all kept.
            if not any(_is_no_worse(other, costs) for other in best):
                best.append(costs)
                kept.append(trial)
    return kept


def _is_no_worse(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(left <= right for left, right in zip(one, other, strict=True))
