"""The protocol's methods (docs/protocol.md): each asks the part that knows."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import ktuned
from ktuned.lookup import Lookups
from ktuned.protocol import (
    BACKENDS,
    HELLO,
    SHUTDOWN,
    STATUS,
    NoParams,
)
from ktuned.serve.connection import Connection
from ktuned.serve.events import Events
from ktuned.serve.method import Handler
from ktuned_client.wire import PROTOCOL_VERSION

CAPABILITIES = ("lookup", "tune", "subscribe", "pin", "capture", "export")
"""Features that a client may rely on besides the protocol's version."""


class Methods:
    """Handlers of the protocol's methods; ``status`` and ``stop`` are the daemon's."""

    def __init__(
        self,
        *,
        lookups: Lookups,
        events: Events,
        status: Callable[[], dict[str, Any]],
        probe: Callable[[], Awaitable[list[dict[str, Any]]]],
        stop: Callable[[], None],
    ) -> None:
        self._lookups = lookups
        self._events = events
        self._status = status
        self._probe = probe
        self._stop = stop

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return every method with its handler."""
        return [
            Handler(HELLO, self.handle_hello),
            Handler(BACKENDS, self.handle_backends),
            Handler(STATUS, self.handle_status),
            Handler(SHUTDOWN, self.handle_shutdown),
        ]

    def handle_hello(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Say who serves here."""
        return {
            "protocol": PROTOCOL_VERSION,
            "build": ktuned.__version__,
            "capabilities": list(CAPABILITIES),
            "epoch": self._events.epoch,
            "table": self._lookups.table.path,
            "pid": os.getpid(),
        }

    async def handle_backends(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Say what every environment's backends are and can do, asking those that have not been asked yet."""
        return {"environments": await self._probe()}

    def handle_status(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Say how every part does."""
        return self._status()

    def handle_shutdown(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Stop the daemon; the next one continues unfinished jobs."""
        self._stop()
        return {}
