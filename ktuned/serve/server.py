"""The daemon's end of the socket: admits connections, calls the requested methods, and enforces limits.

A plain method is answered at once; those that wait are tasks of the server's task group.
"""

from __future__ import annotations

import asyncio
import inspect
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Protocol, cast

import anyio
import anyio.abc
import msgspec
import structlog

from ktuned.lookup import Shortcuts
from ktuned.model import KtunedError
from ktuned.serve.connection import Connection, Limits
from ktuned.serve.method import DeferredAnswer, Handler
from ktuned.serve.traffic import Traffic
from ktuned_client import wire

READ_BYTES: Final = 64 * 1024
"""Bytes read from one connection before it is the next one's turn."""

DRAINING_S: Final = 5.0
"""Time that a stopping server waits for open requests: an inspection takes a second or two."""

CLOSING_S: Final = 1.0
"""Time that a stopping server waits for its last answers to be read."""

_STOPPING: Final = {
    "code": "stopping",
    "message": "the daemon is stopping",
    "hint": "ask again: `ktuned tune` starts another one",
}

_KEEP_THE_FILE: Final[dict[str, Any]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""From Python 3.13 on a server would remove the socket's file, which is its binder's to remove."""

_pack: Final = msgspec.msgpack.Encoder().encode
"""Packs plain data and typed answers alike; an answer takes half the time that it takes as a map by ``msgpack``."""

log = structlog.get_logger()


class Subscribers(Protocol):
    """The connections that are sent events."""

    def resume_sending(self, connection: Connection, /) -> None:
        """Send one that takes bytes again what it has missed; nothing to one that does not subscribe."""

    def remove_subscription(self, connection: Connection, /) -> object:
        """Send one that is gone no more events."""


class Server:
    """Answers requests on a listening Unix socket with ``handlers``; ``shortcuts`` hold recent answers.

    ``traffic`` counts what it does; ``subscribers`` learn which connections take bytes again, or are gone.
    """

    def __init__(
        self,
        handlers: Iterable[Handler[Any, Any]],
        limits: Limits | None = None,
        *,
        shortcuts: Shortcuts | None = None,
        traffic: Traffic | None = None,
        subscribers: Subscribers | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.shortcuts = shortcuts
        self._traffic = traffic or Traffic(shortcuts)
        self._subscribers = subscribers
        self._handlers = {
            handler.method.name: (handler, inspect.iscoroutinefunction(handler.handle)) for handler in handlers
        }
        self._connections = self._traffic.connections
        self._tasks: anyio.abc.TaskGroup | None = None
        self._is_empty = anyio.Event()
        self._settled = anyio.Event()
        self._acceptor: asyncio.Server | None = None
        self._is_draining = False
        self.read_buffer = memoryview(bytearray(READ_BYTES))

    async def serve_until_cancelled(
        self, listening: socket.socket, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled; then stop accepting, cancel what waits, and let the last answers be read."""
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
        """Have the server take connections from this socket, which it closes, and from no other any more."""
        if self._acceptor is not None:
            self._acceptor.close()
        self._acceptor = await asyncio.get_running_loop().create_unix_server(
            lambda: Connection(self), sock=listening, backlog=self.limits.connections, **_KEEP_THE_FILE
        )

    async def drain_requests(self) -> None:
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
        return self._traffic.statistics()

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

    def admit_connection(self, connection: Connection) -> bool:
        """Count a new connection in, if there is room for it."""
        if len(self._connections) >= self.limits.connections:
            self.record_refusal("connections", f"{self.limits.connections} are open")
            return False
        self._connections.add(connection)
        return True

    def release_connection(self, connection: Connection) -> None:
        """Count a connection out that is closed and waits for nothing."""
        self._connections.discard(connection)
        if not self._connections:
            self._is_empty.set()

    def resume_sending(self, connection: Connection) -> None:
        """Send a connection that takes bytes again the events that it has missed."""
        if self._subscribers is not None:
            self._subscribers.resume_sending(connection)

    def remove_subscription(self, connection: Connection) -> None:
        """Send a connection that is gone no more events."""
        if self._subscribers is not None:
            self._subscribers.remove_subscription(connection)

    def count_settled(self) -> None:
        """Note that a waiting method has ended."""
        self._settled.set()

    def record_refusal(self, what: str, why: str) -> None:
        """Note that a connection is closed for what its peer did."""
        self._traffic.count_refusal(what, why)

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
            self._start_task(result.rest, message, connection)
            return None
        return self._encode_response(message, None, result)

    def _start_task(
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
                response = self._encode_response(message, _explain_error(error, message.method), None)
            else:
                response = self._encode_response(message, None, result)
            if response is not None:
                connection.send(response)
        finally:
            connection.finish_request()

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
        self._traffic.answered += 1
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
