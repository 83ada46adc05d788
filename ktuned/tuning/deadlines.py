"""Deadlines of the phases of a trial. A known best config shortens them for later trials. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ktuned.model import Phase, Preset

DEFAULT_DEADLINES: Mapping[str, float] = MappingProxyType(
    {
        # An interpreter starts in 0.1 s, but may need many seconds on a swapping machine or a cold network file system.
        "spawn": 30.0,
        # A kernel file may import torch: 2 to 10 s when the disk is cold.
        "inspect": 60.0,
        # nvcc takes half a minute for a heavy template; ptxas sometimes never ends.
        "compile": 180.0,
        # Loading is a dlopen or a module load, but the first one on a GPU makes a context.
        "load": 60.0,
        # The reference is an unoptimised program, run once.
        "reference": 120.0,
        # One run of a kernel takes milliseconds; ten seconds are for kernels that build tables first.
        "first_launch": 10.0,
        # Comparing two tensors, or the kernel file's own check.
        "check": 60.0,
        # The preset caps the total of many runs; this deadline is for a single run that never returns.
        "timing": 30.0,
        # The least that a deadline is shortened to: thread pools start, pages fault in, the machine may be busy.
        "floor": 2.0,
    }
)
"""Seconds that a phase may take before its worker is killed; ``floor`` is not a phase."""

HOPELESS_RATIO = 50.0
"""A config that takes this many times as long as the best is given up before the fixed deadline."""


def merge_deadlines(*layers: Mapping[str, float]) -> dict[str, float]:
    """Return the defaults overridden by each layer in turn (``config.toml``, then the kernel file)."""
    result = dict(DEFAULT_DEADLINES)
    for layer in layers:
        result.update(layer)
    return result


def shorten_for_trial(deadlines: Mapping[str, float], preset: Preset, best_launch_s: float | None) -> dict[str, float]:
    """Return a trial's deadlines, in s by phase; some are shorter if a launch of the best config so far is known.

    The first launch may then take :data:`HOPELESS_RATIO` times ``best_launch_s``, but at least the ``floor``. Timing
    may take this time in addition to the preset's. A launch's time is that of the wall clock, and not its latency: a
    program that prepares for seconds may print a few milliseconds.
    """
    result = dict(deadlines)
    # The next config of a batch is loaded while this one is timed.
    result[Phase.LOAD_NEXT] = result["load"]
    if best_launch_s is None:
        return result
    hopeless_s = max(deadlines["floor"], HOPELESS_RATIO * best_launch_s)
    result["first_launch"] = min(result["first_launch"], hopeless_s)
    result["timing"] = min(result["timing"], preset.timing_s + hopeless_s)
    return result
