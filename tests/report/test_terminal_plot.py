"""The plot of the best so far in a terminal."""

from __future__ import annotations

from ktuned.model import Outcome, Trial
from ktuned.report import plot_best
from tests.trials import make_trial


def trial(number: int, latency_us: float | None) -> Trial:
    """Return a trial; one without a latency has failed."""
    outcome = Outcome.MISMATCH if latency_us is None else Outcome.MEASURED
    return make_trial(number, outcome=outcome, latency_us=latency_us)


def test_line_is_the_best_so_far() -> None:
    """It begins with the first measured trial, and falls where one is faster; the order is that of the ids."""
    figures = [None, 80.0, 90.0, 40.0, None, 100.0, 20.0, 30.0]
    lines = plot_best([trial(number, figure) for number, figure in reversed([*enumerate(figures)])], 26, height=4)
    assert lines[0].startswith("   100 µs ┤ ━")
    assert lines[3].startswith("    20 µs ┤")
    assert lines[-1].endswith("8 trials")
    rows = {column: row for row, line in enumerate(lines[:4]) for column, mark in enumerate(line) if mark == "━"}
    heights = [rows[column] for column in sorted(rows)]
    assert heights == sorted(heights)
    assert (heights[0], heights[-1]) == (0, 3)


def test_fits_the_width() -> None:
    """No line is wider than the terminal, however many trials there are."""
    for width in (30, 60, 100):
        lines = plot_best([trial(number, 1e4 / (number + 1)) for number in range(5000)], width)
        assert max(map(len, lines)) <= width


def test_nothing_measured_is_nothing() -> None:
    """One figure is a line; none is no plot."""
    assert plot_best([trial(1, None)], 60) == []
    assert plot_best([trial(1, 5.0)], 60) != []
