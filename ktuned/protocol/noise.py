"""Noise: figures that vary too much to be relied on. No IO.

A figure is noisy if the spread of its samples, or of the final rounds, is more than half of the figure. The final round
then measures again, as often as the preset allows. If it is still noisy, it is served, because nothing better is known,
but never as final: results, the report, lookups and ``watch --once`` mark it.

A reference is also noisy if it is slower than the winner by an implausible factor: its rounds may agree because all of
them met the same disturbance. It is measured again. If the factor stays implausible, no speed-up is claimed.
"""

from __future__ import annotations

NOISY_SPREAD = 0.5
"""Spread, as a share of the figure, above which it is noisy, because it hides any gain over another config.

On a quiet GPU the spread of rounds is below 1 %, on a shared CPU some 5 %.
"""

IMPLAUSIBLE_RATIO = 100.0
"""Speed-up over the reference above which a winner is implausible: on one device, plain references take 2 to 50 times
as long.
"""


def is_noisy(latency_us: float | None, spread_us: float | None) -> bool:
    """Return whether a figure's samples, or its final rounds, vary too much to rely on it."""
    return bool(latency_us) and spread_us is not None and spread_us > NOISY_SPREAD * (latency_us or 0.0)


def is_ratio_implausible(reference_us: float | None, best_us: float | None) -> bool:
    """Return whether a winner is implausibly much faster than the reference."""
    return bool(reference_us and best_us) and (reference_us or 0.0) > IMPLAUSIBLE_RATIO * (best_us or 0.0)


def is_reference_noisy(reference_us: float | None, spread_us: float | None, best_us: float | None) -> bool:
    """Return whether a reference's latency is too uncertain to claim a speed-up over it."""
    return is_noisy(reference_us, spread_us) or is_ratio_implausible(reference_us, best_us)


def describe_noise(latency_us: float, spread_us: float) -> str:
    """Return the remark to show next to a noisy figure."""
    percent = 50 * spread_us / latency_us
    return f"noisy: measured to ±{percent:.0f} % (other load, or unlocked clocks?)"
