"""A device's limits, measured on this machine's CPU, small."""

from __future__ import annotations

import os

from ktuned.ipc import Journal, requests
from ktuned.model import Device, DeviceModel, DeviceName, Target
from ktuned.worker.peaks import measure_peaks
from ktuned.worker.reply import Reply


def test_the_limits_of_a_cpu_are_measured() -> None:
    """Memory and both precisions have a figure; what cannot be measured has its reason, and costs no other figure."""
    device = Device(DeviceName("cpu:0"), DeviceModel("a CPU"), Target("here"))
    nowhere, journal = os.open(os.devnull, os.O_WRONLY), Journal.create()
    try:
        found = measure_peaks(requests.MeasurePeaks(device), Reply(nowhere, journal), copy_bytes=1 << 20, size=64)
        refused = measure_peaks(requests.MeasurePeaks(device), Reply(nowhere, journal), copy_bytes=-4, size=64)
    finally:
        os.close(nowhere)
        journal.close()
    assert found.gbps is not None
    assert found.gbps > 0
    assert found.tflops.keys() == {"float32", "float64"}
    assert found.absent == {}
    assert refused.gbps is None
    assert refused.absent.keys() == {"memory"}
    assert refused.tflops.keys() == {"float32", "float64"}
