"""A device's limits, measured on this machine's CPU with small sizes."""

from __future__ import annotations

import os
import subprocess
import sys

from ktuned.measuring.peaks import measure_peaks
from ktuned.model import Device, DeviceModel, DeviceName, Target


def test_the_limits_of_a_cpu_are_measured() -> None:
    """Memory and both precisions get a figure.

    If one measurement fails, its reason is kept and the other figures are unaffected.
    """
    device = Device(DeviceName("cpu:0"), DeviceModel("a CPU"), Target("here"))
    found = measure_peaks(device, copy_bytes=1 << 20, size=64)
    refused = measure_peaks(device, copy_bytes=-4, size=64)
    assert found.gbps is not None
    assert found.gbps > 0
    assert found.tflops.keys() == {"float32", "float64"}
    assert found.absent == {}
    assert refused.gbps is None
    assert refused.absent.keys() == {"memory"}
    assert refused.tflops.keys() == {"float32", "float64"}


def test_limits_measured_beside_busy_programs_are_in_doubt() -> None:
    """A program on each core is busy meanwhile."""
    device = Device(DeviceName("cpu:0"), DeviceModel("a CPU"), Target("here"))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        found = measure_peaks(device, copy_bytes=1 << 26, size=512)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert found.gbps is not None
    assert found.doubt == "other programs used cpu:0 meanwhile"
