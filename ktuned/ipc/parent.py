"""How a process binds its life to its parent's, or its descendants' to its own: two calls of Linux's ``prctl``."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with(pid: int) -> None:
    """Have Linux kill this process when its parent, ``pid``, ends; end at once if it has ended already.

    Linux follows the parent's *thread* that started this process: it must live as long as the parent.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != pid:
        # The parent ended before the call.
        os._exit(1)


def adopt_descendants() -> None:
    """Become the parent of every descendant whose own parent dies, from now on."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
