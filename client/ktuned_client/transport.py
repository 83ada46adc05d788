"""Connections of the client for threads: a shared one for lookups, and one for each other request."""

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
from typing import Any, Final, Self

from ktuned_client import paths, wire
from ktuned_client.answers import DaemonError, DaemonUnavailable, check_hello, explained, result_of
from ktuned_client.progress import Event

_READ_BYTES: Final = 64 * 1024


class Transport:
    """Connections to the daemon at ``path``. Threads may share it; a forked child gets a connection of its own."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._shared: _Connection | None = None
        _transports.add(self)

    def look_up(self, question: bytes, deadline_s: float) -> Any:
        """Send a request, from its method on, over the shared connection; once more if that turns out to be dead.

        Raises:
            DaemonError: the daemon refused it.
            DaemonUnavailable: no daemon answered within ``deadline_s``.
        """
        deadline = time.monotonic() + deadline_s
        if not self._lock.acquire(timeout=deadline_s):
            raise DaemonUnavailable("other threads' lookups took the whole deadline")
        try:
            if self._shared is not None:
                try:
                    return result_of(self._shared.exchange(question, deadline))
                except ConnectionError:
                    self._drop()
            return result_of(self._connected(deadline).exchange(question, deadline))
        except DaemonError:
            raise
        except (OSError, wire.ProtocolError) as error:
            self._drop()
            raise explained(error, self.path, deadline_s) from error
        except BaseException:
            # After an interruption between question and answer, the connection's state is unknown.
            self._drop()
            raise
        finally:
            self._lock.release()

    def request(self, method: str, params: Mapping[str, Any], deadline_s: float) -> Any:
        """Send a request over a connection of its own and return its result; raises as :meth:`look_up`."""
        deadline = time.monotonic() + deadline_s
        with self._explaining(deadline_s), _Connection(self.path, deadline_s) as connection:
            return result_of(connection.request(method, params, deadline))

    def subscribe(self, params: Mapping[str, Any], deadline_s: float) -> Subscription:
        """Subscribe, over a connection of its own; raises as :meth:`look_up`."""
        deadline = time.monotonic() + deadline_s
        with self._explaining(deadline_s):
            connection = _Connection(self.path, deadline_s)
            try:
                return Subscription(connection, result_of(connection.request("subscribe", params, deadline)))
            except BaseException:
                connection.close()
                raise

    def close(self) -> None:
        """Close the shared connection; the next lookup opens another."""
        with self._lock:
            self._drop()

    def _connected(self, deadline: float) -> _Connection:
        """Open the shared connection and exchange ``hello``."""
        self._shared = _Connection(self.path, deadline - time.monotonic())
        check_hello(self._shared.request("hello", {}, deadline))
        return self._shared

    def _drop(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    @contextmanager
    def _explaining(self, deadline_s: float) -> Iterator[None]:
        try:
            yield
        except (OSError, wire.ProtocolError) as error:
            raise explained(error, self.path, deadline_s) from error

    def _forget_parent(self) -> None:
        # The lock may have been held by a thread that does not exist here.
        self._lock = threading.Lock()
        self._drop()


class Subscription:
    """The notifications of one subscription; ``start`` is its initial position. Not for several threads at once."""

    def __init__(self, connection: _Connection, start: Mapping[str, Any]) -> None:
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
    """One connection, one request at a time; unusable after an error, except one of packing params."""

    def __init__(self, path: str, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise TimeoutError
        self._socket = paths.connect(path, timeout_s)
        # Only `poll` waits: a socket with a timeout of its own would also wait before it sends.
        self._socket.setblocking(False)
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._decoder = wire.Decoder()
        self._id = 0
        self._events: deque[Event] = deque()

    def request(self, method: str, params: Mapping[str, Any], deadline: float) -> wire.Response:
        """Return the response; ``deadline`` is in ``time.monotonic``'s seconds."""
        return self.exchange(wire.encode_question(method, params), deadline)

    def exchange(self, question: bytes, deadline: float) -> wire.Response:
        """Send a request, from its method on, and return the response."""
        # Only one request is pending, so ids may repeat soon, and fit into a byte.
        request_id = self._id = (self._id + 1) % 0x80
        self._send(wire.request_head(request_id) + question, deadline)
        while True:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0 or not self._readable.poll(remaining_s * 1000):
                raise TimeoutError
            data = self._receive()
            answer = wire.decode_result(data, request_id) if self._decoder.is_between_messages else None
            if answer is not None:
                return answer
            # To the end: events may follow the answer in the same bytes.
            for message in self._decoder.feed(data):
                if type(message) is wire.Response and message.id == request_id:
                    answer = message
                else:
                    self._note(message)
            if answer is not None:
                return answer

    def next_event(self) -> Event:
        """Return the next notification ``event``, however long it takes."""
        while not self._events:
            self._readable.poll()
            for message in self._decoder.feed(self._receive()):
                self._note(message)
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

    def _note(self, message: wire.Message) -> None:
        if type(message) is wire.Notification and message.method == "event" and message.params is not None:
            self._events.append(message.params)


_transports: weakref.WeakSet[Transport] = weakref.WeakSet()


def _forget_parents() -> None:
    for transport in list(_transports):
        transport._forget_parent()


os.register_at_fork(after_in_child=_forget_parents)
