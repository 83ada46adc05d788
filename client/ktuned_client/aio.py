"""The client for asyncio (and anyio on it): :class:`ktuned_client.client.Client`, awaited."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, Self

from ktuned_client import paths, wire
from ktuned_client.answers import (
    CALL_DEADLINE_S,
    LOOKUP_DEADLINE_S,
    TUNE_DEADLINE_S,
    Backoff,
    DaemonError,
    DaemonUnavailable,
    Hit,
    explained,
    given,
    hit_from,
    next_id,
    question,
    result_of,
    unavailable,
)
from ktuned_client.progress import Event, Progress

MAX_UNREAD_EVENTS: Final = 1000
"""Beyond these the connection is not read until the caller has caught up, and the daemon holds the rest."""


_READ_BYTES: Final = 64 * 1024


class AsyncClient:
    """Looks winners up, and asks the daemon for everything else.

    Arguments as of :class:`~ktuned_client.client.Client`. All tasks of a loop share one connection, made when it is
    first needed; responses are matched by id, so that a cancelled request leaves the others as they are. Another
    loop, and with it a forked child, gets a connection of its own.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, deadline_s: float = LOOKUP_DEADLINE_S) -> None:
        self.socket = paths.socket_path() if socket is None else os.fspath(socket)
        self.deadline_s = deadline_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connecting = asyncio.Lock()
        self._connection: _Connection | None = None
        self._backoff = Backoff()

    async def lookup(
        self,
        kernel: str,
        problem: Mapping[str, Any],
        default: Mapping[str, Any] | None = None,
        device: str | None = None,
    ) -> Hit:
        """Return the best config known now, or ``default``; as :meth:`ktuned_client.client.Client.lookup`."""
        if self._backoff.is_waiting:
            return unavailable(kernel, problem, device, default, self._backoff.message)
        try:
            response = await self._ask("lookup", question(kernel, problem, device), self.deadline_s)
            self._backoff.succeeded()
            return hit_from(result_of(response), default)
        except DaemonUnavailable as error:
            self._backoff.failed(str(error))
            return unavailable(kernel, problem, device, default, str(error))
        except (DaemonError, TypeError, ValueError) as error:
            return unavailable(kernel, problem, device, default, str(error))

    async def call(self, method: str, *, deadline_s: float = CALL_DEADLINE_S, **params: Any) -> Any:
        """Send one request and return its result; raises as :meth:`ktuned_client.client.Client.call`."""
        return result_of(await self._ask(method, params, deadline_s))

    async def events(
        self,
        *,
        since: tuple[int, int] | None = None,
        kernels: Iterable[str] | None = None,
        jobs: Iterable[int] | None = None,
        types: Iterable[str] | None = None,
        deadline_s: float = CALL_DEADLINE_S,
    ) -> AsyncEventStream:
        """Subscribe, over a connection of its own; as :meth:`ktuned_client.client.Client.events`."""
        params = given(
            since=list(since) if since else None,
            kernels=list(kernels) if kernels is not None else None,
            jobs=list(jobs) if jobs is not None else None,
            types=list(types) if types is not None else None,
        )
        return await AsyncEventStream.open(self.socket, params, deadline_s)

    async def tune(
        self,
        kernel: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        deadline_s: float = TUNE_DEADLINE_S,
        **options: Any,
    ) -> AsyncTuning:
        """Ask for a tuning, and return the iterator of its events; as :meth:`ktuned_client.client.Client.tune`."""
        where = None if path is None else os.path.abspath(path)
        accepted = await self.call("tune", deadline_s=deadline_s, **given(kernel=kernel, path=where, **options))
        return AsyncTuning(self, accepted)

    async def aclose(self) -> None:
        """Close the shared connection; requests under way fail, the next one opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _ask(self, method: str, params: Mapping[str, Any], deadline_s: float) -> wire.Response:
        try:
            async with asyncio.timeout(deadline_s):
                connection = await self._connected()
                return await connection.request(method, params)
        except (OSError, wire.ProtocolError) as error:
            raise explained(error, self.socket, deadline_s) from error

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            self._connecting = asyncio.Lock()
            self._connection = None
        if self._connection is not None and self._connection.is_open:
            return self._connection
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                self._connection = await _open(self.socket)
            return self._connection


class AsyncEventStream(AsyncIterator[Event]):
    """The events of one subscription, over a connection of its own; ``epoch`` and ``seq`` are where it stands."""

    def __init__(self, path: str, connection: _Connection, start: Mapping[str, Any]) -> None:
        self.epoch: int = start["epoch"]
        self.seq: int = start["seq"]
        self._path = path
        self._connection = connection

    @classmethod
    async def open(cls, path: str, params: Mapping[str, Any], deadline_s: float) -> Self:
        """Subscribe; raises as :meth:`AsyncClient.events`."""
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(deadline_s):
                connection = await _open(path)
                return cls(path, connection, result_of(await connection.request("subscribe", params)))
        except BaseException as error:
            if connection is not None:
                connection.close()
            if isinstance(error, OSError | wire.ProtocolError):
                raise explained(error, path, deadline_s) from error
            raise

    async def __anext__(self) -> Event:
        try:
            event = await self._connection.next_event()
        except (OSError, wire.ProtocolError) as error:
            raise explained(error, self._path, 0.0) from error
        self.epoch, self.seq = event["epoch"], event["seq"]
        return event

    async def aclose(self) -> None:
        """End the subscription."""
        self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncTuning(AsyncIterator[Event]):
    """The events of one tuning's jobs; as :class:`ktuned_client.client.Tuning`."""

    def __init__(self, client: AsyncClient, accepted: Mapping[str, Any]) -> None:
        self.errors: list[dict[str, Any]] = accepted.get("errors", [])
        self._client = client
        self._progress = Progress(accepted)
        self._ready = deque(self._progress.catch_up(accepted["jobs"]))
        self._stream: AsyncEventStream | None = None

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """The jobs' maps, as last heard; final when the iterator has ended."""
        return self._progress.jobs

    async def __anext__(self) -> Event:
        while not self._ready:
            if self._progress.is_over:
                await self.aclose()
                raise StopAsyncIteration
            event = await anext(await self._subscription())
            if self._progress.take(event):
                self._ready.append(event)
            if event.get("fresh"):
                answer = await self._client.call("jobs", ids=self._progress.open_jobs)
                self._ready += self._progress.catch_up(answer["jobs"])
        return self._ready.popleft()

    async def aclose(self) -> None:
        """Stop listening; the jobs go on."""
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _subscription(self) -> AsyncEventStream:
        if self._stream is None:
            since = (self._progress.epoch, self._progress.seq)
            self._stream = await self._client.events(since=since, jobs=[job["id"] for job in self.jobs])
        return self._stream


class _Connection(asyncio.BufferedProtocol):
    """One connection: requests matched to responses by id, and events in the order in which they came."""

    def __init__(self) -> None:
        self._decoder = wire.Decoder()
        # A plain protocol has 256 KiB allocated for each read, which costs more than the read.
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

    async def request(self, method: str, params: Mapping[str, Any]) -> wire.Response:
        request_id = self._id = next_id(self._id)
        data = wire.encode_request(request_id, method, params)
        if self._error is not None or self._transport is None:
            raise self._error or ConnectionResetError("the connection was closed")
        answer: asyncio.Future[wire.Response] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = answer
        self._transport.write(data)
        try:
            return await answer
        finally:
            self._waiting.pop(request_id, None)

    async def next_event(self) -> Event:
        """Return the next event.

        Raises:
            StopAsyncIteration: this side closed the connection.
            OSError, ProtocolError: it was lost.
        """
        while not self._events:
            if self._transport is None:
                raise StopAsyncIteration
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
        self._fail(ConnectionResetError("the connection was closed"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            messages = self._decoder.feed(bytes(self._read_buffer[:nbytes]))
        except wire.ProtocolError as error:
            self._fail(error)
            if self._transport is not None:
                self._transport.abort()
            return
        for message in messages:
            if type(message) is wire.Response:
                # One that nobody waits for any more answers a request that was cancelled.
                answer = self._waiting.pop(message.id, None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
            elif type(message) is wire.Notification and message.method == "event" and message.params is not None:
                self._note(message.params)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionResetError("the daemon closed the connection"))

    def _note(self, event: Event) -> None:
        self._events.append(event)
        self._event_came.set()
        if len(self._events) >= MAX_UNREAD_EVENTS and self._transport is not None:
            self._transport.pause_reading()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._error)
        self._waiting.clear()
        self._event_came.set()


async def _open(path: str) -> _Connection:
    """Connect, with every check; on a Unix socket that is done at once or not at all."""
    connection = paths.connect(path, 0.0)
    try:
        _, protocol = await asyncio.get_running_loop().create_unix_connection(_Connection, sock=connection)
    except BaseException:
        connection.close()
        raise
    return protocol
