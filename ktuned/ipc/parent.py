"""Ties of a process to the one that started it, set by the process itself: two calls of Linux's ``prctl``.

Short, because workers, the bridge and the daemon share it, and nothing else belongs with it.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(pid: int) -> None:
    """Have the kernel kill this process when ``pid``, its parent, ends; at once if it has ended.

    The kernel follows the *thread* that started this process: it must live as long as its process does.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != pid:
        # It ended before the call.
        os._exit(1)


def adopt_descendants() -> None:
    """Become the parent of every descendant whose own parent dies, from now on."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
