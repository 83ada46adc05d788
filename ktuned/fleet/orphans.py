"""Orphans: detached descendants of dead workers, which are re-parented to the daemon.

A worker is the subreaper of its descendants, and the daemon that of its workers. A process that detaches, clears its
environment and outlives its worker becomes a child of the daemon, which kills any child that it did not start.

A module of its own: nothing else of the executor needs /proc or signals of processes that it did not start.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Collection
from contextlib import suppress

_REAP_S = 1.0


def children() -> set[int]:
    """Return our children, adopted ones too; none where the kernel lists none (without ``CONFIG_PROC_CHILDREN``)."""
    found: set[int] = set()
    for thread in os.listdir("/proc/self/task"):
        with suppress(OSError), open(f"/proc/self/task/{thread}/children", encoding="ascii") as stream:
            found.update(map(int, stream.read().split()))
    return found


def end(pids: Collection[int]) -> None:
    """SIGKILL orphans and reap them. Blocks until they are gone."""
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
