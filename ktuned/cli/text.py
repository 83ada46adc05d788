"""Formats values for one line of text: durations, sizes, flat maps, other programs' messages. No IO."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ktuned.model import Objective, escape_controls, is_latency, name_unit, spell_values

ABSENT = "–"
"""Text of an empty cell."""

_COLOURS_AND_LINKS = re.compile(r"\x1b\[[0-9;:]*m|\x1b\[K|\x1b\]8;[^\x07\x1b]*(?:\x07|\x1b\\)")
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_by_objective(objective: Objective, figure: float | None) -> str:
    """Return a figure in the unit of its objective."""
    if is_latency(objective):
        return format_latency(figure)
    return ABSENT if figure is None else f"{figure:.4g} {name_unit(objective)}"


def format_metrics(values: Mapping[str, float]) -> str:
    """Return metrics: ``tflops=41.2 gbps=1.9``."""
    return " ".join(f"{name}={value:.4g}" for name, value in values.items())


def format_figure(value: float | None) -> str:
    """Return a metric's value in four digits."""
    return ABSENT if value is None else f"{value:.4g}"


def format_latency(value_us: float | None, digits: int = 4) -> str:
    """Return a latency in a suitable unit, with this number of digits, zeros included."""
    if value_us is None:
        return ABSENT
    for divisor, unit in ((1.0, "µs"), (1e3, "ms")):
        if value_us / divisor < 999.95:
            return f"{_format_digits(value_us / divisor, digits)} {unit}"
    return f"{_format_digits(value_us / 1e6, digits)} s"


def format_with_spread(value_us: float | None, spread_us: float | None) -> str:
    """Return a latency with half its spread in percent, if there is one."""
    if not value_us or not spread_us:
        return format_latency(value_us)
    percent = 50 * spread_us / value_us
    return f"{format_latency(value_us)} ±{f'{percent:.2g}' if percent < 99.5 else '>100'} %"


def format_spread(value_us: float | None) -> str:
    """Return the spread of a latency's samples, with two digits."""
    return format_latency(value_us, digits=2)


def _format_digits(value: float, digits: int) -> str:
    rounded = float(f"{value:.{digits}g}")
    before_point = math.floor(math.log10(rounded)) + 1 if rounded > 0 else 1
    return f"{value:.{max(0, digits - before_point)}f}"


def format_count(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def format_duration(value_s: float | None) -> str:
    """Return a span of time in its two largest units."""
    if value_s is None:
        return ABSENT
    if value_s < 10:
        return f"{value_s:.1f} s"
    seconds = round(value_s)
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size} {unit} {seconds % size // below} {small}"
    return f"{seconds} s"


def format_time_left(seconds: float | None) -> str:
    """Return how long something will still take; empty if that is unknown or almost zero."""
    return "" if seconds is None or seconds < 0.1 else f"{format_duration(seconds)} left"


def format_size(value_bytes: float | None) -> str:
    """Return a number of bytes in a suitable binary unit."""
    if value_bytes is None:
        return ABSENT
    for unit in _BYTE_UNITS[:-1]:
        if value_bytes < 1024:
            return f"{value_bytes:.0f} {unit}" if unit == "B" else f"{value_bytes:.1f} {unit}"
        value_bytes /= 1024
    return f"{value_bytes:.1f} {_BYTE_UNITS[-1]}"


def format_factor(value: float | None) -> str:
    """Return a ratio as a factor."""
    return ABSENT if value is None else f"{value:.2f}×"


def format_values(values: Mapping[str, Any] | None) -> str:
    """Return a problem or a config as one cell of a table."""
    return spell_values(values or {}) or ABSENT


def clean_message(message: str) -> str:
    """Return another program's message without compilers' colours and links; line ends stay.

    Other characters that control a terminal become escapes.
    """
    plain = _COLOURS_AND_LINKS.sub("", message).replace("\r\n", "\n").replace("\t", "    ")
    return "".join(" " if letter != "\n" and letter.isspace() else letter for letter in escape_controls(plain))


def first_line(message: str | None, limit: int = 200) -> str:
    """Return the first line with text, cut to ``limit`` characters."""
    for line in clean_message(message or "").splitlines():
        if line.strip():
            line = line.strip()
            return line if len(line) <= limit else line[: limit - 1] + "…"
    return ""


def format_outcomes(outcomes: Mapping[str, int]) -> str:
    """Return counts by outcome, the most frequent first."""
    ordered = sorted(outcomes.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count} {outcome}" for outcome, count in ordered if count) or ABSENT
