"""Limits of peers of the daemon's socket, with the reason beside each.

They stand by themselves because the server and its connections share them, and docs/protocol.md lists them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ktuned_client import wire

MAX_CONNECTIONS: Final = 800
"""Open connections: below the usual limit of 1024 file descriptors, with room for workers and the store."""

MAX_PENDING: Final = 256
"""Requests of one connection whose methods still wait; one application's threads ask for far fewer at once."""

WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Unread answers and events of one connection beyond which it gets no more until it has read."""


class Limits(msgspec.Struct, frozen=True):
    """Limits of one connection, and of their number."""

    connections: int = MAX_CONNECTIONS
    pending: int = MAX_PENDING
    request_bytes: int = wire.MAX_REQUEST_BYTES
    request_items: int = wire.MAX_REQUEST_ITEMS
    response_bytes: int = wire.MAX_MESSAGE_BYTES
    write_buffer_bytes: int = WRITE_BUFFER_BYTES
