"""The worker's end of its pipe to the daemon.

A module of its own, below all operations that answer through it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from time import monotonic
from typing import Any

from ktuned.ipc import MAX_HELD_BYTES, Journal, replies
from ktuned.model import Phase


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
            self._journal.follow()

    def phase(self, phase: Phase) -> None:
        """Name the phase that begins, so that its deadline runs."""
        if self._journal is None:
            self.send(replies.PhaseBegun(phase))
            return
        self._require_worker()
        self._phase = phase
        self._journal.enter(phase)

    def item(self, value: Any, *, hold_s: float = 0.0) -> None:
        """Send one of several results, after what was printed for it.

        It, and those that are held before it, may be sent together with a later one, within ``hold_s`` of the first
        or with the reply: each message wakes the daemon. The journal has them meanwhile. The phase begins again.
        """
        answer = replies.Item(value)
        if self._journal is None:
            flush()
            self.send(answer)
            return
        self._require_worker()
        # Before anything is sent: a request that is late is late for the item that it is at.
        self._journal.enter(self._phase)
        frame = replies.encode(answer)
        now = monotonic()
        if not self._held:
            self._held_since = now
        is_due = now - self._held_since >= hold_s or self._held_bytes + len(frame) > MAX_HELD_BYTES
        self._held.append(frame)
        self._held_bytes += len(frame)
        if is_due:
            flush()
            self.release()
        else:
            self._journal.hold(frame)

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
            self._journal.sent(len(self._held))
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


def flush() -> None:
    """Send on the output of user code, which may have replaced or closed the streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
