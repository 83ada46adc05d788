"""The work of one launch, as a kernel file declares it: operations by precision, and bytes. They become metrics.

The bytes are those that any launch must move: each input is read once and each output is written once. So the share of
the device's bandwidth shows how good a kernel is, and not how much it moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ktuned.model import BANDWIDTH_METRIC, FLOAT32, PRECISIONS, listed, name_arithmetic_metric

LaunchWork = int | float | Mapping[str, int | float]
"""A number of float32 operations, or operations by precision, or a number of bytes."""

DeclaredWork = LaunchWork | Callable[[Any], LaunchWork] | None


def find_work_fault(flops: Any, bytes_moved: Any, metrics: Mapping[str, Any]) -> str:
    """Return the error in the arguments ``flops`` and ``bytes``, or an empty text."""
    for name, value in (("flops", flops), ("bytes", bytes_moved)):
        if value is not None and not callable(value) and (fault := _find_value_fault(name, value)):
            return fault
        given = {"flops": name_arithmetic_metric(FLOAT32), "bytes": BANDWIDTH_METRIC}[name]
        if value is not None and given in metrics:
            return f"{name}= gives the metric {given}, which metrics= has, too"
    return ""


def compute_throughput(flops: Any, bytes_moved: Any, latency_us: float) -> dict[str, float]:
    """Return the metrics of a launch, from its work (values, not functions) and its latency in µs.

    Raises:
        ValueError: a value is neither a number nor a dict of numbers.
    """
    found = {}
    for name, value in (("flops", flops), ("bytes", bytes_moved)):
        if value is None:
            continue
        if fault := _find_value_fault(name, value):
            raise ValueError(fault)
        if name == "bytes":
            found[BANDWIDTH_METRIC] = value / latency_us / 1e3
        else:
            by_precision = value if isinstance(value, Mapping) else {FLOAT32: value}
            found |= {name_arithmetic_metric(kind): count / latency_us / 1e6 for kind, count in by_precision.items()}
    return found


def _find_value_fault(name: str, value: Any) -> str:
    if name == "flops" and isinstance(value, Mapping):
        unknown = next((kind for kind in value if kind not in PRECISIONS), None)
        if unknown is not None:
            return f"flops names the precision {unknown!r} {listed(PRECISIONS, near=str(unknown))}"
        return next(
            (fault for count in value.values() if (fault := _find_value_fault("flops of a precision", count))), ""
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        return f"{name} is {value!r}, not a positive number"
    return ""


def list_given_metrics(flops: Any, bytes_moved: Any) -> list[str]:
    """Return the metrics that the arguments may give. A function of the problem may give those of any precision."""
    names = [BANDWIDTH_METRIC] if bytes_moved is not None else []
    if flops is None:
        return names
    kinds = flops if isinstance(flops, Mapping) else PRECISIONS if callable(flops) else (FLOAT32,)
    return [*names, *map(name_arithmetic_metric, kinds)]
