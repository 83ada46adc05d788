"""The work of a launch: its metrics, its faults, and its share of a device's limits."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ktuned.declaration.work import compute_throughput, find_work_fault
from ktuned.model import DeviceModel, Peaks, choose_peaks, compute_shares

PEAKS = Peaks(DeviceModel("H200"), 3000.0, {"float32": 50.0, "float16": 800.0})


def test_work_and_latency_give_throughput() -> None:
    """Operations and bytes per launch give TFLOP/s and GB/s; each precision has its own metric."""
    assert compute_throughput(2e9, 3e6, 1000.0) == {"tflops": 2.0, "gbps": 3.0}
    assert compute_throughput({"float16": 4e9, "float32": 1e9}, None, 1000.0) == {"tflops_float16": 4.0, "tflops": 1.0}
    assert compute_throughput(None, None, 1.0) == {}


@pytest.mark.parametrize(
    ("flops", "moved_bytes", "words"),
    [
        (0, None, "flops is 0, not a positive number"),
        (True, None, "flops is True, not a positive number"),
        (None, float("inf"), "bytes is inf, not a positive number"),
        (None, "many", "bytes is 'many', not a positive number"),
        ({"half": 1}, None, "flops names the precision 'half'"),
        ({"float16": -1}, None, "flops of a precision is -1, not a positive number"),
    ],
)
def test_wrong_work_names_its_error(flops: Any, moved_bytes: Any, words: str) -> None:
    """The message is the same in the declaration and from a function."""
    assert words in find_work_fault(flops, moved_bytes, {})
    with pytest.raises(ValueError, match=r"positive number|precision"):
        compute_throughput(flops, moved_bytes, 1.0)


def test_a_metric_is_given_by_work_or_by_metrics_but_not_by_both() -> None:
    assert "gives the metric tflops" in find_work_fault(1, None, {"tflops": min})
    assert "gives the metric gbps" in find_work_fault(None, 1, {"gbps": min})
    assert find_work_fault(lambda p: 0, lambda p: 0, {"speed": min}) == ""


def test_the_greatest_share_comes_first() -> None:
    """The greatest share is the limit that holds a kernel back; a limit that was not measured has no share."""
    shares = compute_shares({"gbps": 2130.0, "tflops_float16": 80.0, "tflops_int8": 5.0, "speed": 1.0}, PEAKS)
    assert [str(share) for share in shares] == ["71 % of memory bandwidth", "10 % of float16 tensor cores"]
    assert compute_shares({"gbps": 1.0}, Peaks(DeviceModel("H200"))) == []


def test_a_figure_that_a_kernel_exceeds_is_no_limit() -> None:
    """A limit that was measured under load would otherwise say that a kernel reaches 533 % of it."""
    shares = compute_shares({"gbps": 5.0 * (PEAKS.gbps or 0), "tflops_float16": 80.0}, PEAKS)
    assert [str(share) for share in shares] == ["10 % of float16 tensor cores"]


def test_a_share_of_a_limit_in_doubt_is_an_upper_bound() -> None:
    shares = compute_shares({"gbps": 2130.0}, replace(PEAKS, doubt="other programs used cpu:0 meanwhile"))
    assert [str(share) for share in shares] == ["at most 71 % of memory bandwidth"]


BUSY = replace(PEAKS, gbps=1000.0, tflops={"float32": 60.0}, doubt="other programs used cpu:0 meanwhile")
FAILED = Peaks(PEAKS.device, absent={"all": "no torch"})


@pytest.mark.parametrize(
    ("known", "found", "kept"),
    [
        (None, BUSY, BUSY),
        (BUSY, PEAKS, PEAKS),
        (PEAKS, BUSY, PEAKS),
        (PEAKS, FAILED, PEAKS),
        (None, FAILED, FAILED),
        (FAILED, BUSY, BUSY),
        (BUSY, replace(BUSY, gbps=900.0, tflops={"float32": 70.0}), replace(BUSY, tflops={"float32": 70.0})),
    ],
)
def test_limits_in_doubt_replace_only_lower_limits_in_doubt(known: Peaks | None, found: Peaks, kept: Peaks) -> None:
    assert choose_peaks(known, found) == kept
