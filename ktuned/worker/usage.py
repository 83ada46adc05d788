"""Who else uses this machine's GPUs, as NVML tells it: asked in a worker, because a driver may hang."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterable
from typing import Any

RECENT_US = 5_000_000
"""Work that is older than this says nothing about now; NVML keeps some seconds of samples."""

_SUCCESS = 0
_UUID_BYTES = 16


def gpu_users(ours: Iterable[int]) -> dict[str, Any]:
    """Return ``users``: how many processes that are not ``ours`` had work on each device lately (``cuda:0``), by name.

    A process that cannot be seen from here (of another PID namespace) is not counted: it may as well be ours.
    ``absence`` says why nothing could be told.
    """
    try:
        import pynvml
    except ImportError:
        return {"users": {}, "absence": "nvidia-ml-py is not installed"}
    known = set(ours)
    users = {}
    try:
        pynvml.nvmlInit()
        try:
            for name, uuid in _uuids().items():
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
                users[name] = len({pid for pid in _at_work(pynvml, handle) if _is_another(pid, known)})
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return {"users": {}, "absence": f"NVML: {error}"}
    return {"users": users, "absence": ""}


def _at_work(nvml: Any, handle: Any) -> list[int]:
    since = time.time_ns() // 1000 - RECENT_US
    try:
        samples = nvml.nvmlDeviceGetProcessUtilization(handle, since)
    except (nvml.NVMLError_NotFound, nvml.NVMLError_NotSupported):
        # Nobody had work, or the device (a partition of one) does not tell.
        return []
    return [sample.pid for sample in samples if sample.smUtil > 0 and sample.timeStamp > since]


def _is_another(pid: int, ours: set[int]) -> bool:
    return pid not in ours and os.path.exists(f"/proc/{pid}")


def _uuids() -> dict[str, str]:
    """Return the GPUs that this process may use, by the name that ktuned gives them, as the driver identifies them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    count = ctypes.c_int()
    if driver.cuInit(0) != _SUCCESS or driver.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return {}
    found = {}
    for index in range(count.value):
        device = ctypes.c_int()
        raw = (ctypes.c_ubyte * _UUID_BYTES)()
        if driver.cuDeviceGet(ctypes.byref(device), index) == _SUCCESS and (
            driver.cuDeviceGetUuid(raw, device) == _SUCCESS
        ):
            digits = bytes(raw).hex()
            parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
            found[f"cuda:{index}"] = f"GPU-{'-'.join(parts)}"
    return found
