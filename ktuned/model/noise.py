"""Noise: the rule for figures that differ too much to be relied on. No IO.

A figure is noisy if the spread of its samples, or of the final rounds, is more than half of it. The final round then
measures again, as often as the preset allows. What is noisy even so is served, because nothing better is known, but
never as final: results, the report, lookups and ``watch --once`` say so beside it.
"""

from __future__ import annotations

NOISY_SPREAD = 0.5
"""Spread from which on a figure is noisy, as a share of it: whatever another config gains is less than that.

On a quiet GPU the spread of rounds is below 1 %, on a shared CPU some 5 %.
"""

IMPLAUSIBLE_RATIO = 100.0
"""Times that a reference may take a winner's time: a plain reference on the same device takes 2 to 50 times."""


def is_noisy(latency_us: float | None, spread_us: float | None) -> bool:
    """Return whether the samples, or the final rounds, of a figure differ so much that it says little."""
    return bool(latency_us) and spread_us is not None and spread_us > NOISY_SPREAD * (latency_us or 0.0)


def describe_noise(latency_us: float, spread_us: float) -> str:
    """Return what is to be said beside a noisy figure."""
    percent = 50 * spread_us / latency_us
    return f"noisy: measured to ±{percent:.0f} % (other load, or unlocked clocks?)"
