"""Limits of devices are kept by model, across restarts, for the daemon and other processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktuned.model import DeviceModel, Peaks
from ktuned.store import Overview, Store

pytestmark = pytest.mark.anyio


async def test_the_newest_limits_of_a_model_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    old = Peaks(DeviceModel("a"), 1.0, {"float32": 2.0}, {"int8": "none"}, 3.0)
    new = Peaks(DeviceModel("a"), 5.0, {"float32": 6.0}, {}, 7.0)
    other = Peaks(DeviceModel("b"), absent={"all": "no torch"})
    async with Store.open(path) as store:
        for peaks in (old, other, new):
            await store.save_peaks(peaks)
    async with Store.open(path) as store:
        assert store.load_peaks() == {"a": new, "b": other}
        with Overview(path) as overview:
            assert overview.load_peaks() == {"a": new, "b": other}
