"""One peer of the daemon's socket: bytes to messages, answers to bytes, each within its limits.

A bare asyncio protocol, because a lookup must not cost a task switch: what needs no waiting is answered from within
``buffer_updated``. A connection that breaks a limit is closed; one that does not read what it asked for is not read
from either. docs/protocol.md lists the limits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol, cast

import msgspec

from ktuned.lookup import Shortcuts
from ktuned_client import paths, wire

MAX_CONNECTIONS: Final = 800
"""Open connections: below the usual limit of 1024 file descriptors, with room for workers and the store."""

MAX_PENDING: Final = 256
"""Requests of one connection whose methods still wait; one application's threads ask for far fewer at once."""

WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Unread answers and events of one connection beyond which it gets no more until it has read."""


class Limits(msgspec.Struct, frozen=True):
    """Limits of one connection, and of their number."""

    connections: int = MAX_CONNECTIONS
    pending: int = MAX_PENDING
    request_bytes: int = wire.MAX_REQUEST_BYTES
    request_items: int = wire.MAX_REQUEST_ITEMS
    response_bytes: int = wire.MAX_MESSAGE_BYTES
    write_buffer_bytes: int = WRITE_BUFFER_BYTES


class Host(Protocol):
    """Interface of a connection to its server."""

    limits: Limits
    shortcuts: Shortcuts | None
    read_buffer: memoryview

    def admit_connection(self, connection: Connection) -> bool:
        """Count a new connection in, if there is room for it."""

    def release_connection(self, connection: Connection) -> None:
        """Count a connection out that is closed and waits for nothing."""

    def resume_sending(self, connection: Connection) -> None:
        """Send a connection that takes bytes again the events that it has missed."""

    def remove_subscription(self, connection: Connection) -> None:
        """Send a connection that is gone no more events."""

    def count_settled(self) -> None:
        """Note that a waiting method has ended."""

    def record_refusal(self, what: str, why: str) -> None:
        """Note that a connection is closed for what its peer did."""

    def answer_message(self, connection: Connection, message: wire.Request | wire.Notification) -> bytes | None:
        """Return the response to a client's message, or ``None`` if a task will send it."""


class Connection(asyncio.BufferedProtocol):
    """One peer; the sink of its events. Methods get it as their second argument.

    ``pending`` counts its requests whose methods still wait.
    """

    # A plain protocol has 256 KiB allocated for each read, which costs more than everything else that a lookup needs.

    def __init__(self, server: Host) -> None:
        self.pending = 0
        self._server = server
        self._decoder = wire.Decoder(server.limits.request_bytes, server.limits.request_items)
        self._unhandled: deque[wire.Message] = deque()
        self._transport: asyncio.Transport | None = None
        self._is_paused = False

    @property
    def is_writable(self) -> bool:
        """True if the peer reads: neither gone, nor behind by more than its write buffer."""
        return self._transport is not None and not self._is_paused

    def send(self, data: bytes) -> None:
        """Write encoded messages; to a peer that is gone, nothing."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close once everything written has been read."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def finish_request(self) -> None:
        """Note that one of the waiting methods has ended."""
        self.pending -= 1
        self._server.count_settled()
        if self._transport is None and not self.pending:
            self._server.release_connection(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the peer, if it runs as us and there is room."""
        # uvloop's is no subclass.
        transport = cast("asyncio.Transport", transport)
        try:
            paths.check_peer(transport.get_extra_info("socket"))
        except OSError as error:
            self._server.record_refusal("peer", str(error))
            transport.abort()
            return
        if not self._server.admit_connection(self):
            transport.abort()
            return
        transport.set_write_buffer_limits(self._server.limits.write_buffer_bytes)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to read to: one buffer for all, because each read is handled before the next one."""
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Answer what the bytes complete."""
        if self._transport is None:
            return
        data = bytes(self._server.read_buffer[:nbytes])
        begins_here = self._decoder.is_between_messages and not self._unhandled
        shortcuts = self._server.shortcuts
        if shortcuts is not None and begins_here and not self._is_paused:
            known = shortcuts.find_response(data)
            if known is not None:
                self._transport.write(known)
                return
        try:
            self._unhandled.extend(self._decoder.feed(data))
        except wire.ProtocolError as error:
            self._refuse_peer("protocol", str(error))
            return
        is_one = (
            shortcuts is not None and begins_here and len(self._unhandled) == 1 and self._decoder.is_between_messages
        )
        self._answer_buffered(data if is_one else None)

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on where :meth:`pause_writing` stopped."""
        self._is_paused = False
        self._answer_buffered()
        if self._transport is not None and not self._is_paused:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the peer; its waiting methods run to their ends, and count until then."""
        if self._transport is None:
            return
        self._transport = None
        self._unhandled.clear()
        self._server.remove_subscription(self)
        if not self.pending:
            self._server.release_connection(self)

    def _answer_buffered(self, data: bytes | None = None) -> None:
        """Answer what waits to be; ``data`` are the bytes of the one request that does, if they are nothing else."""
        while self._unhandled and self.is_writable:
            message = self._unhandled.popleft()
            if type(message) is wire.Response:
                self._refuse_peer("protocol", "a response to nothing")
                return
            assert not isinstance(message, wire.Response)
            if self.pending >= self._server.limits.pending:
                self._refuse_peer("pending", f"{self.pending} requests wait already")
                return
            response = self._server.answer_message(self, message)
            if response is not None:
                self.send(response)
                if self._server.shortcuts is not None and data is not None and type(message) is wire.Request:
                    self._server.shortcuts.keep_response(data, response)
        if self.is_writable:
            self._server.resume_sending(self)

    def _refuse_peer(self, what: str, why: str) -> None:
        self._unhandled.clear()
        self._server.record_refusal(what, why)
        self.abort()
