"""How soon Linux runs the daemon when it has something to answer: before the compilers that it fills the cores with.

A task that asks for short slices may cut in on one with longer ones when it wakes, and gets no more of the core for it
(https://docs.kernel.org/scheduler/sched-eevdf.html; Linux 6.12 and newer, older ones take the wish and ignore it).
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct

import structlog

SLICE_NS = 100_000
"""The shortest that Linux grants; a lookup takes a third of it."""

_SYSCALLS = {"x86_64": 314, "aarch64": 274}
"""sched_setattr(2), which the C library has only since glibc 2.41."""

_RESET_ON_FORK = 0x01

_log = structlog.get_logger()


@functools.cache
def ask_for_short_slices() -> bool:
    """Ask for :data:`SLICE_NS` for the thread that calls first, not for what it starts; tell whether that was heard.

    Worth it only to who is asked: cutting in on a worker that has more to tell costs a trial some 7 % more.
    """
    number = _SYSCALLS.get(os.uname().machine)
    policy = os.sched_getscheduler(0)
    if number is None or policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        return False
    # struct sched_attr (linux/sched/types.h): size, policy, flags, nice, priority, runtime, deadline, period.
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack("=IIQiIQQQ", 48, policy, _RESET_ON_FORK, nice, 0, SLICE_NS, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, 0, attributes, 0):
        _log.debug("no_short_slices", reason=os.strerror(ctypes.get_errno()))
        return False
    return True
