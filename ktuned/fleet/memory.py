"""How much memory a worker and what it started use, and how much they may."""

from __future__ import annotations

import os
import resource

PAGE_BYTES = resource.getpagesize()


def total_bytes() -> int:
    """Return the machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES


def default_limits(slots: int) -> tuple[int, int]:
    """Return how many bytes a bench worker and a compile worker may use: together never more than the machine has."""
    half = total_bytes() // 2
    return half, max(2 << 30, half // slots)


def tree_bytes(pid: int) -> int:
    """Return the resident memory of a process and its descendants; 0 for one that is gone."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as stream:
            own = int(stream.read().split()[1]) * PAGE_BYTES
        children = []
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as stream:
                children += stream.read().split()
    except (OSError, IndexError):
        return 0
    return own + sum(tree_bytes(int(child)) for child in children)
