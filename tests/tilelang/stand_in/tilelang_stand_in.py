"""A tilelang backend whose device is the CPU: kernels are compiled for a GPU, but torch computes them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ktuned.backends import Kernel, Launch, Unit
from ktuned.model import Device, DeviceModel, DeviceName, Target
from ktuned_tilelang import TileLang

FASTEST = "* 512)"
"""Part of the source of the config whose launches take no extra time."""


class TorchKernel(Kernel):
    """A kernel that torch computes, with extra time for all configs but one."""

    def __init__(self, is_fastest: bool) -> None:
        self._is_fastest = is_fastest

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        def launch() -> None:
            deadline = time.perf_counter() + (0.0 if self._is_fastest else 2e-3)
            tensors["y"].copy_(tensors["x"] * 3)
            while time.perf_counter() < deadline:
                pass

        return launch


class StandIn(TileLang):
    """TileLang's backend on the CPU."""

    def devices(self) -> Sequence[Device]:
        """Return the CPU with a GPU's target."""
        return [Device(DeviceName("cpu:0"), DeviceModel("a GPU's stand-in"), Target("sm_90a"))]

    def load(self, artifact: Path, unit: Unit, device: Device) -> Any:
        """Return torch's kernel."""
        return TorchKernel(FASTEST in (artifact / "device_kernel.cu").read_text())
