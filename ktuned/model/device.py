"""A device as a backend found it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ktuned.model.frozen_struct import FrozenStruct
from ktuned.model.keys import DeviceModel, DeviceName, Target

NO_COUNTER = "it has no energy counter"


def read_device_kind(name: str) -> str:
    """Return the kind of a device, ``cpu`` or ``cuda``, from its name."""
    return name.rpartition("/")[2].partition(":")[0]


class Device(FrozenStruct):
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
    fingerprint: Mapping[str, str] = {}
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


class Absence(FrozenStruct):
    """Why a backend has no device: the reason's name, one line about it, and a command that helps."""

    reason: str
    message: str
    hint: str = ""


class Fault(FrozenStruct):
    """An error as data: its code, one line, and the remedy."""

    code: str
    message: str
    hint: str = ""


class BackendReport(FrozenStruct):
    """One backend as a probe found it.

    Attributes:
        version: the version of its plugin.
        fingerprint: everything that decides its artifacts, by name.
        group_size: how many configs it compiles together.
        lowers: whether a front end translates functions before they are compiled.
        target: the target without a device; empty if there is none.
        devices: its devices.
        absent: why it has no device.
        error: why it cannot be imported or probed.
    """

    version: str
    fingerprint: Mapping[str, str] = {}
    group_size: int = 1
    lowers: bool = False
    target: str = ""
    devices: tuple[Device, ...] = ()
    absent: Absence | None = None
    error: Fault | None = None


ARCHITECTURES = tuple(
    f"sm_{number}{letter}"
    for number, letters in (
        *((number, ("",)) for number in (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89)),
        (90, ("", "a")),
        *((number, ("", "a", "f")) for number in (100, 101, 103, 107, 110, 120, 121)),
    )
    for letter in letters
)
"""NVIDIA's architectures. With ``a``, code runs on that architecture alone; with ``f``, on its family."""


_NEWEST = 121


def is_architecture(target: str) -> bool:
    """Return whether an architecture exists, or may come to exist: its number is larger than all known ones."""
    parts = re.fullmatch(r"sm_(\d+)[af]?", target)
    return target in ARCHITECTURES or (parts is not None and int(parts[1]) > _NEWEST)
