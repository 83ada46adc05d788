"""The worker's end of its pipe to the daemon.

A module of its own, below all operations that answer through it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from time import monotonic, perf_counter
from typing import Any, Protocol

from ktuned.ipc import MAX_HELD_BYTES, Journal, replies
from ktuned.model import Phase


class Phases(Protocol):
    """Takes the name of each phase as it begins."""

    def phase(self, phase: Phase) -> None:
        """Name the phase that begins."""


class TimedPhases:
    """Passes the phases of one config on, and takes their times."""

    def __init__(self, phases: Phases, first: Phase) -> None:
        self._phases = phases
        self._phase = first
        self._since = perf_counter()
        self._spent: dict[str, float] = {}

    def phase(self, phase: Phase) -> None:
        """Name the phase that begins."""
        self._phases.phase(phase)
        self._spend(phase)

    def seconds(self) -> Mapping[str, float]:
        """Return the seconds of each phase up to now; those of one that came again are added up."""
        self._spend(self._phase)
        return {name: round(seconds, 6) for name, seconds in self._spent.items()}

    def _spend(self, following: Phase) -> None:
        now = perf_counter()
        self._spent[self._phase.value] = self._spent.get(self._phase.value, 0.0) + now - self._since
        self._phase, self._since = following, now


class Reply:
    """Sends the answers to one request after another; phases go into the ``journal``, if there is one."""

    _journal: Journal | None = None

    def __init__(self, write_fd: int, journal: Journal | None = None) -> None:
        self._write_fd = write_fd
        self._journal = journal
        self._pid = os.getpid()
        self._phase = Phase.SPAWN
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._held_since = 0.0

    @property
    def descriptor(self) -> int:
        """The file descriptor that answers are written to."""
        return self._write_fd

    def begin(self, phase: Phase) -> None:
        """Begin a request, which the daemon has begun in the journal."""
        self._phase = phase
        self._held.clear()
        self._held_bytes = 0
        if self._journal is not None:
            self._journal.follow_request()

    def phase(self, phase: Phase) -> None:
        """Name the phase that begins, so that its deadline runs."""
        if self._journal is None:
            self.send(replies.PhaseBegun(phase))
            return
        self._require_worker()
        self._phase = phase
        self._journal.enter_phase(phase)

    def item(self, value: Any, *, hold_s: float = 0.0) -> None:
        """Send one of several results, after what was printed for it.

        It, and those that are held before it, may be sent together with a later one, within ``hold_s`` of the first
        or with the reply: each message wakes the daemon. The journal has them meanwhile. The phase begins again.
        """
        answer = replies.Item(value)
        if self._journal is None:
            flush_output()
            self.send(answer)
            return
        self._require_worker()
        # Before anything is sent: a request that is late is late for the item that it is at.
        self._journal.enter_phase(self._phase)
        frame = replies.encode(answer)
        now = monotonic()
        if not self._held:
            self._held_since = now
        is_due = now - self._held_since >= hold_s or self._held_bytes + len(frame) > MAX_HELD_BYTES
        self._held.append(frame)
        self._held_bytes += len(frame)
        if is_due:
            flush_output()
            self.release()
        else:
            self._journal.hold_item(frame)

    def computed(self) -> None:
        """Say that what is left of the request needs no processor."""
        flush_output()
        self.release()
        self._write(replies.encode(replies.Computed()))

    def send(self, answer: replies.Answer) -> None:
        """Write one frame, after those that were held; blocks while the daemon does not read."""
        frame = replies.encode(answer)
        if self._held:
            self._held.append(frame)
            self.release()
        else:
            self._write(frame)

    def release(self) -> None:
        """Write the frames that are held, all at once."""
        if not self._held:
            return
        self._write(b"".join(self._held))
        if self._journal is not None:
            self._journal.record_sent(len(self._held))
        self._held.clear()
        self._held_bytes = 0

    def _require_worker(self) -> None:
        """End a child that user code forked and let return: only the worker itself may answer."""
        if os.getpid() != self._pid:
            os._exit(1)

    def _write(self, frames: bytes) -> None:
        self._require_worker()
        data = memoryview(frames)
        while data:
            data = data[os.write(self._write_fd, data) :]


def flush_output() -> None:
    """Send on the output of user code before a reply: that may have replaced or closed the streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
