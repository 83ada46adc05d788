"""The daemon's end of the socket: bytes to method calls, results to bytes, and limits for everything.

A bare asyncio protocol, because a lookup must not cost a task switch: a plain method is answered from within
``buffer_updated``. Methods that wait are tasks of the server's task group. A connection that breaks a limit
is closed; one that does not read what it asked for is not read from either.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, cast

import anyio
import anyio.abc
import structlog

from ktuned.errors import KtunedError
from ktuned.serve.shortcuts import Shortcuts
from ktuned_client import paths, wire

MAX_CONNECTIONS: Final = 800
"""Open connections: below the usual limit of 1024 file descriptors, with room for workers and the store."""

MAX_PENDING: Final = 256
"""Requests of one connection whose methods still wait; one application's threads ask for far fewer at once."""

WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Unread answers and events of one connection beyond which it gets no more until it has read."""

READ_BYTES: Final = 64 * 1024
"""How much is read from one connection before it is the next one's turn."""

DRAINING_S: Final = 5.0
"""How long a stopping server waits for the requests that it has taken: an inspection takes a second or two."""

REFUSAL_LOG_S: Final = 1.0
"""How often at most the log tells of a connection that was closed for what its peer did."""

CLOSING_S: Final = 1.0
"""How long a stopping server waits for its last answers to be read."""

_STOPPING: Final = {
    "code": "stopping",
    "message": "the daemon is stopping",
    "hint": "ask again: `ktuned tune` starts another one",
}

_KEEP_THE_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""From Python 3.13 on a server would remove the socket's file, which is its binder's to remove."""

log = structlog.get_logger()

Method = Callable[[dict[str, Any], "Connection"], Any | Awaitable[Any]]
"""A method: params and connection to result. One that is ``async`` may wait; one that is not must not block."""


@dataclass(frozen=True, slots=True)
class Later:
    """What a method returns that must wait this time, though it mostly need not: the rest of it."""

    rest: Callable[[], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may do, and how many there may be."""

    connections: int = MAX_CONNECTIONS
    pending: int = MAX_PENDING
    request_bytes: int = wire.MAX_REQUEST_BYTES
    request_items: int = wire.MAX_REQUEST_ITEMS
    response_bytes: int = wire.MAX_MESSAGE_BYTES
    write_buffer_bytes: int = WRITE_BUFFER_BYTES


class Server:
    """Answers requests on a listening Unix socket with ``methods``; ``shortcuts`` spare it some that repeat."""

    def __init__(
        self, methods: Mapping[str, Method], limits: Limits | None = None, *, shortcuts: Shortcuts | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.shortcuts = shortcuts
        self._methods = {name: (method, inspect.iscoroutinefunction(method)) for name, method in methods.items()}
        self._connections: set[Connection] = set()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._is_empty = anyio.Event()
        self._settled = anyio.Event()
        self._acceptor: asyncio.Server | None = None
        self._is_draining = False
        self._answered = 0
        self._refused = 0
        self._told_of_refusal = -REFUSAL_LOG_S
        self.read_buffer = memoryview(bytearray(READ_BYTES))

    async def serve(
        self, listening: socket.socket, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; then stop accepting, cancel what waits, and let the last answers be read."""
        async with anyio.create_task_group() as self._tasks:
            await self.listen(listening)
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                if self._acceptor is not None:
                    self._acceptor.close()
                await self._close_all()

    async def listen(self, listening: socket.socket) -> None:
        """Take connections from this socket, which is the server's to close, and from no other any more."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._acceptor = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self), sock=listening, backlog=self.limits.connections, **_KEEP_THE_FILE
        )

    async def drain(self) -> None:
        """Take no more connections, and no more requests that wait; let those end that wait already, for a while."""
        self._is_draining = True
        if self._acceptor is not None:
            self._acceptor.close()
        with anyio.move_on_after(DRAINING_S):
            while any(connection.pending for connection in self._connections):
                self._settled = anyio.Event()
                await self._settled.wait()

    def statistics(self) -> dict[str, int]:
        """Return how many connections there are, what waits, and what was answered and refused since the start."""
        return {
            "connections": len(self._connections),
            "pending": sum(connection.pending for connection in self._connections),
            "answered": self._answered + (0 if self.shortcuts is None else self.shortcuts.taken),
            "refused": self._refused,
        }

    async def _close_all(self) -> None:
        for connection in list(self._connections):
            connection.close()
        if not self._connections:
            return
        self._is_empty = anyio.Event()
        with anyio.move_on_after(CLOSING_S, shield=True):
            await self._is_empty.wait()
        for connection in list(self._connections):
            connection.abort()

    def admit(self, connection: Connection) -> bool:
        """Count a new connection in, if there is room for it."""
        if len(self._connections) >= self.limits.connections:
            self.refuse("connections", f"{self.limits.connections} are open")
            return False
        self._connections.add(connection)
        return True

    def release(self, connection: Connection) -> None:
        """Count a connection out that is closed and waits for nothing."""
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()

    def settled(self) -> None:
        """Note that a waiting method has ended."""
        self._settled.set()

    def refuse(self, what: str, why: str) -> None:
        """Note that a connection is closed for what its peer did."""
        self._refused += 1
        now = monotonic()
        if now - self._told_of_refusal >= REFUSAL_LOG_S:
            # The rest is counted alone: a peer that comes again and again must not fill the disk.
            self._told_of_refusal = now
            log.warning("connection_refused", limit=what, why=why, refused=self._refused)

    def start(self, connection: Connection, message: wire.Request | wire.Notification) -> bytes | None:
        """Answer a message and return the response, or start the task that will, and return ``None``."""
        method, waits = self._methods.get(message.method, (None, False))
        if method is None or message.params is None:
            return self._respond(message, self._complaint(message), None)
        if waits and self._is_draining:
            return self._respond(message, _STOPPING, None)
        if waits:
            self._begin(partial(method, message.params, connection), message, connection)
            return None
        try:
            result = method(message.params, connection)
        except Exception as error:
            return self._respond(message, _explained(error, message.method), None)
        if type(result) is Later:
            self._begin(result.rest, message, connection)
            return None
        return self._respond(message, None, result)

    def _begin(
        self,
        work: Callable[[], Awaitable[Any]],
        message: wire.Request | wire.Notification,
        connection: Connection,
    ) -> None:
        assert self._tasks is not None
        connection.pending += 1
        self._tasks.start_soon(self._wait_for, work, message, connection)

    async def _wait_for(
        self,
        work: Callable[[], Awaitable[Any]],
        message: wire.Request | wire.Notification,
        connection: Connection,
    ) -> None:
        try:
            try:
                result = await work()
            except Exception as error:
                response = self._respond(message, _explained(error, message.method), None)
            else:
                response = self._respond(message, None, result)
            if response is not None:
                connection.send(response)
        finally:
            connection.finished()

    def _complaint(self, message: wire.Request | wire.Notification) -> dict[str, str]:
        if message.method not in self._methods:
            methods = ", ".join(sorted(self._methods))
            return {
                "code": "unknown_method",
                "message": f"there is no method {message.method[:100]!r}",
                "hint": f"this daemon has: {methods}",
            }
        return {"code": "usage", "message": f"the params of {message.method} are not one map", "hint": "send [{…}]"}

    def _respond(
        self, message: wire.Request | wire.Notification, error: Mapping[str, Any] | None, result: Any
    ) -> bytes | None:
        self._answered += 1
        if type(message) is not wire.Request:
            return None
        try:
            response = wire.encode_response(message.id, error, result)
        except (TypeError, ValueError) as failure:
            response = wire.encode_response(message.id, _explained(failure, message.method), None)
        if len(response) > self.limits.response_bytes:
            too_large = {
                "code": "too_large",
                "message": f"the answer to {message.method} has {len(response)} bytes",
                "hint": "ask for less at once, with a filter or a limit",
            }
            response = wire.encode_response(message.id, too_large, None)
        return response


class Connection(asyncio.BufferedProtocol):
    """One peer; the sink of its events. Methods get it as their second argument.

    ``pending`` counts its requests whose methods still wait.
    """

    # A plain protocol has 256 KiB allocated for each read, which costs more than everything else that a lookup needs.

    def __init__(self, server: Server) -> None:
        self.on_writable: Callable[[], None] | None = None
        self.on_closed: Callable[[], None] | None = None
        self._farewell: Callable[[], None] | None = None
        self.pending = 0
        self._server = server
        self._decoder = wire.Decoder(server.limits.request_bytes, server.limits.request_items)
        self._unhandled: deque[wire.Message] = deque()
        self._transport: asyncio.Transport | None = None
        self._is_paused = False

    @property
    def is_writable(self) -> bool:
        """Whether the peer reads: neither gone, nor behind by more than its write buffer."""
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

    def when_closed(self, farewell: Callable[[], None]) -> None:
        """Have something called once, when the peer is gone; in place of what was to be called before."""
        self._farewell = farewell

    def finished(self) -> None:
        """Note that one of the waiting methods has ended."""
        self.pending -= 1
        self._server.settled()
        if self._transport is None and not self.pending:
            self._server.release(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the peer, if it runs as us and there is room."""
        # uvloop's is no subclass.
        transport = cast("asyncio.Transport", transport)
        try:
            paths.check_peer(transport.get_extra_info("socket"))
        except OSError as error:
            self._server.refuse("peer", str(error))
            transport.abort()
            return
        if not self._server.admit(self):
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
            known = shortcuts.find(data)
            if known is not None:
                self._transport.write(known)
                return
        try:
            self._unhandled.extend(self._decoder.feed(data))
        except wire.ProtocolError as error:
            self._refuse("protocol", str(error))
            return
        is_one = (
            shortcuts is not None and begins_here and len(self._unhandled) == 1 and self._decoder.is_between_messages
        )
        self._handle(data if is_one else None)

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on where :meth:`pause_writing` stopped."""
        self._is_paused = False
        self._handle()
        if self._transport is not None and not self._is_paused:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the peer; its waiting methods run to their ends, and count until then."""
        if self._transport is None:
            return
        self._transport = None
        self._unhandled.clear()
        if self.on_closed is not None:
            self.on_closed()
        if self._farewell is not None:
            self._farewell()
        if not self.pending:
            self._server.release(self)

    def _handle(self, data: bytes | None = None) -> None:
        """Answer what waits to be; ``data`` are the bytes of the one request that does, if they are nothing else."""
        while self._unhandled and self.is_writable:
            message = self._unhandled.popleft()
            if type(message) is wire.Response:
                self._refuse("protocol", "a response to nothing")
                return
            assert not isinstance(message, wire.Response)
            if self.pending >= self._server.limits.pending:
                self._refuse("pending", f"{self.pending} requests wait already")
                return
            response = self._server.start(self, message)
            if response is not None:
                self.send(response)
                if self._server.shortcuts is not None and data is not None and type(message) is wire.Request:
                    self._server.shortcuts.keep(data, response)
        if self.on_writable is not None and self.is_writable:
            self.on_writable()

    def _refuse(self, what: str, why: str) -> None:
        self._unhandled.clear()
        self._server.refuse(what, why)
        self.abort()


def _explained(error: Exception, method: str) -> dict[str, str]:
    if isinstance(error, KtunedError):
        return error.to_wire()
    log.error("method_failed", method=method, exc_info=error)
    return {
        "code": "internal",
        "message": f"{method} failed inside the daemon: {type(error).__name__}: {error}",
        "hint": "the daemon's log has the traceback; please report it",
    }
