"""Sharing a GPU with applications that are at work on it: which they are, and when a lane may use it again.

An application that asks for a tuning and goes on meanwhile names its process. While it lives and works on a GPU, lanes
there use at most a tenth of the time, and only as much memory as is free (``ktuned.worker.room``).
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Final

import anyio

from ktuned.model import Device

DUTY: Final = 0.1
"""Share of the time that a lane may use a GPU beside an application: a training step takes a tenth longer at most."""

LOOK_S: Final = 2.0
"""Interval at which a lane that waits for its turn looks whether the application rests or has ended."""

LINGER_S: Final = 10.0
"""Time that idle workers keep their contexts beside an application: the next key's job often follows at once."""

MAX_APPLICATIONS: Final = 1000
"""Processes that are remembered; those that ended make room."""


def process_identity(pid: int) -> str:
    """Return the start time of a process, by which its number is not taken for a later one; empty without it."""
    try:
        behind = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
        return behind.split()[19]
    except (OSError, UnicodeDecodeError, IndexError):
        return ""


class Applications:
    """The processes that work on GPUs while their tunings go on."""

    def __init__(self, identity: Callable[[int], str] = process_identity) -> None:
        self._identity = identity
        self._known: dict[int, str] = {}

    def note(self, pid: int) -> None:
        """Remember a process; one that has ended already is none."""
        identity = self._identity(pid)
        if identity and pid != os.getpid() and len(self.present()) < MAX_APPLICATIONS:
            self._known[pid] = identity

    def present(self) -> tuple[int, ...]:
        """Return those that live."""
        self._known = {pid: identity for pid, identity in self._known.items() if self._identity(pid) == identity}
        return tuple(self._known)


class Duty:
    """The time that a lane must leave a device alone, so that its own use stays within a share. No IO."""

    def __init__(self, share: float = DUTY) -> None:
        self._share = share
        self._free_at = 0.0

    def used(self, began: float, ended: float) -> None:
        """Note a use; times in s, of one clock."""
        self._free_at = max(self._free_at, began) + (ended - began) / self._share

    def wait_s(self, now: float) -> float:
        """Return how long the device is to be left alone from now on."""
        return max(0.0, self._free_at - now)


class Courtesy:
    """Turns of lanes on GPUs that applications use.

    ``is_waited_for`` says whether a client waits for a job: that one takes its turns at once. ``is_used`` says whether
    another program works on a device now; where that is unknown, it does.
    """

    def __init__(
        self,
        applications: Applications | None = None,
        *,
        is_waited_for: Callable[[int], bool] = lambda job: False,
        is_used: Callable[[Device], Awaitable[bool]] | None = None,
        clock: Callable[[], float] = monotonic,
        look_s: float = LOOK_S,
    ) -> None:
        self.applications = Applications() if applications is None else applications
        self._is_waited_for = is_waited_for
        self._is_used = is_used
        self._clock = clock
        self._look_s = look_s
        self._duties: dict[str, Duty] = {}

    def is_shared(self, device: Device) -> bool:
        """Return whether an application may be at work on a device: on one of this machine."""
        return device.kind == "cuda" and not device.host and bool(self.applications.present())

    def pids(self, device: Device) -> tuple[int, ...]:
        """Return the applications that may be at work on a device."""
        return self.applications.present() if device.kind == "cuda" and not device.host else ()

    async def turn(self, device: Device, job: int) -> None:
        """Wait until a job may use a device."""
        duty = self._duties.get(device.name)
        while duty is not None and (wait_s := duty.wait_s(self._clock())) > 0:
            if not self.is_shared(device) or self._is_waited_for(job):
                return
            if self._is_used is not None and not await self._is_used(device):
                return
            await anyio.sleep(min(wait_s, self._look_s))

    def used(self, device: Device, began: float, ended: float) -> None:
        """Note that a lane has used a device."""
        if self.is_shared(device):
            self._duties.setdefault(device.name, Duty()).used(began, ended)
        else:
            self._duties.pop(device.name, None)
