"""The CPU as a device: its model, its target for ``-march=native``, its flags, its time."""

from __future__ import annotations

import functools
import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from ktuned.model import Device, DeviceModel, DeviceName, Target

CPUINFO = Path("/proc/cpuinfo")
STAT = Path("/proc/stat")

TARGET_PREFIX = "native-"
"""Prefix of the targets of CPUs, and of no other device."""


class CpuTicks(NamedTuple):
    """CPU time of the machine since boot, in ticks of all CPUs together, by the kinds of ``/proc/stat`` (proc(5))."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int
    irq: int
    softirq: int
    steal: int

    @property
    def total(self) -> int:
        """All time."""
        return sum(self)

    @property
    def unused(self) -> int:
        """Time in which no program ran."""
        return self.idle + self.iowait

    def since(self, earlier: CpuTicks) -> CpuTicks:
        """Return the time that passed since an earlier reading."""
        return CpuTicks(*(now - before for now, before in zip(self, earlier, strict=True)))


def read_ticks(path: Path = STAT) -> CpuTicks | None:
    """Return the machine's CPU time; ``None`` where the kernel does not report it."""
    try:
        words = path.read_text().partition("\n")[0].split()
        return CpuTicks(*map(int, words[1 : 1 + len(CpuTicks._fields)]))
    except (OSError, ValueError, TypeError):
        return None


def device() -> Device:
    """Return ``cpu:0``; its model has the CPU's name and the number of cores, as both decide which config wins."""
    name, flags = _identity()
    cores = os.cpu_count() or 1
    return Device(
        DeviceName("cpu:0"),
        DeviceModel(f"{name} ({cores} core{'s' if cores > 1 else ''})"),
        Target(target()),
        {"arch": os.uname().machine, "cpu_flags": _short_hash(flags)},
    )


def target() -> str:
    """Return the name of the target of ``-march=native`` here."""
    return f"{TARGET_PREFIX}{_short_hash(' '.join(_identity()))}"


@functools.cache
def _identity() -> tuple[str, str]:
    """Return the first CPU's model name and feature flags (proc(5); ARM says ``Features``)."""
    fields: dict[str, str] = {}
    try:
        text = CPUINFO.read_text()
    except OSError:
        text = ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or os.uname().machine
    return name, fields.get("flags") or fields.get("Features") or ""


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
