"""Whether somebody else used the device while a kernel was timed.

On the CPU: ktuned's own compile workers are niced, and the kernel counts niced time apart, so what is neither idle,
niced nor this process's own is somebody else's. On a GPU: NVML says which processes had work on it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

CONTENDED_SHARE = 0.6
"""Share of all CPU time that others must take, with none left idle, before a timing is thrown away.

One busy neighbour on two cores takes half and leaves a core to a single-threaded kernel; two take two thirds.
"""

IDLE_SHARE = 0.05
MIN_WINDOW_TICKS = 20
"""Shorter windows are not judged: the kernel counts CPU time in ticks of 10 ms."""

_USER, _NICE, _SYSTEM, _IDLE, _IOWAIT, _IRQ, _SOFTIRQ, _STEAL = range(8)


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """CPU seconds since boot, as ticks: the machine's by kind, and this process's own."""

    machine: tuple[int, ...]
    own: float

    @classmethod
    def now(cls) -> Self:
        """Read ``/proc/stat`` (proc(5)) and this process's times."""
        with open("/proc/stat", encoding="ascii") as stream:
            fields = stream.readline().split()[1:9]
        own = os.times()
        return cls(tuple(int(word) for word in fields), (own.user + own.system) * os.sysconf("SC_CLK_TCK"))


def is_contended(before: CpuTimes, after: CpuTimes) -> bool:
    """Tell whether between two readings others took the CPUs that the kernel needed."""
    delta = [later - earlier for earlier, later in zip(before.machine, after.machine, strict=True)]
    total = sum(delta)
    if total < MIN_WINDOW_TICKS:
        return False
    busy = delta[_USER] + delta[_SYSTEM] + delta[_IRQ] + delta[_SOFTIRQ] + delta[_STEAL]
    others = busy - (after.own - before.own)
    idle = delta[_IDLE] + delta[_IOWAIT]
    return idle / total < IDLE_SHARE and others / total > CONTENDED_SHARE


class CpuWatch:
    """Watches the CPUs from its making on."""

    def __init__(self) -> None:
        self._before = CpuTimes.now()

    def is_contended(self) -> bool:
        """Tell whether others took the CPUs since."""
        return is_contended(self._before, CpuTimes.now())


NOT_INSTALLED = "nvidia-ml-py is not installed (pip install nvidia-ml-py)"
FOREIGN_PIDS = "NVML names processes of another PID namespace (run the container with --pid=host)"


def nvml_absence() -> str:
    """Return why NVML cannot be asked here who uses the GPUs, or nothing if it can."""
    try:
        import pynvml
    except ImportError:
        return NOT_INSTALLED
    try:
        pynvml.nvmlInit()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return f"NVML: {error}"
    return ""


@cache
def _gpu(uuid: str) -> tuple[Any, str]:
    """Return NVML's handle of a GPU on which this process has a context, and why it cannot be judged, if it cannot."""
    try:
        import pynvml
    except ImportError:
        return None, NOT_INSTALLED
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}".encode())
        users = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    # Own work would be taken for somebody else's.
    return handle, "" if os.getpid() in users else FOREIGN_PIDS


class GpuWatch:
    """Watches one GPU, on which this process has a context, from its making on.

    Without NVML nothing is judged, and :attr:`absence` says why.
    """

    def __init__(self, uuid: str) -> None:
        self._handle, self.absence = _gpu(uuid)
        if self.absence:
            return
        import pynvml

        self._nvml = pynvml
        try:
            self._since = max((sample.timeStamp for sample in self._samples(0)), default=0)
        except pynvml.NVMLError as error:
            self.absence = f"NVML: {error}"

    def _samples(self, since: int) -> list[Any]:
        try:
            found: list[Any] = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, since)
        except self._nvml.NVMLError_NotFound:
            # Nobody had work on the device.
            return []
        return found

    def is_contended(self) -> bool:
        """Tell whether another process kept the device busy since."""
        if self.absence:
            return False
        try:
            return any(
                sample.pid not in (0, os.getpid()) and sample.smUtil > 0 for sample in self._samples(self._since)
            )
        except self._nvml.NVMLError as error:
            self.absence = f"NVML: {error}"
            return False
