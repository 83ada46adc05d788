"""Journal of a worker's request: the phases that it has entered, and the items that it holds back.

A file in memory that daemon and worker have open. A message for each phase would wake the daemon half a dozen times in
a trial that takes milliseconds; the journal is read only when a deadline may have passed, or the worker has died.
It is written and read by system calls and never mapped, so that a kernel's wild writes do not hit it, and that neither
side faults when the other one cuts it short.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from time import monotonic

from ktuned.model import Phase

JOURNAL_VARIABLE = "KTUNED_JOURNAL"
"""The variable that gives a worker its journal's file descriptor; it is none of user code's environment."""

_ENTRY = struct.Struct("<16sdI4x")
_ENTRIES = 32
"""The latest phases that are kept: a trial has six."""

_HELD = struct.Struct("<III4x")
_HELD_AT = _ENTRIES * _ENTRY.size
_ITEMS_AT = _HELD_AT + _HELD.size

MAX_HELD_BYTES = 32 * 1024
"""Bytes of items that are held back, some 30 measurements: half of what a pipe takes without a reader."""


@dataclass(frozen=True, slots=True)
class Entered:
    """A phase that was entered, by the clock that all processes of a machine share."""

    phase: Phase
    at: float


@dataclass(frozen=True, slots=True)
class Held:
    """Items that were not sent yet: their frames, and the number of the first one among all of the request."""

    first: int
    frames: bytes


class Journal:
    """One side's view of a journal. The daemon begins each request, the worker writes on."""

    def __init__(self, descriptor: int, *, clock: Callable[[], float] = monotonic) -> None:
        self.descriptor = descriptor
        self._clock = clock
        self._request = 0
        self._entries = 0
        self._first = 0
        self._held = 0

    @classmethod
    def create(cls, *, clock: Callable[[], float] = monotonic) -> Journal:
        """Make a new one, which no child inherits unless it is passed on.

        Raises:
            OSError: there is no memory for it, or no file may be written; later no write can fail for want of memory.
        """
        descriptor = os.memfd_create("ktuned-journal", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, _ITEMS_AT + MAX_HELD_BYTES)
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor, clock=clock)

    def begin(self, request: int, phase: Phase) -> None:
        """Begin a request by its number; what was written for another one is void."""
        self._request = request
        os.pwrite(self.descriptor, _ENTRY.pack(phase.encode(), self._clock(), request), 0)

    def follow(self) -> None:
        """Go on with the request that the other side has begun."""
        _, _, self._request = _ENTRY.unpack(os.pread(self.descriptor, _ENTRY.size, 0).ljust(_ENTRY.size, b"\0"))
        self._entries = self._first = self._held = 0

    def enter(self, phase: Phase) -> None:
        """Note in the journal that a phase begins now."""
        self._entries += 1
        # The first place is the request's beginning.
        place = 1 + (self._entries - 1) % (_ENTRIES - 1)
        entry = _ENTRY.pack(phase.encode(), self._clock(), self._request)
        os.pwrite(self.descriptor, entry, place * _ENTRY.size)

    def hold(self, frame: bytes) -> None:
        """Write down an item that is sent later."""
        os.pwrite(self.descriptor, frame, _ITEMS_AT + self._held)
        self._held += len(frame)
        self._write_held()

    def sent(self, items: int) -> None:
        """Write down that so many items, those that were held among them, have been sent."""
        self._first += items
        if self._held:
            self._held = 0
            self._write_held()

    def _write_held(self) -> None:
        os.pwrite(self.descriptor, _HELD.pack(self._request, self._first, self._held), _HELD_AT)

    def read(self) -> tuple[list[Entered], Held]:
        """Return the phases of the request under way in their order, and what is held; empty where that is nonsense.

        Code that runs in the worker may have written anything.
        """
        data = os.pread(self.descriptor, _ITEMS_AT + MAX_HELD_BYTES, 0)
        if len(data) < _ENTRY.size:
            return [], Held(0, b"")
        found = []
        for name, at, request in _ENTRY.iter_unpack(data[: min(len(data), _HELD_AT) // _ENTRY.size * _ENTRY.size]):
            phase = _PHASES.get(name)
            if request == self._request and phase is not None and isfinite(at):
                found.append(Entered(phase, at))
        found.sort(key=_time)
        return found, self._read_held(data)

    def _read_held(self, data: bytes) -> Held:
        if len(data) < _ITEMS_AT:
            return Held(0, b"")
        request, first, size = _HELD.unpack_from(data, _HELD_AT)
        return Held(first, data[_ITEMS_AT : _ITEMS_AT + size] if request == self._request else b"")

    def close(self) -> None:
        """Close this side's file descriptor."""
        os.close(self.descriptor)


def _time(entered: Entered) -> float:
    return entered.at


_PHASES = {phase.encode().ljust(16, b"\0"): phase for phase in Phase}
