"""The face of a team's storage: objects by name, whole or not at all, over a directory, object storage or Redis.

It runs in the bridge, never in the daemon. What can hang has a deadline; what goes wrong is a :class:`StorageError`
that says what mends it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import anyio
import msgspec

from ktuned.model import KtunedError

OPERATION_S: Final = 20.0
"""Deadline of one operation on one object: a slow link moves half a megabyte in a quarter of that."""

MAX_LISTED: Final = 50_000
"""Names in one listing, some 200 bytes each: the winners of a kernel with 10,000 problems. The rest is left out."""


class StorageError(KtunedError):
    """The storage cannot be reached, refuses, or is full."""

    code = "team_storage"


class Entry(msgspec.Struct, frozen=True):
    """An object in a listing; ``modified`` is Unix time in s, by the storage's clock."""

    name: str
    size: int
    modified: float


class Storage(ABC):
    """Objects by name. Names are relative, of letters, digits and ``._-/``; equal names have equal bytes."""

    @abstractmethod
    async def entries(self, prefix: str) -> list[Entry]:
        """Return the objects whose names begin with a prefix that ends in ``/``, at most :data:`MAX_LISTED`.

        Raises:
            StorageError: they cannot be listed.
        """

    @abstractmethod
    async def read(self, name: str, limit: int) -> bytes | None:
        """Return an object's bytes, ``limit`` and one at most; ``None`` where there is none.

        Raises:
            StorageError: it cannot be read.
        """

    @abstractmethod
    async def write(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all; over one of this name, which has the same bytes or is damaged.

        Raises:
            StorageError: it cannot be written.
        """

    @abstractmethod
    async def remove(self, name: str) -> None:
        """Remove an object; harmless when it is gone.

        Raises:
            StorageError: it cannot be removed.
        """

    async def close(self) -> None:
        """Let go of connections."""
        return


def shown(url: str) -> str:
    """Return a URL without the password in it, as messages and logs have it."""
    parts = urlsplit(url)
    if parts.password is None and parts.username is None:
        return url
    return urlunsplit(parts._replace(netloc=f"…@{parts.netloc.rpartition('@')[2]}"))


def fault(error: BaseException, doing: str, url: str) -> StorageError:
    """Return the error of a library as one line, with the place and without its password."""
    words = " ".join(str(error).split())
    password = urlsplit(url).password
    if password:
        words = words.replace(password, "…")
    # A URL within a message may have a password of its own.
    words = re.sub(r"://[^/@\s]+@", "://…@", words)[:300]
    return StorageError(f"{shown(url)}: {doing}: {words or type(error).__name__}")


@asynccontextmanager
async def within_deadline(doing: str, url: str, deadline_s: float = OPERATION_S) -> AsyncIterator[None]:
    """Bound an operation.

    Raises:
        StorageError: it took longer.
    """
    try:
        with anyio.fail_after(deadline_s):
            yield
    except TimeoutError as error:
        raise StorageError(
            f"{shown(url)}: {doing}: no answer within {deadline_s:g} s", hint="check that it is reachable from here"
        ) from error
