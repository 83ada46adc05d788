"""A device as a backend found it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ktuned.model.keys import DeviceModel, DeviceName, Target
from ktuned.model.objective import Objective, needs_own_launches

NO_COUNTER = "it has no energy counter"


def read_device_kind(name: str) -> str:
    """Return the kind of a device, ``cpu`` or ``cuda``, from its name."""
    return name.rpartition("/")[2].partition(":")[0]


class Device(msgspec.Struct, frozen=True):
    """A CPU or GPU that kernels can run on, as a backend found it.

    Attributes:
        name: its place on this machine (``cpu:0``), or on another host (``rack7/cuda:0``).
        model: its model, by which winners are kept.
        target: the architecture for compilers.
        fingerprint: the driver, and everything else that can change a kernel's speed.
        no_energy: why its energy cannot be measured; empty if it can. Probes find this out.
    """

    name: DeviceName
    model: DeviceModel
    target: Target
    fingerprint: Mapping[str, str] = msgspec.field(default_factory=dict)
    no_energy: str = NO_COUNTER

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``."""
        return read_device_kind(self.name)

    @property
    def host(self) -> str:
        """The host that it belongs to; empty for this machine."""
        return self.name.rpartition("/")[0]

    @property
    def local_name(self) -> str:
        """Its name on its own machine."""
        return self.name.rpartition("/")[2]


def explain_unmeasurable(objective: Objective, device: Device) -> str:
    """Return why a device cannot measure an objective's metric; empty if it can."""
    if not device.no_energy or not needs_own_launches(objective):
        return ""
    return f"unsupported: the objective {objective!r} on {device.name} ({device.model}): {device.no_energy}"
