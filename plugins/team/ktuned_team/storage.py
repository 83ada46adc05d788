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
from urllib.parse import unquote, urlsplit

import anyio
import msgspec

from ktuned.model import KtunedError
from ktuned.sharing import hide_secrets

REDIS: Final = ("redis", "rediss", "unix")
"""Schemes of URLs of a Redis or Valkey."""

OPERATION_S: Final = 20.0
"""Deadline of one operation on one object: a slow link moves half a megabyte in a quarter of that."""

MAX_LISTED: Final = 200_000
"""Names in one listing, some 300 bytes each, for a moment and in the bridge. The rest is left out."""

_WORDS: Final = re.compile(r"[^:/?#\[\]@=&\s]+")
"""Parts of a URL between its delimiters."""

_REQUEST: Final = re.compile(r"Error performing [A-Z]+ https?://\S+ in .{0,99}? - ")

_XML: Final = re.compile(r"<.*<Code>(?P<code>\w+)</Code>(.*?<Message>(?P<message>[^<]*)</Message>)?.*>")


class StorageError(KtunedError):
    """The storage cannot be reached, refuses, or is full."""

    code = "team_storage"


class UnreadableObject(StorageError):
    """One object cannot be read; the storage answers, and others can."""


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
            UnreadableObject: it alone cannot be read.
            StorageError: nothing can.
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


def open_storage(url: str, *, deadline_s: float = OPERATION_S) -> Storage:
    """Return the storage at a URL: a path or ``file://``, ``redis://``, ``rediss://``, ``unix://``, or object storage.

    Raises:
        StorageError: the URL means nothing.
    """
    scheme = urlsplit(url).scheme
    # Each kind builds on this module, and imports a library: only the one that is named is imported.
    if scheme in ("", "file"):
        from ktuned_team.directory_storage import DirectoryStorage

        return DirectoryStorage(url.removeprefix("file://"), deadline_s=deadline_s)
    if scheme in REDIS:
        from ktuned_team.redis_storage import RedisStorage

        return RedisStorage(url, deadline_s=deadline_s)
    from ktuned_team.object_storage import ObjectStorage

    return ObjectStorage(url, deadline_s=deadline_s)


def _secrets(url: str) -> list[str]:
    """Return the words of a URL that must not be shown, as they stand there and unquoted, the longest first."""
    seen = {*_WORDS.findall(hide_secrets(url)), "password", "username"}
    words = {form for word in _WORDS.findall(url) for form in (word, *_WORDS.findall(unquote(word)))}
    return sorted((word for word in words - seen if len(word) > 2), key=len, reverse=True)


def fault(error: BaseException, doing: str, url: str, kind: type[StorageError] = StorageError) -> StorageError:
    """Return the error of a library as one line, with the place and without its secrets."""
    return kind(f"{hide_secrets(url)}: {doing}: {_words(error, url) or type(error).__name__}")


def _words(error: BaseException, url: str) -> str:
    # Object storage's errors end with their Rust source, which says the same again.
    words = " ".join(str(error).split()).partition(" Debug source:")[0].replace(url, hide_secrets(url))
    for secret in _secrets(url):
        words = words.replace(secret, "…")
    # Its causes come after the request, which would take all the room, and servers answer in XML.
    words = _REQUEST.sub("", words)
    words = _XML.sub(lambda answer: f"{answer['code']}: {answer['message'] or ''}".rstrip(": "), words)
    # A URL within a message may have a password of its own.
    return re.sub(r"://[^/@\s]+@", "://…@", words)[:300]


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
            f"{hide_secrets(url)}: {doing}: no answer within {deadline_s:g} s",
            hint="check that it is reachable from here",
        ) from error
