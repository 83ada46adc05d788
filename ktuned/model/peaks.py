"""The limits of a device, and the share of each that a kernel reaches. No IO.

A kernel file's ``bytes`` become the metric ``gbps``; its ``flops`` become ``tflops``, or ``tflops_PRECISION`` for
arithmetic of another precision than float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec.structs import replace

from ktuned.model.frozen_struct import FrozenStruct
from ktuned.model.keys import DeviceModel

FLOAT32 = "float32"

PRECISIONS: Mapping[str, str] = {
    FLOAT32: "float32 arithmetic",
    "float64": "float64 arithmetic",
    "tf32": "tf32 tensor cores",
    "float16": "float16 tensor cores",
    "bfloat16": "bfloat16 tensor cores",
    "float8": "float8 tensor cores",
    "int8": "int8 tensor cores",
}
"""Precisions of arithmetic, and the units that limit them; on a CPU only the first two are measured."""

MEMORY = "memory bandwidth"
BANDWIDTH_METRIC = "gbps"
_ARITHMETIC_METRIC = "tflops"


class Peaks(FrozenStruct):
    """Measured limits of a device model: GB/s of its memory, and TFLOP/s by precision.

    ``absent`` says why a figure could not be measured, by its name. ``measured`` is a Unix time in s. ``doubt`` says
    why the limits may really be higher: other programs used the device.
    """

    device: DeviceModel
    gbps: float | None = None
    tflops: Mapping[str, float] = {}
    absent: Mapping[str, str] = {}
    measured: float = 0.0
    doubt: str = ""

    @property
    def has_figures(self) -> bool:
        """True if anything could be measured."""
        return self.gbps is not None or bool(self.tflops)


class Share(FrozenStruct):
    """The share of a device's limit that a kernel reaches, by a metric; ``of`` names the limit.

    If the limit is in doubt, it may be higher, and the share is ``at_most`` this.
    """

    of: str
    share: float
    metric: str
    at_most: bool = False

    def __str__(self) -> str:
        return f"{'at most ' if self.at_most else ''}{self.share:.0%} of {self.of}".replace("%", " %")


def choose_peaks(known: Peaks | None, found: Peaks) -> Peaks:
    """Return the limits to keep after a measurement: the new ones, unless they are in doubt or absent.

    Figures in doubt replace none that are beyond doubt. Of two figures in doubt the higher one counts, because other
    programs only lower a limit.
    """
    if known is None or not known.has_figures or (found.has_figures and not found.doubt):
        return found
    if not found.has_figures or not known.doubt:
        return known
    tflops = {
        kind: max(known.tflops.get(kind, 0.0), found.tflops.get(kind, 0.0)) for kind in {**known.tflops, **found.tflops}
    }
    return replace(found, gbps=max(filter(None, (known.gbps, found.gbps)), default=None), tflops=tflops)


def name_arithmetic_metric(precision: str) -> str:
    """Return the name of the metric for a precision's TFLOP/s."""
    return _ARITHMETIC_METRIC if precision == FLOAT32 else f"{_ARITHMETIC_METRIC}_{precision}"


def compute_shares(metrics: Mapping[str, float], peaks: Peaks) -> list[Share]:
    """Return a kernel's share of each limit for which there is a metric, the largest first.

    The limit with the largest share is the one that holds the kernel back, if any does. A figure that the kernel
    exceeds is no limit for it, and is left out: the data stayed in a cache, or the figure was measured under load.

    Args:
        metrics: a config's figures by name.
        peaks: the limits of its device.
    """
    limits = {BANDWIDTH_METRIC: (MEMORY, peaks.gbps)}
    for precision, unit in PRECISIONS.items():
        limits[name_arithmetic_metric(precision)] = (unit, peaks.tflops.get(precision))
    found = [
        Share(name, metrics[metric] / limit, metric, bool(peaks.doubt))
        for metric, (name, limit) in limits.items()
        if limit and metrics.get(metric, math.inf) <= limit
    ]
    return sorted(found, key=lambda one: -one.share)
