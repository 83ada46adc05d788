"""The worker's end of its pipe to the daemon.

A module of its own, below all operations that answer through it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from ktuned.ipc import replies
from ktuned.model import Phase


class Reply:
    """Sends the answers to one request after another."""

    def __init__(self, write_fd: int) -> None:
        self._write_fd = write_fd
        self._pid = os.getpid()

    @property
    def descriptor(self) -> int:
        """The file descriptor that answers are written to."""
        return self._write_fd

    def phase(self, phase: Phase) -> None:
        """Name the phase that begins, so that its deadline runs."""
        self.send(replies.PhaseBegun(phase))

    def item(self, value: Any) -> None:
        """Send one of several results, after what was printed for it."""
        for stream in (sys.stdout, sys.stderr):
            # User code may have replaced or closed it.
            with contextlib.suppress(Exception):
                stream.flush()
        self.send(replies.Item(value))

    def send(self, answer: replies.Answer) -> None:
        """Write one frame; blocks while the daemon does not read."""
        if os.getpid() != self._pid:
            # A child that user code forked and let return: only the worker itself may answer.
            os._exit(1)
        data = memoryview(replies.encode(answer))
        while data:
            data = data[os.write(self._write_fd, data) :]
