"""Applications that work on a GPU while ktuned tunes there.

An application that asks for a tuning and continues meanwhile names its process. While it lives and works on a GPU,
lanes there take little of its time (:mod:`~ktuned.fleet.device_share`), and only as much memory as is free
(``ktuned.checking.free_memory``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ktuned.model import Device

MAX_APPLICATIONS = 1000
"""Living processes that are remembered at once."""


def read_process_identity(pid: int) -> str:
    """Return the start time of a process, which tells it from a later process with the same id; empty if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
        return fields.split()[19]
    except (OSError, UnicodeDecodeError, IndexError):
        return ""


class Applications:
    """The processes of applications, while they live.

    Args:
        identity: Returns a text that tells a process from a later one with the same id; empty if there is no process.
    """

    def __init__(self, identity: Callable[[int], str] = read_process_identity) -> None:
        self._identity = identity
        self._known: dict[int, str] = {}

    def add_process(self, pid: int) -> None:
        """Remember a process, unless it has ended already."""
        identity = self._identity(pid)
        if identity and pid != os.getpid() and len(self.list_living()) < MAX_APPLICATIONS:
            self._known[pid] = identity

    def list_living(self) -> tuple[int, ...]:
        """Return the ids of the processes that are still alive."""
        self._known = {pid: identity for pid, identity in self._known.items() if self._identity(pid) == identity}
        return tuple(self._known)

    def list_on_device(self, device: Device) -> tuple[int, ...]:
        """Return the living processes that may be at work on a device: all of them if it is a GPU of this machine, none
        otherwise.
        """
        return self.list_living() if device.kind == "cuda" and not device.host else ()
