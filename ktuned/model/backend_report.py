"""The result of a probe of one backend in an interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ktuned.model.device import Device


class Absence(msgspec.Struct, frozen=True):
    """Why a backend has no device: the reason's name, one line about it, and a command that helps."""

    reason: str
    message: str
    hint: str = ""


class Fault(msgspec.Struct, frozen=True):
    """An error as data: its code, one line, and the remedy."""

    code: str
    message: str
    hint: str = ""


class BackendReport(msgspec.Struct, frozen=True):
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
    fingerprint: Mapping[str, str] = msgspec.field(default_factory=dict)
    group_size: int = 1
    lowers: bool = False
    target: str = ""
    devices: tuple[Device, ...] = ()
    absent: Absence | None = None
    error: Fault | None = None
