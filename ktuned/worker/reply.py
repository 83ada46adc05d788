"""The way back to the daemon: frames of one request's phases, items and result.

A module of its own, below all operations that answer through it.
"""

from __future__ import annotations

import os
from typing import Any

from ktuned.ipc import frames


class Reply:
    """The way back to the daemon for one request."""

    def __init__(self, write_fd: int) -> None:
        self._write_fd = write_fd
        self._pid = os.getpid()

    def phase(self, name: str) -> None:
        """Say which phase begins, so that the daemon watches the right deadline."""
        self.send({"phase": name})

    def item(self, value: dict[str, Any]) -> None:
        """Send one of several results."""
        self.send({"item": value})

    def send(self, message: dict[str, Any]) -> None:
        """Write one frame; blocks while the daemon does not read."""
        if os.getpid() != self._pid:
            # A child that user code forked and let return: two that answer one question are no answer.
            os._exit(1)
        data = memoryview(frames.encode(message))
        while data:
            data = data[os.write(self._write_fd, data) :]
