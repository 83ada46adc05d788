"""The CPU as a device: its model, its target for ``-march=native``, how many cores may be used, and its CPU time."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ktuned.model import Device, DeviceModel, DeviceName, Target

CPUINFO = Path("/proc/cpuinfo")
STAT = Path("/proc/stat")
CGROUP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")

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
        """All ticks, busy or idle."""
        return sum(self)

    @property
    def unused(self) -> int:
        """Time in which no program ran."""
        return self.idle + self.iowait

    def since(self, earlier: CpuTicks) -> CpuTicks:
        """Return the time that passed since an earlier reading."""
        return CpuTicks(*(now - before for now, before in zip(self, earlier, strict=True)))


def read_ticks(path: Path = STAT) -> CpuTicks | None:
    """Return the machine's CPU time; ``None`` if Linux does not report it."""
    try:
        words = path.read_text().partition("\n")[0].split()
        return CpuTicks(*map(int, words[1 : 1 + len(CpuTicks._fields)]))
    except (OSError, ValueError, TypeError):
        return None


def device() -> Device:
    """Return ``cpu:0``; its model has the CPU's name and number of cores, because both decide which config wins."""
    name, flags = _read_identity()
    cores = os.cpu_count() or 1
    return Device(
        DeviceName("cpu:0"),
        DeviceModel(f"{name} ({cores} core{'s' if cores > 1 else ''})"),
        Target(target()),
        {"arch": os.uname().machine, "cpu_flags": _short_hash(flags)},
    )


def target() -> str:
    """Return the target for ``-march=native`` on this machine."""
    return f"{TARGET_PREFIX}{_short_hash(' '.join(_read_identity()))}"


def limits(cgroup: Path = CGROUP, mounted: Path = CGROUPS) -> dict[str, str]:
    """Return the limits that keep this process from using all cores: its affinity, and its control groups' CPU quota.

    It is empty without limits. ``cgroup`` is ``/proc/self/cgroup``, ``mounted`` the directory of control groups.
    """
    restrictions = {}
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < (os.cpu_count() or 1):
        restrictions["affinity"] = ",".join(map(str, allowed))
    quota = _find_quota(cgroup, mounted)
    if quota is not None:
        restrictions["quota"] = f"{quota:g} cores"
    return restrictions


def cores() -> int:
    """Return how many cores this process can keep busy, by its affinity and its quota."""
    allowed = len(os.sched_getaffinity(0))
    quota = _find_quota(CGROUP, CGROUPS)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def memory_bytes(cgroup: Path = CGROUP, mounted: Path = CGROUPS) -> int:
    """Return how much memory this process may use: the machine's, or less by a limit of its control groups."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min([machine, *_read_groups(cgroup, mounted, "memory", _read_memory_v2, _read_memory_v1)]))


def _find_quota(cgroup: Path, mounted: Path) -> float | None:
    """Return the smallest quota, in cores, of this process's control groups and their parents."""
    return min(_read_groups(cgroup, mounted, "cpu", _read_quota_v2, _read_quota_v1), default=None)


def _read_groups(
    cgroup: Path,
    mounted: Path,
    controller: str,
    read_v2: Callable[[Path], list[float]],
    read_v1: Callable[[Path], list[float]],
) -> list[float]:
    """Return a controller's limits for this process's control groups and their parents."""
    try:
        lines = cgroup.read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # In version 1 each controller has its own tree (cgroups(7)); `cpu` is a link to `cpu,cpuacct`.
        tree, read = (mounted / controller, read_v1) if controllers else (mounted, read_v2)
        own_group = tree / name.lstrip("/")
        # In a container, the own group may be mounted as the root, although its name is that from outside.
        for group in (own_group, *own_group.parents):
            if not group.is_relative_to(tree):
                break
            with suppress(OSError, ValueError, ZeroDivisionError):
                found += read(group)
    return found


def _read_quota_v2(group: Path) -> list[float]:
    granted, period = (group / "cpu.max").read_text().split()
    return [] if granted == "max" else [int(granted) / int(period)]


def _read_quota_v1(group: Path) -> list[float]:
    granted = int((group / "cpu.cfs_quota_us").read_text())
    return [] if granted < 0 else [granted / int((group / "cpu.cfs_period_us").read_text())]


def _read_memory_v2(group: Path) -> list[float]:
    # Without a limit it says "max", which is no number.
    return [int((group / "memory.max").read_text())]


def _read_memory_v1(group: Path) -> list[float]:
    return [int((group / "memory.limit_in_bytes").read_text())]


@functools.cache
def _read_identity() -> tuple[str, str]:
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
