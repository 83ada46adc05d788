"""Limits that were measured on a busy machine are measured again."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from ktuned.model import Device, DeviceModel, DeviceName, Peaks, Target
from ktuned.serve import DevicePeaks
from ktuned.store.database import Store

pytestmark = pytest.mark.anyio

QUIET = Peaks(DeviceModel("a"), 9.0, {"float32": 2.0})
BUSY = replace(QUIET, gbps=3.0, doubt="other programs used cpu:0 meanwhile")
DEVICES = [Device(DeviceName(f"cpu:{index}"), DeviceModel(name), Target("here")) for index, name in enumerate("ab")]


@asynccontextmanager
async def hold(*_: Any) -> Any:
    yield


def make_device_peaks(store: Store, found: list[Peaks], asked: list[str]) -> DevicePeaks:
    """Return an object that finds two devices; measuring one returns the next of the ``found`` limits."""

    async def probe_environment(_: object) -> Any:
        return SimpleNamespace(devices=DEVICES)

    async def send_request(request: Any, _: object) -> Any:
        asked.append(request.device.model)
        return found.pop(0), None

    async def acquire_worker(*_: object) -> Any:
        return SimpleNamespace(send_request=send_request, kill=lambda: None)

    return DevicePeaks(
        machine=SimpleNamespace(environments=SimpleNamespace(probe_environment=probe_environment)),  # type: ignore[arg-type]
        store=store,
        fleet=SimpleNamespace(gate=SimpleNamespace(hold_quiet=hold), acquire_worker=acquire_worker),  # type: ignore[arg-type]
        environments=lambda: [None],  # type: ignore[list-item]
        lane=lambda device: SimpleNamespace(hold=hold),  # type: ignore[arg-type, return-value]
    )


async def test_limits_in_doubt_are_measured_again_until_they_are_beyond_doubt(tmp_path: Path) -> None:
    """Only the doubtful device is measured."""
    asked: list[str] = []
    async with Store.open(tmp_path / "ktuned.sqlite") as store:
        await store.save_peaks(BUSY)
        await store.save_peaks(replace(QUIET, device=DeviceModel("b")))
        device_peaks = make_device_peaks(store, [BUSY, QUIET], asked)
        assert [await device_peaks.remeasure_doubtful() for _ in range(3)] == [True, True, False]
        assert store.load_peaks()[QUIET.device] == QUIET
    assert asked == ["a", "a"]
