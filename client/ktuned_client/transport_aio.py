"""Connections of the client for asyncio: all requests of a loop share one, and each subscription has its own.

Responses are matched to requests by id, so a cancelled request does not affect the others; its response is dropped. A
connection belongs to its loop. If the loop is closed, or the process is a forked child, the connection cannot be closed
in the usual way. It is *detached* then: only this process's descriptor is closed, and nothing shared with a parent is
touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from ktuned_client import paths, wire
from ktuned_client.answers import check_hello, explain_failure, next_id, read_result

if TYPE_CHECKING:
    from ktuned_client.messages import Event, StreamPosition

MAX_UNREAD_EVENTS: Final = 1000
"""Most unread events. When there are so many, the connection is not read until the caller has taken them."""

_READ_BYTES: Final = 64 * 1024


class AsyncTransport:
    """Connections to the daemon at ``path``, one for each loop; has the methods of
    :class:`ktuned_client.transport.Transport` as coroutines.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._shared: dict[asyncio.AbstractEventLoop, _SharedConnection] = {}
        _transports.add(self)

    async def look_up(self, question: bytes, deadline_s: float) -> Any:
        """Send a request and return its result; send it again if the connection turns out to be dead.

        ``question`` holds the request's bytes from its method on.

        Raises:
            DaemonError: the daemon refused the request.
            DaemonUnavailable: no daemon answered within ``deadline_s``.
        """
        try:
            async with asyncio.timeout(deadline_s):
                former_connection = self._find_shared().connection
                connection = await self._open_shared()
                try:
                    response = await connection.exchange(question)
                except ConnectionError:
                    if connection is not former_connection:
                        raise
                    response = await (await self._open_shared()).exchange(question)
        except (OSError, wire.ProtocolError) as error:
            raise explain_failure(error, self.path, deadline_s) from error
        return read_result(response)

    async def request(self, method: str, params: Mapping[str, Any], deadline_s: float) -> Any:
        """Send a request once and return its result; raises as :meth:`look_up`."""
        question = wire.encode_question(method, params)
        try:
            async with asyncio.timeout(deadline_s):
                response = await (await self._open_shared()).exchange(question)
        except (OSError, wire.ProtocolError) as error:
            raise explain_failure(error, self.path, deadline_s) from error
        return read_result(response)

    async def subscribe(self, params: Mapping[str, Any], deadline_s: float) -> AsyncSubscription:
        """Subscribe, over its own connection; raises as :meth:`look_up`."""
        connection: _AioConnection | None = None
        try:
            async with asyncio.timeout(deadline_s):
                connection = await _open_connection(self.path)
                question = wire.encode_question("subscribe", params)
                return AsyncSubscription(connection, read_result(await connection.exchange(question)))
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, OSError | wire.ProtocolError):
                raise explain_failure(error, self.path, deadline_s) from error
            raise

    async def close(self) -> None:
        """Close every loop's connection; pending requests fail, and the next request opens a new connection."""
        here = asyncio.get_running_loop()
        while self._shared:
            loop, shared = self._shared.popitem()
            if shared.connection is None:
                continue
            if loop is here:
                shared.connection.close()
            elif loop.is_closed():
                shared.connection.detach()
            else:
                # A transport must be closed in its loop's thread. If the loop was closed meanwhile, this does nothing.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(shared.connection.close)

    def _find_shared(self) -> _SharedConnection:
        """Return the running loop's connection, and detach the connections of closed loops."""
        loop = asyncio.get_running_loop()
        shared = self._shared.get(loop)
        if shared is None:
            for other in [known for known in list(self._shared) if known.is_closed()]:
                ended = self._shared.pop(other, None)
                if ended is not None and ended.connection is not None:
                    ended.connection.detach()
            shared = self._shared[loop] = _SharedConnection()
        return shared

    async def _open_shared(self) -> _AioConnection:
        shared = self._find_shared()
        if shared.connection is not None and shared.connection.is_open:
            return shared.connection
        async with shared.connecting:
            if shared.connection is None or not shared.connection.is_open:
                connection = await _open_connection(self.path)
                try:
                    check_hello(await connection.exchange(wire.encode_question("hello", {})))
                except BaseException:
                    connection.close()
                    raise
                shared.connection = connection
            return shared.connection

    def _forget_parents_connections(self) -> None:
        # Closing them through their transports would remove them from the epoll instance that the parent shares.
        for shared in self._shared.values():
            if shared.connection is not None:
                shared.connection.detach()
        self._shared.clear()


@dataclass(slots=True)
class _SharedConnection:
    """One loop's connection, and the lock under which it is made."""

    connecting: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: _AioConnection | None = None


class AsyncSubscription:
    """The notifications of one subscription; ``start`` is its initial position."""

    def __init__(self, connection: _AioConnection, start: StreamPosition) -> None:
        self.start = start
        self._connection = connection

    async def next_event(self) -> Event | None:
        """Return the next event; ``None`` once closed.

        Raises:
            OSError, ProtocolError: the connection was lost.
        """
        return await self._connection.next_event()

    async def close(self) -> None:
        """End the subscription."""
        self._connection.close()


class _AioConnection(asyncio.BufferedProtocol):
    """One connection: responses matched to requests by id, and events in order of arrival."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._decoder = wire.Decoder()
        # We provide the buffer: a plain protocol allocates 256 KiB for each read, which costs more than the read.
        self._read_buffer = memoryview(bytearray(_READ_BYTES))
        self._id = 0
        self._waiting: dict[int, asyncio.Future[wire.Response]] = {}
        self._events: deque[Event] = deque()
        self._event_came = asyncio.Event()
        self._transport: asyncio.Transport | None = None
        self._error: Exception | None = None

    @property
    def is_open(self) -> bool:
        return self._error is None and self._transport is not None and not self._transport.is_closing()

    async def exchange(self, question: bytes) -> wire.Response:
        """Send a request, from its method on, and return the response."""
        request_id = self._id = next_id(self._id)
        if self._error is not None or self._transport is None:
            raise self._error or ConnectionResetError("the connection was closed")
        answer: asyncio.Future[wire.Response] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        self._transport.write(wire.encode_request_head(request_id) + question)
        try:
            return await answer
        finally:
            self._waiting.pop(request_id, None)

    async def next_event(self) -> Event | None:
        """Return the next event; ``None`` when this side closed the connection."""
        while not self._events:
            if self._transport is None:
                return None
            if self._error is not None:
                raise self._error
            self._event_came.clear()
            await self._event_came.wait()
        event = self._events.popleft()
        if not self._events and self._transport is not None:
            self._transport.resume_reading()
        return event

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._fail_requests(ConnectionResetError("the connection was closed"))

    def detach(self) -> None:
        """Close only this process's descriptor, so that nothing shared with a parent is touched."""
        descriptor = self._socket.detach()
        if descriptor >= 0:
            os.close(descriptor)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast instead of a check, because uvloop's transport is not a subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            messages = self._decoder.feed(bytes(self._read_buffer[:nbytes]))
        except wire.ProtocolError as error:
            self._fail_requests(error)
            if self._transport is not None:
                self._transport.abort()
            return
        for message in messages:
            if type(message) is wire.Response:
                # If no request waits for this response, it was cancelled.
                answer = self._waiting.pop(message.id, None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            elif type(message) is wire.Notification and message.method == "event" and message.params is not None:
                self._keep_event(cast("Event", message.params))

    def connection_lost(self, error: Exception | None) -> None:
        self._fail_requests(error or ConnectionResetError("the daemon closed the connection"))

    def _keep_event(self, event: Event) -> None:
        self._events.append(event)
        self._event_came.set()
        if len(self._events) >= MAX_UNREAD_EVENTS and self._transport is not None:
            self._transport.pause_reading()

    def _fail_requests(self, error: Exception) -> None:
        self._error = self._error or error
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._error)
        self._waiting.clear()
        self._event_came.set()


async def _open_connection(path: str) -> _AioConnection:
    """Connect, with all checks; on a Unix socket this succeeds or fails at once."""
    connection = paths.connect(path, 0.0)
    try:
        _, protocol = await asyncio.get_running_loop().create_unix_connection(
            lambda: _AioConnection(connection), sock=connection
        )
    except BaseException:
        connection.close()
        raise
    return protocol


_transports: weakref.WeakSet[AsyncTransport] = weakref.WeakSet()


def _forget_parents() -> None:
    for transport in list(_transports):
        transport._forget_parents_connections()


os.register_at_fork(after_in_child=_forget_parents)
