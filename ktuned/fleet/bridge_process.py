"""One process of the bridge: its socket, its output, its end."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from time import monotonic
from typing import Final, cast

import anyio

from ktuned.fleet.calls import BridgeDown, Calls
from ktuned.fleet.failures import describe_exit
from ktuned.fleet.process_group import ProcessGroup
from ktuned.ipc import InvalidMessage, frames

CLOSED_S: Final = 1.0
"""A process that has closed its socket is killed if it has not ended after this long."""


class BridgeProcess(asyncio.Protocol):
    """One process of the bridge and its socket; :attr:`gone` is set when it has ended, and :attr:`end` says how."""

    def __init__(self, process: subprocess.Popen[bytes], mark: str, on_gone: Callable[[BridgeProcess], None]) -> None:
        self.pid = process.pid
        self.mark = mark
        self.started = monotonic()
        self.gone = anyio.Event()
        self.end = ""
        self._is_ending = False
        self._on_gone = on_gone
        self._group = ProcessGroup(process, self._on_exit)
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.calls = Calls("ktuned-bridge", self._send_frame, self._writable.wait)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Wait for the process to end, which says more than the closed socket; if it stays alive, it is killed."""
        asyncio.get_running_loop().call_later(CLOSED_S, self.kill, "it closed its socket")

    def pause_writing(self) -> None:
        """Hold back further calls until the process has read the earlier ones."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Allow calls to be sent again."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Handle each answer that the bytes complete."""
        try:
            self.calls.feed(data)
        except (frames.FrameError, InvalidMessage) as error:
            self.kill(f"it sent what is no answer: {error}")

    def _send_frame(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing() or self._is_ending:
            raise BridgeDown(self._describe_end())
        self._transport.write(data)

    def request_end(self) -> None:
        """Close our side of the socket, so that the process releases its resources and ends."""
        if self._transport is not None and not self._transport.is_closing():
            self.end = "the daemon is ending"
            self._is_ending = True
            self._transport.write_eof()

    def kill(self, why: str = "") -> None:
        """SIGKILL the process and its group."""
        if self._group.returncode is None:
            self.end = self.end or why
            self._group.kill()

    def _on_exit(self) -> None:
        assert self._group.returncode is not None
        lines = self._group.tails[0].take_text().strip().splitlines()
        last_words = f": {lines[-1][:200]}" if lines and not self.end else ""
        self.end = self.end or f"it {describe_exit(self._group.returncode)}{last_words}"
        if self._transport is not None:
            self._transport.abort()
        self.calls.fail_all(self._describe_end())
        self.gone.set()
        self._on_gone(self)

    def _describe_end(self) -> str:
        return f"ktuned-bridge is gone: {self.end or 'it has ended'}"
