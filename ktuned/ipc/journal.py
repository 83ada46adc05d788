"""The journal of a worker's request: the phases that the request has entered, the items that are held back, and the
memory fault of which the worker died.

The journal is a file in memory that both the daemon and the worker have open. Messages for each phase would wake the
daemon half a dozen times in a trial of a few milliseconds. The daemon only reads the journal when a deadline may have
passed, or the worker has died.

The journal is read and written by system calls and never mapped. So a kernel's wild writes cannot hit it, and no side
faults when the other truncates it. The worker runs other people's code, which may write anything. So each entry carries
its request's number, and nonsense is read as an empty journal.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from math import isfinite
from operator import attrgetter
from time import monotonic

from ktuned.model import FrozenStruct, Phase

JOURNAL_VARIABLE = "KTUNED_JOURNAL"
"""The variable that gives a worker the file descriptor of its journal; user code does not see it."""

_ENTRY = struct.Struct("<16sdI4x")
_ENTRIES = 32
"""Number of entries, for the latest phases; a trial has six."""

_HELD = struct.Struct("<III4x")
_HELD_AT = _ENTRIES * _ENTRY.size
_ITEMS_AT = _HELD_AT + _HELD.size

MAX_HELD_BYTES = 32 * 1024
"""Most bytes of items that are held back: some 30 measurements, and half of what a pipe takes without a reader."""

FAULT_AT = _ITEMS_AT + MAX_HELD_BYTES
"""Place of the fault that has ended the worker, in words. The observer's library writes it (``observer.c``)."""

_FAULT_BYTES = 256


class PhaseEntry(FrozenStruct):
    """A phase and the time at which it was entered, by the clock that all processes of a machine share."""

    phase: Phase
    at: float


class HeldItems(FrozenStruct):
    """Items that were not sent yet: their frames, and the number of the first one among the request's items."""

    first: int
    frames: bytes


class Journal:
    """One side's view of a journal: the daemon begins each request, and the worker records its progress."""

    def __init__(self, descriptor: int, *, clock: Callable[[], float] = monotonic) -> None:
        self.descriptor = descriptor
        self._clock = clock
        self._request = 0
        self._entry_count = 0
        self._sent_count = 0
        self._held_bytes = 0

    @classmethod
    def create(cls, *, clock: Callable[[], float] = monotonic) -> Journal:
        """Make a new journal, which no child inherits unless it is passed on.

        All its memory is allocated now, so that no later write can fail.

        Raises:
            OSError: there is no memory for it, or no file may be written.
        """
        descriptor = os.memfd_create("ktuned-journal", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(descriptor, 0, FAULT_AT + _FAULT_BYTES)
        except OSError:
            os.close(descriptor)
            raise
        return cls(descriptor, clock=clock)

    def begin_request(self, request: int, phase: Phase) -> None:
        """Begin the request with this number, on the daemon's side; entries of other requests no longer count."""
        self._request = request
        os.pwrite(self.descriptor, _ENTRY.pack(phase.encode(), self._clock(), request), 0)

    def follow_request(self) -> None:
        """Take over the request that the daemon has begun, on the worker's side."""
        _, _, self._request = _ENTRY.unpack(os.pread(self.descriptor, _ENTRY.size, 0).ljust(_ENTRY.size, b"\0"))
        self._entry_count = self._sent_count = self._held_bytes = 0

    def enter_phase(self, phase: Phase) -> None:
        """Record that a phase begins now."""
        self._entry_count += 1
        # The first entry is the daemon's. The others are overwritten, the oldest first.
        place = 1 + (self._entry_count - 1) % (_ENTRIES - 1)
        entry = _ENTRY.pack(phase.encode(), self._clock(), self._request)
        os.pwrite(self.descriptor, entry, place * _ENTRY.size)

    def hold_item(self, frame: bytes) -> None:
        """Record the frame of an item that will be sent later."""
        os.pwrite(self.descriptor, frame, _ITEMS_AT + self._held_bytes)
        self._held_bytes += len(frame)
        self._write_held()

    def record_sent(self, items: int) -> None:
        """Record that this many items of the request have been sent, including all held ones."""
        self._sent_count += items
        if self._held_bytes:
            self._held_bytes = 0
            self._write_held()

    def _write_held(self) -> None:
        os.pwrite(self.descriptor, _HELD.pack(self._request, self._sent_count, self._held_bytes), _HELD_AT)

    def read_progress(self) -> tuple[list[PhaseEntry], HeldItems]:
        """Return the present request's phases, in their order, and its held items.

        Both are empty if the worker's code has written nonsense.
        """
        data = os.pread(self.descriptor, FAULT_AT, 0)
        if len(data) < _ENTRY.size:
            return [], HeldItems(0, b"")
        found = []
        for name, at, request in _ENTRY.iter_unpack(data[: min(len(data), _HELD_AT) // _ENTRY.size * _ENTRY.size]):
            phase = _PHASES.get(name)
            if request == self._request and phase is not None and isfinite(at):
                found.append(PhaseEntry(phase, at))
        found.sort(key=attrgetter("at"))
        return found, self._read_held(data)

    def _read_held(self, data: bytes) -> HeldItems:
        if len(data) < _ITEMS_AT:
            return HeldItems(0, b"")
        request, first, size = _HELD.unpack_from(data, _HELD_AT)
        return HeldItems(first, data[_ITEMS_AT : _ITEMS_AT + size] if request == self._request else b"")

    def read_fault(self) -> str:
        """Return the fault that has ended the worker, in words; empty if none was reported."""
        return os.pread(self.descriptor, _FAULT_BYTES, FAULT_AT).partition(b"\0")[0].decode(errors="ignore")

    def close(self) -> None:
        """Close this side's file descriptor."""
        os.close(self.descriptor)


_PHASES = {phase.encode().ljust(16, b"\0"): phase for phase in Phase}
