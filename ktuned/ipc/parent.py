"""Two uses of Linux's ``prctl``: to end a process with its parent, and to adopt descendants whose parents die."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(pid: int) -> None:
    """Make Linux kill this process when its parent, ``pid``, ends. If the parent has ended already, exit at once.

    Linux watches the *thread* that started this process, so that thread must live as long as the parent.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != pid:
        # The parent ended before the call.
        os._exit(1)


def adopt_descendants() -> None:
    """Become the parent of every descendant whose own parent dies, from now on."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
