"""Use of this machine, read from /proc and /sys: CPU time of other programs, CPU pressure, the power supply."""

from __future__ import annotations

import os
from pathlib import Path

from ktuned.backends import read_ticks
from ktuned.model import FrozenStruct

_TIME_FIELDS = slice(11, 15)
"""``utime stime cutime cstime`` of /proc/PID/stat, counted behind the name in parentheses."""


class CpuUse(FrozenStruct):
    """CPU time since boot, in ticks, summed over all CPUs.

    Attributes:
        total: All time.
        busy: Time in which a CPU was not idle.
        own: Time that our processes used.
        stalled_us: How long any task has waited for a CPU, in µs; ``None`` if Linux does not report it.
        at_us: When this was read, in µs of the caller's clock.
    """

    total: int
    busy: int
    own: int
    stalled_us: int | None
    at_us: int

    def share_of_others_since(self, earlier: CpuUse) -> float:
        """Return the share of all CPUs that others used since ``earlier``, 0 … 1."""
        total = self.total - earlier.total
        others = (self.busy - earlier.busy) - (self.own - earlier.own)
        return min(1.0, max(0.0, others / total)) if total > 0 else 0.0

    def pressure_since(self, earlier: CpuUse) -> float | None:
        """Return the share of the time since ``earlier`` in which some task waited for a CPU."""
        passed_us = self.at_us - earlier.at_us
        if self.stalled_us is None or earlier.stalled_us is None or passed_us <= 0:
            return None
        return min(1.0, max(0.0, (self.stalled_us - earlier.stalled_us) / passed_us))


class Usage:
    """Reads the use of a machine whose /proc and /sys are below ``root``; ``pid`` and its descendants are ours."""

    def __init__(self, root: Path = Path("/"), pid: int | None = None) -> None:
        self._root = root
        self._pid = os.getpid() if pid is None else pid

    def read_cpu_use(self, at_us: int) -> CpuUse | None:
        """Return the use of the CPUs now (``at_us`` by the caller's clock, in µs); ``None`` if there is no /proc."""
        ticks = read_ticks(self._root / "proc/stat")
        if ticks is None:
            return None
        return CpuUse(ticks.total, ticks.total - ticks.unused, self._read_own_ticks(), self._read_stalled_us(), at_us)

    def is_on_battery(self) -> bool:
        """Return whether the machine runs on its battery; a mouse's battery (scope ``Device``) does not count."""
        for supply in (self._root / "sys/class/power_supply").glob("*"):
            kind, scope, status = (_read_text(supply / name) for name in ("type", "scope", "status"))
            if kind == "Battery" and scope != "Device" and status == "Discharging":
                return True
        return False

    def list_own_pids(self) -> set[int]:
        """Return the ids of our processes: the daemon, its workers, their descendants."""
        found: set[int] = set()
        waiting = [self._pid]
        while waiting:
            pid = waiting.pop()
            if pid in found:
                continue
            found.add(pid)
            for thread in (self._root / f"proc/{pid}/task").glob("*"):
                waiting += map(int, _read_text(thread / "children").split())
        return found

    def _read_own_ticks(self) -> int:
        """Return the ticks that our processes used, including ended children, whose ticks their parents inherit."""
        ticks = 0
        for pid in self.list_own_pids():
            _, _, fields = _read_text(self._root / f"proc/{pid}/stat").rpartition(")")
            ticks += sum(map(int, fields.split()[_TIME_FIELDS]))
        return ticks

    def _read_stalled_us(self) -> int | None:
        """Return the ``some`` total of the CPU pressure (Documentation/accounting/psi.rst of Linux)."""
        for line in _read_text(self._root / "proc/pressure/cpu").splitlines():
            kind, *pairs = line.split()
            values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            if kind == "some" and values.get("total", "").isdigit():
                return int(values["total"])
        return None


def _read_text(path: Path) -> str:
    """Return a small file's text; empty if it is gone or not readable."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
