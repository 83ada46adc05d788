"""The interface of a team's storage: objects by name, in a directory, in object storage or in Redis.

It runs in the bridge, never in the daemon. Every operation has a deadline, and every failure is a
:class:`StorageError` with one line that says what to do. Messages of libraries may repeat a URL with its password:
:func:`make_storage_error` removes the secrets from them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import unquote, urlsplit

import anyio

from ktuned.model import KtunedError
from ktuned.sharing import hide_secrets
from ktuned_team.calls import Entry

REDIS: Final = ("redis", "rediss", "unix")
"""URL schemes of Redis and Valkey."""

OPERATION_S: Final = 20.0
"""Deadline of one operation on one object; a slow link moves half a megabyte in a quarter of it."""

MAX_LISTED: Final = 200_000
"""Most names in one listing (some 300 bytes each, in the bridge, for a moment); further ones are left out."""

_WORDS: Final = re.compile(r"[^:/?#\[\]@=&\s]+")
"""Parts of a URL between its delimiters."""

_REQUEST: Final = re.compile(r"Error performing [A-Z]+ https?://\S+ in .{0,99}? - ")

_XML: Final = re.compile(r"<.*<Code>(?P<code>\w+)</Code>(.*?<Message>(?P<message>[^<]*)</Message>)?.*>")


class StorageError(KtunedError):
    """The storage cannot be reached, rejects an operation, or is full."""

    code = "team_storage"


class UnreadableObject(StorageError):
    """One object cannot be read, although the storage answers and other objects can be read."""


class Storage(ABC):
    """Objects by name. Names are relative and of letters, digits and ``._-/``; equal names have equal bytes."""

    @abstractmethod
    async def list_entries(self, prefix: str) -> list[Entry]:
        """Return the objects whose names begin with a prefix that ends in ``/``, at most :data:`MAX_LISTED`.

        Raises:
            StorageError: they cannot be listed.
        """

    @abstractmethod
    async def read(self, name: str, limit: int) -> bytes | None:
        """Return an object's bytes, at most ``limit + 1`` of them; ``None`` if there is no such object.

        Raises:
            UnreadableObject: this object cannot be read.
            StorageError: no object can be read.
        """

    @abstractmethod
    async def write(self, name: str, data: bytes) -> None:
        """Write an object, whole or not at all. One of the same name is replaced: it has the same bytes or is damaged.

        Raises:
            StorageError: it cannot be written.
        """

    @abstractmethod
    async def remove(self, name: str) -> None:
        """Remove an object; harmless if there is none.

        Raises:
            StorageError: it cannot be removed.
        """

    async def close(self) -> None:
        """Close connections."""
        return


def open_storage(url: str, *, deadline_s: float = OPERATION_S) -> Storage:
    """Return the storage at a URL: a path or ``file://``, ``redis://``, ``rediss://``, ``unix://``, or object storage.

    Raises:
        StorageError: the URL is invalid.
    """
    scheme = urlsplit(url).scheme
    # Imported here, because each kind imports this module and a library of its own.
    if scheme in ("", "file"):
        from ktuned_team.directory_storage import DirectoryStorage

        return DirectoryStorage(url.removeprefix("file://"), deadline_s=deadline_s)
    if scheme in REDIS:
        from ktuned_team.redis_storage import RedisStorage

        return RedisStorage(url, deadline_s=deadline_s)
    from ktuned_team.object_storage import ObjectStorage

    return ObjectStorage(url, deadline_s=deadline_s)


def _find_secrets(url: str) -> list[str]:
    """Return the words of a URL that must not be shown, quoted and unquoted, the longest first."""
    seen = {*_WORDS.findall(hide_secrets(url)), "password", "username"}
    words = {form for word in _WORDS.findall(url) for form in (word, *_WORDS.findall(unquote(word)))}
    return sorted((word for word in words - seen if len(word) > 2), key=len, reverse=True)


def make_storage_error(
    error: BaseException, doing: str, url: str, kind: type[StorageError] = StorageError
) -> StorageError:
    """Return a library's error as a ``StorageError`` of one line, with the place and without secrets."""
    return kind(f"{hide_secrets(url)}: {doing}: {_render_error(error, url) or type(error).__name__}")


def _render_error(error: BaseException, url: str) -> str:
    # obstore's errors end with their Rust source, which repeats the message.
    words = " ".join(str(error).split()).partition(" Debug source:")[0].replace(url, hide_secrets(url))
    for secret in _find_secrets(url):
        words = words.replace(secret, "…")
    # The cause comes after a long request, and servers answer in XML: keep only the cause.
    words = _REQUEST.sub("", words)
    words = _XML.sub(lambda answer: f"{answer['code']}: {answer['message'] or ''}".rstrip(": "), words)
    # A message may contain another URL with a password.
    return re.sub(r"://[^/@\s]+@", "://…@", words)[:300]


@asynccontextmanager
async def within_deadline(doing: str, url: str, deadline_s: float = OPERATION_S) -> AsyncIterator[None]:
    """Limit the time of an operation.

    Raises:
        StorageError: it took longer than the deadline.
    """
    try:
        with anyio.fail_after(deadline_s):
            yield
    except TimeoutError as error:
        raise StorageError(
            f"{hide_secrets(url)}: {doing}: no answer within {deadline_s:g} s",
            hint="check that it is reachable from here",
        ) from error
