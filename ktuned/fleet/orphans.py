"""What a dead worker's code left running without its mark: as their subreaper, a daemon becomes their parent.

A worker is the subreaper of what it starts, and the daemon is that of its workers: whatever detaches itself, throws its
environment away and outlives its worker ends as a child of the daemon, who knows all children of its own.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
from collections.abc import Collection
from contextlib import suppress

_PR_SET_CHILD_SUBREAPER = 36
_REAP_S = 1.0


def adopt() -> None:
    """Become the parent of every descendant whose own parent dies, from now on."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> set[int]:
    """Return our children, the adopted ones too; none where the kernel does not tell (``CONFIG_PROC_CHILDREN``)."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/children", encoding="ascii") as stream:
            found.update(map(int, stream.read().split()))
    return found


def end(pids: Collection[int]) -> None:
    """SIGKILL children that nobody else waits for, and take their exit codes. Blocks until they are gone."""
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with suppress(OSError):
            descriptor = os.pidfd_open(pid)
            try:
                select.select([descriptor], [], [], _REAP_S)
            finally:
                os.close(descriptor)
            os.waitpid(pid, os.WNOHANG)
