"""Pareto front of trials: those that no other trial of the same problem and device beats in every figure. No IO.

Of ``latency``, ``energy`` and ``edp`` less is better, of any other metric more; ``-NAME`` is a metric of which less is
better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ktuned.model import canonical

LESS_IS_BETTER = frozenset({"latency", "energy", "edp"})


def figure_of(trial: Mapping[str, Any], name: str) -> float | None:
    """Return a trial's latency (µs) or metric, with the sign by which less is better; ``None`` if it has none."""
    plain = name.removeprefix("-")
    value: float | None = trial["latency_us"] if plain == "latency" else (trial.get("metrics") or {}).get(plain)
    if value is None:
        return None
    return value if plain in LESS_IS_BETTER or name != plain else -value


def pareto_front(trials: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the measured trials that no other beats, by problem and device, ordered by the first figure."""
    groups: dict[tuple[str, str], list[tuple[tuple[float, ...], Mapping[str, Any]]]] = {}
    for trial in trials:
        figures = tuple(value for name in names if (value := figure_of(trial, name)) is not None)
        if trial["outcome"] == "measured" and len(figures) == len(names):
            groups.setdefault((canonical(trial["problem"]), trial["device"]), []).append((figures, trial))
    kept: list[Mapping[str, Any]] = []
    for _, group in sorted(groups.items(), key=lambda pair: pair[0]):
        group.sort(key=lambda pair: (pair[0], pair[1]["id"]))
        best: list[tuple[float, ...]] = []
        for figures, trial in group:
            # In this order only an earlier one can beat a later one; equal ones stand side by side.
            if not any(_is_no_worse(other, figures) for other in best):
                best.append(figures)
                kept.append(trial)
    return kept


def _is_no_worse(one: Sequence[float], other: Sequence[float]) -> bool:
    return one != other and all(left <= right for left, right in zip(one, other, strict=True))
