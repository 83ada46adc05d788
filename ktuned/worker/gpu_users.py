"""Counts the processes that use each GPU, for the idle policy."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from ktuned.backends import gpu_uuids, nvml
from ktuned.ipc import replies

RECENT_US = 5_000_000
"""Age in µs up to which GPU work counts as current; NVML keeps some seconds of samples."""


def count_gpu_users(ours: Iterable[int]) -> replies.GpuUsers:
    """Count the processes, other than ``ours``, that worked on each GPU lately, by the GPU's name.

    Processes of another PID namespace are not counted: they may be ours.
    """
    own_pids = set(ours)
    since_us = time.time_ns() // 1000 - RECENT_US
    try:
        users = {name: len(_find_working_pids(uuid, since_us) - own_pids) for name, uuid in gpu_uuids().items()}
    except nvml.Unavailable as error:
        return replies.GpuUsers({}, str(error))
    # Without GPUs, NVML has not been asked yet, so ask why.
    return replies.GpuUsers(users, "" if users else nvml.absence())


def _find_working_pids(uuid: str, since_us: int) -> set[int]:
    try:
        with nvml.Gpu(uuid) as gpu:
            samples = gpu.samples(since_us)
    except nvml.Unsupported:
        # A partition of a GPU does not report its processes.
        return set()
    pids = {sample.pid for sample in samples if sample.percent > 0 and sample.at_us > since_us}
    return {pid for pid in pids if os.path.exists(f"/proc/{pid}")}
