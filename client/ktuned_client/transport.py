"""Connections of the client for threads: all lookups share one, and each other request has its own.

The shared connection carries one request at a time, under a lock with a deadline. If it turns out to be dead (the
daemon was restarted), the lookup is sent once more over a new connection. A forked child must not use its parent's
connection: it closes its copy of the descriptor, and opens a connection of its own when it needs one.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self, cast

from ktuned_client import paths, wire
from ktuned_client.answers import DaemonError, DaemonUnavailable, check_hello, explain_failure, read_result

if TYPE_CHECKING:
    from ktuned_client.messages import Event, StreamPosition

_READ_BYTES: Final = 64 * 1024


class Transport:
    """Connections to the daemon at ``path``. Threads may share it; a forked child gets a connection of its own."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._shared: _Connection | None = None
        _transports.add(self)

    def look_up(self, question: bytes, deadline_s: float) -> Any:
        """Send a request over the shared connection, and again over a new one if the connection turns out to be dead.

        ``question`` holds the request's bytes from its method on.

        Raises:
            DaemonError: the daemon refused the request.
            DaemonUnavailable: no daemon answered within ``deadline_s``.
        """
        deadline = time.monotonic() + deadline_s
        if not self._lock.acquire(timeout=deadline_s):
            raise DaemonUnavailable("other threads' lookups took the whole deadline")
        try:
            if self._shared is not None:
                try:
                    return read_result(self._shared.exchange(question, deadline))
                except ConnectionError:
                    self._drop_shared()
            return read_result(self._open_shared(deadline).exchange(question, deadline))
        except DaemonError:
            raise
        except (OSError, wire.ProtocolError) as error:
            self._drop_shared()
            raise explain_failure(error, self.path, deadline_s) from error
        except BaseException:
            # Interrupted while waiting: the answer may still come later, so the connection cannot be used again.
            self._drop_shared()
            raise
        finally:
            self._lock.release()

    def request(self, method: str, params: Mapping[str, Any], deadline_s: float) -> Any:
        """Send a request over its own connection and return its result; raises as :meth:`look_up`."""
        deadline = time.monotonic() + deadline_s
        with self._explain_failures(deadline_s), _Connection(self.path, deadline_s) as connection:
            return read_result(connection.request(method, params, deadline))

    def subscribe(self, params: Mapping[str, Any], deadline_s: float) -> Subscription:
        """Subscribe, over its own connection; raises as :meth:`look_up`."""
        deadline = time.monotonic() + deadline_s
        with self._explain_failures(deadline_s):
            connection = _Connection(self.path, deadline_s)
            try:
                return Subscription(connection, read_result(connection.request("subscribe", params, deadline)))
            except BaseException:
                connection.close()
                raise

    def close(self) -> None:
        """Close the shared connection; the next lookup opens another."""
        with self._lock:
            self._drop_shared()

    def _open_shared(self, deadline: float) -> _Connection:
        """Open the shared connection and exchange ``hello``."""
        self._shared = _Connection(self.path, deadline - time.monotonic())
        check_hello(self._shared.request("hello", {}, deadline))
        return self._shared

    def _drop_shared(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    @contextmanager
    def _explain_failures(self, deadline_s: float) -> Iterator[None]:
        try:
            yield
        except (OSError, wire.ProtocolError) as error:
            raise explain_failure(error, self.path, deadline_s) from error

    def _forget_parents_connection(self) -> None:
        # A thread of the parent may have held the lock; it does not exist here and would never release it.
        self._lock = threading.Lock()
        self._drop_shared()


class Subscription:
    """The notifications of one subscription; ``start`` is its initial position. One thread at a time may use it."""

    def __init__(self, connection: _Connection, start: StreamPosition) -> None:
        self.start = start
        self._connection: _Connection | None = connection

    def next_event(self) -> Event | None:
        """Return the next event, however long it takes; ``None`` once closed.

        Raises:
            OSError, ProtocolError: the connection was lost.
        """
        return None if self._connection is None else self._connection.next_event()

    def close(self) -> None:
        """End the subscription."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Connection:
    """One connection with one request at a time; unusable after an error, unless the params could not be packed."""

    def __init__(self, path: str, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise TimeoutError
        self._socket = paths.connect(path, timeout_s)
        # Only our `poll` waits. A socket with a timeout would also poll before each send.
        self._socket.setblocking(False)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._decoder = wire.Decoder()
        self._id = 0
        self._events: deque[Event] = deque()

    def request(self, method: str, params: Mapping[str, Any], deadline: float) -> wire.Response:
        """Send a request and return the response; ``deadline`` is a time of ``time.monotonic``."""
        return self.exchange(wire.encode_question(method, params), deadline)

    def exchange(self, question: bytes, deadline: float) -> wire.Response:
        """Send a request, from its method on, and return the response."""
        # Only one request is pending at a time, so ids may repeat soon and fit into one byte.
        request_id = self._id = (self._id + 1) % 0x80
        self._send(wire.encode_request_head(request_id) + question, deadline)
        while True:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or not self._readable.poll(remaining_s * 1000):
                raise TimeoutError
            data = self._receive()
            answer = wire.decode_result(data, request_id) if self._decoder.is_between_messages else None
            if answer is not None:
                return answer
            # Read on after the answer, because events may follow it in the same bytes.
            for message in self._decoder.feed(data):
                if type(message) is wire.Response and message.id == request_id:
                    answer = message
                else:
                    self._keep_event(message)
            if answer is not None:
                return answer

    def next_event(self) -> Event:
        """Return the next event, however long it takes."""
        while not self._events:
            self._readable.poll()
            for message in self._decoder.feed(self._receive()):
                self._keep_event(message)
        return self._events.popleft()

    def close(self) -> None:
        """Close the connection to the daemon."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, data: bytes, deadline: float) -> None:
        sent = self._socket.send(data, socket.MSG_NOSIGNAL)
        if sent < len(data):
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            self._socket.sendall(data[sent:], socket.MSG_NOSIGNAL)
            self._socket.setblocking(False)

    def _receive(self) -> bytes:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the daemon closed the connection")
        return data

    def _keep_event(self, message: wire.Message) -> None:
        if type(message) is wire.Notification and message.method == "event" and message.params is not None:
            self._events.append(cast("Event", message.params))


_transports: weakref.WeakSet[Transport] = weakref.WeakSet()


def _forget_parents() -> None:
    for transport in list(_transports):
        transport._forget_parents_connection()


os.register_at_fork(after_in_child=_forget_parents)
