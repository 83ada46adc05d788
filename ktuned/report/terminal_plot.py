"""A plot of the best latency so far over the trials, as text for a terminal. No IO."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ktuned.model import Outcome, Trial

HEIGHT = 12
MARGIN = 10
"""Columns for the latency labels on the left."""

_BEST, _TRIAL = "━", "·"


def plot_best(trials: Sequence[Trial], width: int, height: int = HEIGHT) -> list[str]:
    """Return the lines of a plot of one problem's trials, in the order of their ids; none if nothing was measured.

    Dots are measured trials, and the line is the best latency so far. The scale is logarithmic; it ends at the slowest
    10 % of the trials, which are all drawn at its top.
    """
    ordered = sorted(trials, key=lambda trial: trial.id)
    measured = [
        (place, trial.latency_us)
        for place, trial in enumerate(ordered)
        if trial.outcome is Outcome.MEASURED and trial.latency_us
    ]
    if not measured:
        return []
    figures = sorted(latency_us for _, latency_us in measured)
    low, high = figures[0], max(figures[int(len(figures) * 0.9)], figures[0] * 1.02)
    columns = max(8, width - MARGIN - 2)
    grid = [[" "] * columns for _ in range(height)]

    def row(latency_us: float) -> int:
        share = math.log(min(latency_us, high) / low) / math.log(high / low)
        return round((1 - share) * (height - 1))

    for place, latency_us in measured:
        grid[row(latency_us)][place * columns // len(ordered)] = _TRIAL
    best, rest = math.inf, iter(measured)
    upcoming = next(rest, None)
    for column in range(columns):
        while upcoming is not None and upcoming[0] * columns // len(ordered) <= column:
            best = min(best, upcoming[1])
            upcoming = next(rest, None)
        if best < math.inf:
            grid[row(best)][column] = _BEST
    lines = []
    for number, cells in enumerate(grid):
        level = low * (high / low) ** (1 - number / (height - 1))
        label = _format_latency(level) if number % 3 == 0 or number == height - 1 else ""
        lines.append(f"{label:>{MARGIN - 1}} ┤{''.join(cells)}".rstrip())
    count = f"{len(ordered)} trials" if len(ordered) > 1 else "trial"
    lines.append(f"{'':>{MARGIN}}└{'─' * columns}")
    lines.append(f"{'':>{MARGIN}} 1{count:>{columns - 1}}")
    return lines


def _format_latency(value_us: float) -> str:
    value, unit = (
        (value_us, "µs")
        if value_us < 999.5
        else (value_us / 1e3, "ms")
        if value_us < 999.5e3
        else (value_us / 1e6, "s")
    )
    return f"{value:.3g} {unit}"
