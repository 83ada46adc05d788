"""The daemon's end of the socket: decodes requests, calls their methods, and encodes the answers, within limits.

A :class:`Connection` is one client. It is a bare asyncio protocol, because a lookup must not cost a task switch: a
plain method is answered from within ``buffer_updated``. Methods that wait are tasks of the :class:`Server`.

A connection that exceeds a limit is closed. While a client does not read its answers, the server reads no more of its
requests. docs/reference/protocol.md lists the limits.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from time import monotonic
from typing import Any, cast

import anyio
import anyio.abc
import msgspec
import structlog

from ktuned.model import FrozenStruct, KtunedError
from ktuned.protocol import TrafficInfo
from ktuned.serve.method import DeferredAnswer, Handler, Peer
from ktuned.serve.responses import Responses
from ktuned_client import paths, wire

MAX_CONNECTIONS = 800
"""Open connections: below the usual limit of 1024 file descriptors, with room for workers and the store."""

MAX_PENDING = 256
"""Requests of one connection whose methods may wait at once; the threads of one application send far fewer."""

WRITE_BUFFER_BYTES = 256 * 1024
"""Unread answers and events of one connection; beyond this it gets no more until it has read some."""

READ_BYTES = 64 * 1024
"""Bytes read from one connection before the next connection has its turn."""

DRAINING_S = 5.0
"""How long a stopping server waits for open requests: an inspection takes a second or two."""

CLOSING_S = 1.0
"""How long a stopping server waits until its last answers have been read."""

REFUSAL_LOG_S = 1.0
"""Least time between two log entries about refused connections. Those in between are only counted, so that a client
that keeps reconnecting cannot fill the disk."""

_STOPPING = {
    "code": "stopping",
    "message": "the daemon is stopping",
    "hint": "ask again: `ktuned tune` starts another one",
}

_KEEP_THE_FILE: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""Since Python 3.13 an asyncio server removes the socket's file by default; here the code that bound it does that."""

_pack = msgspec.msgpack.Encoder().encode
"""Packs both plain data and typed answers. An answer takes half the time that ``msgpack`` needs for it as a map."""

log = structlog.get_logger()


class Limits(FrozenStruct):
    """Limits of each connection, and of the number of connections."""

    connections: int = MAX_CONNECTIONS
    pending: int = MAX_PENDING
    request_bytes: int = wire.MAX_REQUEST_BYTES
    request_items: int = wire.MAX_REQUEST_ITEMS
    response_bytes: int = wire.MAX_MESSAGE_BYTES
    write_buffer_bytes: int = WRITE_BUFFER_BYTES


class Connection(asyncio.BufferedProtocol, Peer):
    """One client. Methods get it as their second argument.

    A ``BufferedProtocol``: a plain one allocates 256 KiB for each read, which costs more than the rest of a lookup.

    Attributes:
        pending: How many of its requests have methods that still wait.
        scopes: The scopes of those methods that end with the connection.
    """

    def __init__(self, server: Server) -> None:
        self.pending = 0
        self.scopes: set[anyio.CancelScope] = set()
        self._server = server
        self._decoder = wire.Decoder(server.limits.request_bytes, server.limits.request_items)
        self._unhandled: deque[wire.Message] = deque()
        self._transport: asyncio.Transport | None = None
        self._is_paused = False

    @property
    def is_writable(self) -> bool:
        """True if the peer is connected and its write buffer is not full."""
        return self._transport is not None and not self._is_paused

    def send(self, data: bytes) -> None:
        """Write encoded messages; does nothing if the peer is gone."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after everything written has been sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def finish_request(self) -> None:
        """Record that one of the waiting methods has ended."""
        self.pending -= 1
        if self._transport is None and not self.pending:
            self._server.release_connection(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the peer if it runs as the same user and there is room."""
        # uvloop's transport is not a subclass of asyncio.Transport.
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
        """Return the buffer for the next read. All connections share it, as each read is handled before the next."""
        return self._server.read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Answer the requests that the received bytes complete."""
        if self._transport is None:
            return
        received = bytes(self._server.read_buffer[:nbytes])
        # A repeated request is answered by its bytes, without decoding, if no part of another request is left over.
        responses = self._server.responses
        begins_request = self._decoder.is_between_messages and not self._unhandled
        if responses is not None and begins_request and not self._is_paused:
            known = responses.find_response(received)
            self.repeats = responses.repeats
            if known is not None:
                self._transport.write(known)
                return
        # Decode the complete messages.
        try:
            self._unhandled.extend(self._decoder.feed(received))
        except wire.ProtocolError as error:
            self._refuse_client("protocol", str(error))
            return
        # The response to a lone request is kept.
        is_lone = begins_request and len(self._unhandled) == 1 and self._decoder.is_between_messages
        self._answer_waiting_requests(received if is_lone else None)

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read."""
        self._is_paused = True
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Continue where :meth:`pause_writing` stopped."""
        self._is_paused = False
        self._answer_waiting_requests()
        if self._transport is not None and not self._is_paused:
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        """Forget the peer. Waiting methods run to their end, or end with it; the connection counts until then."""
        if self._transport is None:
            return
        self._transport = None
        self._unhandled.clear()
        if self.on_gone is not None:
            self.on_gone()
        for scope in self.scopes:
            scope.cancel()
        if not self.pending:
            self._server.release_connection(self)

    def _answer_waiting_requests(self, lone_request: bytes | None = None) -> None:
        """Answer the decoded requests that wait.

        If exactly one request waits and the bytes read were exactly that request, ``lone_request`` has these bytes.
        """
        while self._unhandled and self.is_writable:
            message = self._unhandled.popleft()
            if type(message) is wire.Response:
                self._refuse_client("protocol", "a response without a request")
                return
            assert not isinstance(message, wire.Response)
            if self.pending >= self._server.limits.pending:
                self._refuse_client("pending", f"{self.pending} requests wait already")
                return
            response = self._server.answer_message(self, message)
            if response is not None:
                self.send(response)
                if self._server.responses is not None and lone_request is not None and type(message) is wire.Request:
                    self._server.responses.keep_response(lone_request, response)
        if self.on_writable is not None and self.is_writable:
            self.on_writable()

    def _refuse_client(self, what: str, why: str) -> None:
        self._unhandled.clear()
        self._server.record_refusal(what, why)
        self.abort()


class Server:
    """Answers requests on a listening Unix socket.

    Args:
        handlers: The handlers of all methods.
        limits: Limits of the connections.
        responses: Keeps the responses to recent lookups.

    Attributes:
        connections: The open connections, and the closed ones that still have a waiting method.
        read_buffer: The buffer that all connections read into.
    """

    def __init__(
        self,
        handlers: Iterable[Handler[Any, Any]],
        limits: Limits | None = None,
        *,
        responses: Responses | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.responses = responses
        self.connections: set[Connection] = set()
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self._handlers = {
            handler.method.name: (handler, inspect.iscoroutinefunction(handler.handle)) for handler in handlers
        }
        self._tasks: anyio.abc.TaskGroup | None = None
        self._is_empty = anyio.Event()
        self._settled = anyio.Event()
        self._acceptor: asyncio.Server | None = None
        self._is_draining = False
        self._answered = 0
        self._refused = 0
        self._logged = -REFUSAL_LOG_S

    async def serve_until_cancelled(
        self, listening: socket.socket, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; then refuse connections, cancel waiting methods, and let the last answers be read."""
        async with anyio.create_task_group() as self._tasks:
            await self.accept_from(listening)
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                if self._acceptor is not None:
                    self._acceptor.close()
                await self._close_all()

    async def accept_from(self, listening: socket.socket) -> None:
        """Accept connections from this socket only, in place of the one before. The server owns and closes it."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._acceptor = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self), sock=listening, backlog=self.limits.connections, **_KEEP_THE_FILE
        )

    async def drain_requests(self) -> None:
        """Refuse new connections and new deferred requests; give those in progress DRAINING_S to finish."""
        self._is_draining = True
        if self._acceptor is not None:
            self._acceptor.close()
        with anyio.move_on_after(DRAINING_S):
            while any(connection.pending for connection in self.connections):
                self._settled = anyio.Event()
                await self._settled.wait()

    async def _close_all(self) -> None:
        for connection in list(self.connections):
            connection.close()
        if not self.connections:
            return
        self._is_empty = anyio.Event()
        with anyio.move_on_after(CLOSING_S, shield=True):
            await self._is_empty.wait()
        for connection in list(self.connections):
            connection.abort()

    def describe_traffic(self) -> TrafficInfo:
        """Return the numbers of connections, of waiting requests, and of answers and refusals since the start."""
        return TrafficInfo(
            connections=len(self.connections),
            pending=sum(connection.pending for connection in self.connections),
            answered=self._answered + (0 if self.responses is None else self.responses.taken),
            refused=self._refused,
        )

    # Called by connections

    def admit_connection(self, connection: Connection) -> bool:
        """Add a new connection if there is room for it; return whether there was."""
        if len(self.connections) >= self.limits.connections:
            self.record_refusal("connections", f"{self.limits.connections} are open")
            return False
        self.connections.add(connection)
        return True

    def release_connection(self, connection: Connection) -> None:
        """Remove a connection that is closed and has no waiting method."""
        self.connections.discard(connection)
        if not self.connections:
            self._is_empty.set()

    def record_refusal(self, limit: str, reason: str) -> None:
        """Count a connection that was refused, and log it if none was logged just before."""
        self._refused += 1
        now = monotonic()
        if now - self._logged >= REFUSAL_LOG_S:
            self._logged = now
            log.warning("connection_refused", limit=limit, why=reason, refused=self._refused)

    def answer_message(self, connection: Connection, message: wire.Request | wire.Notification) -> bytes | None:
        """Return the server's response to a client's message, or ``None`` if a task will send it."""
        handler, waits = self._handlers.get(message.method, (None, False))
        if handler is None or message.params is None:
            return self._encode_response(message, self._explain_refusal(message), None)
        if waits and self._is_draining:
            return self._encode_response(message, _STOPPING, None)
        try:
            params = handler.read_params(message.params)
            result = (
                DeferredAnswer(cast(Callable[[], Awaitable[Any]], partial(handler.handle, params, connection)))
                if waits
                else handler.handle(params, connection)
            )
        except Exception as error:
            return self._encode_response(message, _explain_error(error, message.method), None)
        if type(result) is DeferredAnswer:
            assert self._tasks is not None
            connection.pending += 1
            self._tasks.start_soon(self._answer_later, result.rest, message, connection, handler.ends_with_peer)
            return None
        return self._encode_response(message, None, result)

    async def _answer_later(
        self,
        work: Callable[[], Awaitable[Any]],
        message: wire.Request | wire.Notification,
        connection: Connection,
        ends_with_peer: bool,
    ) -> None:
        scope = anyio.CancelScope()
        if ends_with_peer:
            connection.scopes.add(scope)
        try:
            with scope:
                try:
                    result = await work()
                except Exception as error:
                    response = self._encode_response(message, _explain_error(error, message.method), None)
                else:
                    response = self._encode_response(message, None, result)
                if response is not None:
                    connection.send(response)
        finally:
            connection.scopes.discard(scope)
            connection.finish_request()
            self._settled.set()

    def _explain_refusal(self, message: wire.Request | wire.Notification) -> dict[str, str]:
        if message.method not in self._handlers:
            methods = ", ".join(sorted(self._handlers))
            return {
                "code": "unknown_method",
                "message": f"there is no method {message.method[:100]!r}",
                "hint": f"this daemon has: {methods}",
            }
        return {"code": "usage", "message": f"the params of {message.method} are not one map", "hint": "send [{…}]"}

    def _encode_response(
        self, message: wire.Request | wire.Notification, error: Mapping[str, Any] | None, result: Any
    ) -> bytes | None:
        self._answered += 1
        if type(message) is not wire.Request:
            return None
        try:
            response = _pack((wire.RESPONSE, message.id, error, result))
        except (TypeError, ValueError, OverflowError, RecursionError) as failure:
            response = _pack((wire.RESPONSE, message.id, _explain_error(failure, message.method), None))
        if len(response) > self.limits.response_bytes:
            too_large = {
                "code": "too_large",
                "message": f"the answer to {message.method} has {len(response)} bytes",
                "hint": "ask for less at once, with a filter or a limit",
            }
            response = _pack((wire.RESPONSE, message.id, too_large, None))
        return response


def _explain_error(error: Exception, method: str) -> dict[str, str]:
    if isinstance(error, KtunedError):
        return error.to_wire()
    log.error("method_failed", method=method, exc_info=error)
    return {
        "code": "internal",
        "message": f"{method} failed inside the daemon: {type(error).__name__}: {error}",
        "hint": "the daemon's log has the traceback; please report it",
    }
