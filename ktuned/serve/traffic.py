"""The server's traffic: the open connections, and counts of answers and refusals since the start.

It stands apart from the server, because the method ``status`` reports it and is itself one of the server's methods.
"""

from __future__ import annotations

from time import monotonic
from typing import Final

import structlog

from ktuned.lookup import Shortcuts
from ktuned.protocol import TrafficInfo
from ktuned.serve.connection import Connection

REFUSAL_LOG_S: Final = 1.0
"""Least time between two log entries of connections that were closed for a fault of their peer; others are only
counted, so that a peer that keeps coming back cannot fill the disk."""

log = structlog.get_logger()


class Traffic:
    """Counts of a server; ``shortcuts`` count the requests that they answered before it saw them."""

    def __init__(self, shortcuts: Shortcuts | None = None) -> None:
        self.connections: set[Connection] = set()
        self.answered = 0
        self._shortcuts = shortcuts
        self._refused = 0
        self._logged = -REFUSAL_LOG_S

    def describe_traffic(self) -> TrafficInfo:
        """Return how many connections there are, what waits, and what was answered and refused since the start."""
        return TrafficInfo(
            connections=len(self.connections),
            pending=sum(connection.pending for connection in self.connections),
            answered=self.answered + (0 if self._shortcuts is None else self._shortcuts.taken),
            refused=self._refused,
        )

    def count_refusal(self, limit: str, reason: str) -> None:
        """Count a connection that is closed for what its peer did."""
        self._refused += 1
        now = monotonic()
        if now - self._logged >= REFUSAL_LOG_S:
            self._logged = now
            log.warning("connection_refused", limit=limit, why=reason, refused=self._refused)
