"""The client for threads: lookups that never raise and never wait long, and calls that do."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
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

_READ_BYTES: Final = 64 * 1024


class Client:
    """Looks winners up, and asks the daemon for everything else.

    ``socket`` is the path of the daemon's socket (default: :func:`ktuned_client.paths.socket_path`), ``deadline_s``
    how long a lookup may take. Threads may share a client; a forked child gets a connection of its own. Lookups share
    one connection, which is made when it is first needed; every other request has its own.
    """

    def __init__(self, socket: str | os.PathLike[str] | None = None, *, deadline_s: float = LOOKUP_DEADLINE_S) -> None:
        self.socket = paths.socket_path() if socket is None else os.fspath(socket)
        self.deadline_s = deadline_s
        self._lock = threading.Lock()
        self._channel: _Channel | None = None
        self._backoff = Backoff()
        _clients.add(self)

    def lookup(
        self,
        kernel: str,
        problem: Mapping[str, Any],
        default: Mapping[str, Any] | None = None,
        device: str | None = None,
    ) -> Hit:
        """Return the best config known now, or ``default``; never raises for want of a daemon, nor waits for one.

        Past the deadline, without a daemon, or when it refuses the question, the hit's status is ``unavailable``
        and its ``message`` says why. ``device`` is a seat (``cuda:1``) or a model; ``None`` is the kernel's first.
        """
        if self._backoff.is_waiting:
            return unavailable(kernel, problem, device, default, self._backoff.message)
        try:
            response = self._ask("lookup", question(kernel, problem, device))
            self._backoff.succeeded()
            return hit_from(result_of(response), default)
        except DaemonUnavailable as error:
            self._backoff.failed(str(error))
            return unavailable(kernel, problem, device, default, str(error))
        except (DaemonError, TypeError, ValueError) as error:
            return unavailable(kernel, problem, device, default, str(error))

    def call(self, method: str, *, deadline_s: float = CALL_DEADLINE_S, **params: Any) -> Any:
        """Send one request and return its result.

        Raises:
            DaemonError: the daemon refused it.
            DaemonUnavailable: no daemon answered within ``deadline_s``.
        """
        try:
            with _Channel(self.socket, deadline_s) as channel:
                return result_of(channel.request(method, params, time.monotonic() + deadline_s))
        except (OSError, wire.ProtocolError) as error:
            raise explained(error, self.socket, deadline_s) from error

    def events(
        self,
        *,
        since: tuple[int, int] | None = None,
        kernels: Iterable[str] | None = None,
        jobs: Iterable[int] | None = None,
        types: Iterable[str] | None = None,
        deadline_s: float = CALL_DEADLINE_S,
    ) -> EventStream:
        """Subscribe, and return an iterator of event maps that ends only with the daemon or with ``close``.

        ``since`` is an (epoch, seq) from which to replay; an event ``{"fresh": True, …}`` stands for a gap.

        Raises:
            DaemonError: the daemon refused the filter.
            DaemonUnavailable: no daemon answered within ``deadline_s``.
        """
        params = given(
            since=list(since) if since else None,
            kernels=list(kernels) if kernels is not None else None,
            jobs=list(jobs) if jobs is not None else None,
            types=list(types) if types is not None else None,
        )
        return EventStream(self.socket, params, deadline_s)

    def tune(
        self,
        kernel: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        deadline_s: float = TUNE_DEADLINE_S,
        **options: Any,
    ) -> Tuning:
        """Ask for a tuning, and return the iterator of its events, which ends when all its jobs have.

        Give ``kernel`` or ``path`` (a kernel file or a directory). ``options``: ``problem``, ``device``, ``preset``,
        ``trials``, ``seconds``, ``strategy``, ``seed``, ``python``, ``priority``; ``None`` leaves one out.

        Raises:
            DaemonError: the daemon refused it.
            DaemonUnavailable: no daemon accepted it within ``deadline_s``.
        """
        where = None if path is None else os.path.abspath(path)
        accepted = self.call("tune", deadline_s=deadline_s, **given(kernel=kernel, path=where, **options))
        return Tuning(self, accepted)

    def close(self) -> None:
        """Close the lookups' connection; the next lookup opens another."""
        with self._lock:
            self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, params: Mapping[str, Any]) -> wire.Response:
        """Send a request over the shared connection, once more if the connection turns out to be a dead one."""
        deadline = time.monotonic() + self.deadline_s
        if not self._lock.acquire(timeout=self.deadline_s):
            raise DaemonUnavailable("other threads' lookups took the whole deadline")
        try:
            channel = self._channel
            if channel is not None:
                try:
                    return channel.request(method, params, deadline)
                except ConnectionError:
                    self._drop()
            channel = self._channel = _Channel(self.socket, deadline - time.monotonic())
            return channel.request(method, params, deadline)
        except (OSError, wire.ProtocolError) as error:
            self._drop()
            raise explained(error, self.socket, self.deadline_s) from error
        except (TypeError, ValueError):
            raise
        except BaseException:
            # Interrupted between question and answer: the connection's state is unknown.
            self._drop()
            raise
        finally:
            self._lock.release()

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _forget_parent(self) -> None:
        # The lock may have been held by a thread that does not exist here.
        self._lock = threading.Lock()
        self._drop()
        self._backoff = Backoff()


class EventStream(Iterator[Event]):
    """The events of one subscription, over a connection of its own; not for several threads at once.

    ``epoch`` and ``seq`` are where the stream stands: the ``since`` of a later subscription.
    """

    def __init__(self, path: str, params: Mapping[str, Any], deadline_s: float) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self._channel: _Channel | None = None
        try:
            self._channel = _Channel(path, deadline_s)
            start = result_of(self._channel.request("subscribe", params, time.monotonic() + deadline_s))
        except (OSError, wire.ProtocolError) as error:
            self.close()
            raise explained(error, path, deadline_s) from error
        except BaseException:
            self.close()
            raise
        self.epoch: int = start["epoch"]
        self.seq: int = start["seq"]

    def __next__(self) -> Event:
        if self._channel is None:
            raise StopIteration
        try:
            event = self._channel.next_event()
        except (OSError, wire.ProtocolError) as error:
            self.close()
            raise explained(error, self._path, self._deadline_s) from error
        self.epoch, self.seq = event["epoch"], event["seq"]
        return event

    def close(self) -> None:
        """End the subscription."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Tuning(Iterator[Event]):
    """The events of one tuning's jobs; ``errors`` are the kernel files that could not be read.

    Closing it, or never iterating it, leaves the jobs running.
    """

    def __init__(self, client: Client, accepted: Mapping[str, Any]) -> None:
        self.errors: list[dict[str, Any]] = accepted.get("errors", [])
        self._client = client
        self._progress = Progress(accepted)
        self._ready = deque(self._progress.catch_up(accepted["jobs"]))
        self._stream: EventStream | None = None

    @property
    def jobs(self) -> list[dict[str, Any]]:
        """The jobs' maps, as last heard; final when the iterator has ended."""
        return self._progress.jobs

    def __next__(self) -> Event:
        while not self._ready:
            if self._progress.is_over:
                self.close()
                raise StopIteration
            event = next(self._subscription())
            if self._progress.take(event):
                self._ready.append(event)
            if event.get("fresh"):
                answer = self._client.call("jobs", ids=self._progress.open_jobs)
                self._ready += self._progress.catch_up(answer["jobs"])
        return self._ready.popleft()

    def close(self) -> None:
        """Stop listening; the jobs go on."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _subscription(self) -> EventStream:
        if self._stream is None:
            since = (self._progress.epoch, self._progress.seq)
            self._stream = self._client.events(since=since, jobs=[job["id"] for job in self.jobs])
        return self._stream


class _Channel:
    """One connection, one request at a time; what it raises leaves it useless, except for params that do not pack."""

    def __init__(self, path: str, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise TimeoutError
        self._socket = paths.connect(path, timeout_s)
        self._timeout_s: float | None = timeout_s
        self._decoder = wire.Decoder()
        self._id = 0
        self._events: deque[Event] = deque()

    def request(self, method: str, params: Mapping[str, Any], deadline: float) -> wire.Response:
        """Return the response; ``deadline`` is in ``time.monotonic``'s seconds."""
        request_id = self._id = next_id(self._id)
        data = wire.encode_request(request_id, method, params)
        self._wait_until(deadline)
        self._socket.sendall(data)
        while True:
            answer: wire.Response | None = None
            # To the end: events may follow the answer in the same bytes.
            for message in self._receive():
                if type(message) is wire.Response and message.id == request_id:
                    answer = message
                else:
                    self._note(message)
            if answer is not None:
                return answer
            self._wait_until(deadline)

    def next_event(self) -> Event:
        """Return the next notification ``event``, however long it takes."""
        while not self._events:
            self._set_timeout(None)
            for message in self._receive():
                self._note(message)
        return self._events.popleft()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _receive(self) -> list[wire.Message]:
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the daemon closed the connection")
        return self._decoder.feed(data)

    def _note(self, message: wire.Message) -> None:
        if type(message) is wire.Notification and message.method == "event" and message.params is not None:
            self._events.append(message.params)

    def _wait_until(self, deadline: float) -> None:
        remaining_s = deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self._set_timeout(remaining_s)

    def _set_timeout(self, timeout_s: float | None) -> None:
        # The kernel waits in whole milliseconds, so less of a difference is not worth the system call.
        if timeout_s is None or self._timeout_s is None or not 0 <= self._timeout_s - timeout_s < 0.001:
            self._timeout_s = timeout_s
            self._socket.settimeout(timeout_s)


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _forget_parents() -> None:
    for client in list(_clients):
        client._forget_parent()


os.register_at_fork(after_in_child=_forget_parents)
