"""A triton backend whose device is the CPU: kernels are compiled for a GPU, and computed by torch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ktuned.backends import Kernel, Launch, Unit
from ktuned.model import Device, DeviceModel, DeviceName, Target
from ktuned_triton import Triton

LARGE = 8_000
"""Numbers from which another block is the fastest."""


SLOWER_BY_S = 500e-6
"""What launches of all other blocks take in addition: ten times as much as the fastest's."""


def find_fastest(size: int) -> int:
    """Return the block whose launches take no extra time."""
    return 256 if size < LARGE else 128


def compute(tensors: Mapping[str, Any], *, rounds: bool = False) -> None:
    """Do what the application's function does; it may round through half precision."""
    tensors["y"].copy_((tensors["x"].half().float() if rounds else tensors["x"]) * 2)


class Computed(Kernel):
    """A kernel of torch's, slower than it could be for all blocks but one of each size."""

    def __init__(self, block: int, *, rounds: bool) -> None:
        self._block = block
        self._rounds = rounds

    def bind(self, tensors: Mapping[str, Any]) -> Launch:
        """Return a launch."""

        def launch() -> None:
            is_fastest = self._block == find_fastest(tensors["x"].numel())
            until = time.perf_counter() + (0.0 if is_fastest else SLOWER_BY_S)
            compute(tensors, rounds=self._rounds)
            while time.perf_counter() < until:
                pass

        return launch


class StandIn(Triton):
    """Triton's backend on the CPU."""

    def devices(self) -> Sequence[Device]:
        """Return the CPU as a GPU's target."""
        return [Device(DeviceName("cpu:0"), DeviceModel("a GPU's stand-in"), Target("sm_90a"))]

    def load(self, artifact: Path, unit: Unit, device: Device) -> Any:
        """Return torch's kernel."""
        build: Any = unit.build
        return Computed(build.constants["BLOCK"], rounds=build.constants.get("THROUGH") is not None)
