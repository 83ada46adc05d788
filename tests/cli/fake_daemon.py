"""A daemon with a real Unix socket and the real wire protocol, whose answers a test sets."""

from __future__ import annotations

import os
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from ktuned_client import wire
from tests.cli.samples import make_status_map

Params = dict[str, Any]
Handler = Callable[[Params], Any]


class Refusal(Exception):
    """Raised by a handler to answer the request with an error."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, "hint": hint}


class FakeDaemon:
    """Answers each method with its handler's result or with a fixed value, and sends ``events`` to a subscriber.

    Attributes:
        calls: every (method, params) in order, without the ``directory`` parameter.
        directories: every (method, directory) in order.
        hangs_up: whether the connection is closed after the events.
        has_sent_events: set after the events.
    """

    def __init__(self, directory: Path, answers: Mapping[str, Any], events: list[Params] | None = None) -> None:
        self.path = directory / "s" / "ktuned.sock"
        self.calls: list[tuple[str, Params]] = []
        self.directories: list[tuple[str, str | None]] = []
        self.has_sent_events = threading.Event()
        self.hangs_up = False
        hello = {"protocol": wire.PROTOCOL_VERSION, "build": "0.1.0"}
        self._answers = {"hello": hello, "status": make_status_map(), **answers}
        self._events = events or []
        self._selector = selectors.DefaultSelector()
        self._decoders: dict[socket.socket, wire.Decoder] = {}
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._serve_until_stopped)

    def __enter__(self) -> Self:
        self.path.parent.mkdir(mode=0o700)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.write(self._wake_writer, b"x")
        self._thread.join()
        for connection in [*self._decoders, self._listener]:
            connection.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        self._selector.close()

    def find_params(self, method: str) -> Params:
        """Return the params of the only call of a method."""
        (params,) = [params for called, params in self.calls if called == method]
        return params

    def _serve_until_stopped(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == self._wake_reader:
                    return
                if key.fileobj is self._listener:
                    connection, _ = self._listener.accept()
                    self._decoders[connection] = wire.Decoder()
                    self._selector.register(connection, selectors.EVENT_READ)
                elif isinstance(key.fileobj, socket.socket):
                    self._answer_connection(key.fileobj)

    def _answer_connection(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            self._close_connection(connection)
            return
        try:
            for message in self._decoders[connection].feed(data):
                assert isinstance(message, wire.Request)
                self._answer_request(connection, message)
        except ConnectionError:
            # A command that was interrupted went away between its question and the answer.
            self._close_connection(connection)

    def _close_connection(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._decoders[connection]
        connection.close()

    def _answer_request(self, connection: socket.socket, request: wire.Request) -> None:
        params = dict(request.params or {})
        self.directories.append((request.method, params.pop("directory", None)))
        self.calls.append((request.method, params))
        answer = self._answers.get(request.method, {"epoch": 7, "seq": 0})
        try:
            result, error = (answer(params) if callable(answer) else answer), None
        except Refusal as refusal:
            result, error = None, refusal.error
        connection.sendall(wire.encode_response(request.id, error, result))
        if request.method == "subscribe":
            self._send_events(connection)

    def _send_events(self, connection: socket.socket) -> None:
        try:
            for number, event in enumerate(self._events, 1):
                full = {"epoch": 7, "seq": number, **event}
                connection.sendall(wire.encode_notification("event", full))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the subscriber has heard enough
        self.has_sent_events.set()
        if self.hangs_up:
            self._close_connection(connection)
