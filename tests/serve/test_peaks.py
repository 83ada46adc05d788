"""Limits in doubt are measured again when no job runs and the machine is quiet."""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from ktuned.model import Device, DeviceModel, DeviceName, Peaks, Target
from ktuned.serve import DevicePeaks
from ktuned.serve import peaks as peaks_module
from ktuned.store.database import Store

pytestmark = pytest.mark.anyio

QUIET = Peaks(DeviceModel("a"), 9.0, {"float32": 2.0})
BUSY = replace(QUIET, gbps=3.0, doubt="other programs used cpu:0 meanwhile")
DEVICES = [Device(DeviceName(f"cpu:{index}"), DeviceModel(name), Target("here")) for index, name in enumerate("ab")]


@asynccontextmanager
async def hold(*_: Any) -> Any:
    yield


def make_device_peaks(store: Store, found: list[Peaks], asked: list[str], *, is_working: bool) -> DevicePeaks:
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
        environments=lambda: [None],  # type: ignore[list-item, return-value]
        lane=lambda device: SimpleNamespace(hold=hold),  # type: ignore[arg-type, return-value]
        is_working=lambda: is_working,
    )


@pytest.mark.parametrize(
    ("load", "is_working", "measures"), [(0.0, False, True), (99.0, False, False), (0.0, True, False)]
)
async def test_limits_in_doubt_are_measured_again_in_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, is_working: bool, measures: bool
) -> None:
    """Only the doubtful device is measured, again and again until its limits are beyond doubt."""
    monkeypatch.setattr(peaks_module, "AGAIN_S", 0.001)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    asked: list[str] = []
    async with Store.open(tmp_path / "ktuned.sqlite") as store:
        await store.save_peaks(BUSY)
        await store.save_peaks(replace(QUIET, device=DeviceModel("b")))
        save_peaks, is_known = store.save_peaks, anyio.Event()

        async def save(peaks: Peaks) -> None:
            await save_peaks(peaks)
            if not peaks.doubt:
                is_known.set()

        monkeypatch.setattr(store, "save_peaks", save)
        device_peaks = make_device_peaks(store, [BUSY, QUIET], asked, is_working=is_working)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(device_peaks.remeasure_in_quiet)
            with anyio.move_on_after(10.0 if measures else 0.1):
                await is_known.wait()
            tasks.cancel_scope.cancel()
        assert store.load_peaks()["a"] == (QUIET if measures else BUSY)
    assert asked == (["a", "a"] if measures else [])
