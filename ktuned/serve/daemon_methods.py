"""The methods ``hello``, ``status``, ``backends`` and ``shutdown``: the daemon itself."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ktuned.lookup import WinnerTable
from ktuned.model import FrozenStruct
from ktuned.protocol import (
    BACKENDS,
    HELLO,
    SHUTDOWN,
    STATUS,
    VERSION,
    BackendsAnswer,
    EmptyAnswer,
    EnvironmentInfo,
    HelloAnswer,
    NoParams,
    StatusAnswer,
)
from ktuned.serve.events import Events
from ktuned.serve.method import Handler, Peer
from ktuned_client.wire import PROTOCOL_VERSION


class DaemonMethods(FrozenStruct, kw_only=True):
    """Handles the methods about the daemon itself.

    Attributes:
        events: The stream of events.
        table: The table of winners.
        status: Returns the daemon's status.
        probe: Asks interpreters for their backends.
        stop: Ends the daemon.
    """

    events: Events
    table: WinnerTable
    status: Callable[[], StatusAnswer]
    probe: Callable[[], Awaitable[Iterable[EnvironmentInfo]]]
    stop: Callable[[], None]

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [
            Handler(HELLO, self.handle_hello),
            Handler(STATUS, self.handle_status),
            Handler(BACKENDS, self.handle_backends),
            Handler(SHUTDOWN, self.handle_shutdown),
        ]

    def handle_hello(self, nothing: NoParams, peer: Peer) -> HelloAnswer:
        """Return the daemon's version and process id."""
        return HelloAnswer(
            protocol=PROTOCOL_VERSION,
            build=VERSION,
            epoch=self.events.epoch,
            table=self.table.path,
            pid=os.getpid(),
        )

    def handle_status(self, nothing: NoParams, peer: Peer) -> StatusAnswer:
        """Return the status of every part of the daemon."""
        return self.status()

    async def handle_backends(self, nothing: NoParams, peer: Peer) -> BackendsAnswer:
        """Return each environment's backends and their features; probes environments that were not probed yet."""
        return BackendsAnswer(tuple(await self.probe()))

    def handle_shutdown(self, nothing: NoParams, peer: Peer) -> EmptyAnswer:
        """Stop the daemon; the next one continues unfinished jobs."""
        self.stop()
        return EmptyAnswer()
