"""A direct connection between the bridge and a keeper's actor, instead of calls of the actor.

A call of an actor and its answer take 3 ms, and 1.5 ms of CPU on each side; a connection takes a tenth of that.

The actor listens on its node's address for one connection, for a few seconds, and the bridge connects: nothing listens
where the daemon runs. Each side proves that it knows a secret, which travels in a call of the actor. They exchange
random bytes, and each sends a keyed digest of both and of its own role, so that a proof can be neither repeated nor
sent back. If the node cannot be reached, or Ray encrypts its traffic, calls of the actor carry the bytes instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
from collections.abc import Mapping
from typing import Final

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

SECRET_BYTES: Final = 32
_PROOF = "sha256"

WAIT_S: Final = 10.0
"""How long the actor listens for the bridge, in seconds."""

CONNECT_S: Final = 2.0
"""Deadline for connecting and proving the secret. Behind a firewall that drops packets, it is lost once for each node.
"""

MAX_STRANGERS: Final = 16
"""Most connections that may be proving the secret at a time, because anybody in the network may try."""


class NoDirectConnection(Exception):
    """There can be no direct connection; the message says why."""


def is_allowed(environ: Mapping[str, str]) -> bool:
    """Return whether bytes may bypass Ray, which they may not if Ray encrypts its traffic."""
    return environ.get("RAY_USE_TLS", "0").lower() in ("", "0", "false")


class Listener:
    """Listens for the bridge; the future :attr:`connected` gets its streams, or is cancelled if it does not connect."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._strangers = 0
        self._server: asyncio.Server
        self.connected: asyncio.Future[Streams] = asyncio.get_running_loop().create_future()

    async def start_listening(self, host: str, wait_s: float = WAIT_S) -> int:
        """Begin to listen; return the port."""
        self._server = await asyncio.start_server(self._admit_bridge, host, 0)
        asyncio.get_running_loop().call_later(wait_s, self.close)
        return int(self._server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening."""
        self._server.close()
        self.connected.cancel()

    async def _admit_bridge(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._strangers += 1
        try:
            if self._strangers > MAX_STRANGERS or not await self._is_bridge(reader, writer) or self.connected.done():
                writer.close()
                return
            self.connected.set_result((reader, writer))
            self._server.close()
        finally:
            self._strangers -= 1

    async def _is_bridge(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        ours = secrets.token_bytes(SECRET_BYTES)
        try:
            async with asyncio.timeout(CONNECT_S):
                writer.write(ours)
                theirs = await reader.readexactly(SECRET_BYTES)
                proof = await reader.readexactly(SECRET_BYTES)
        except (OSError, EOFError, TimeoutError):
            return False
        if not hmac.compare_digest(proof, _compute_proof(self._secret, b"bridge", ours, theirs)):
            return False
        writer.write(_compute_proof(self._secret, b"keeper", ours, theirs))
        return True


async def connect_to_actor(host: str, port: int, secret: bytes) -> Streams:
    """Connect to a keeper's actor that listens, and prove the secret to each other.

    Raises:
        NoDirectConnection: the actor cannot be reached, or does not know the secret.
    """
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(CONNECT_S):
            reader, writer = await asyncio.open_connection(host, port)
            theirs = await reader.readexactly(SECRET_BYTES)
            ours = secrets.token_bytes(SECRET_BYTES)
            writer.write(ours + _compute_proof(secret, b"bridge", theirs, ours))
            if hmac.compare_digest(
                await reader.readexactly(SECRET_BYTES), _compute_proof(secret, b"keeper", theirs, ours)
            ):
                return reader, writer
        failure = "it does not know the secret"
    except (OSError, EOFError, TimeoutError) as error:
        failure = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else type(error).__name__
    if writer is not None:
        with contextlib.suppress(OSError):
            writer.close()
    raise NoDirectConnection(f"{host}:{port}: {failure}")


def _compute_proof(secret: bytes, role: bytes, *nonces: bytes) -> bytes:
    return hmac.digest(secret, b"".join((role, *nonces)), _PROOF)
