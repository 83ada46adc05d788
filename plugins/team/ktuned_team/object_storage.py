"""Object storage as a team's storage: S3-compatible, and whatever else obstore supports (Google Cloud, Azure).

A put is whole or not at all. Credentials, region and endpoint come from the environment (``AWS_ACCESS_KEY_ID``,
``AWS_ENDPOINT_URL``, …) and from the machine's role, as for every program.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable
from datetime import timedelta
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import obstore
import obstore.exceptions
import obstore.store

from ktuned_team.calls import Entry
from ktuned_team.storage import (
    MAX_LISTED,
    OPERATION_S,
    Storage,
    StorageError,
    UnreadableObject,
    make_storage_error,
    within_deadline,
)

T = TypeVar("T")

_MAX_RETRIES: Final = 2
"""Retries of a request that the server could not answer; the deadline covers all of them together."""


class ObjectStorage(Storage):
    """Objects in a bucket, below the URL's path."""

    def __init__(self, url: str, *, deadline_s: float = OPERATION_S) -> None:
        self._url = url
        self._deadline_s = deadline_s
        options: dict[str, Any] = {"timeout": timedelta(seconds=deadline_s), "connect_timeout": timedelta(seconds=5)}
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        if urlsplit(url).scheme == "s3" and endpoint.startswith("http://"):
            # The user chose an endpoint without TLS: a server in the same network, or on this machine.
            options["allow_http"] = True
        retries: Any = {"max_retries": _MAX_RETRIES, "retry_timeout": timedelta(seconds=deadline_s)}
        try:
            opened: Any = obstore.store.from_url
            self._store: Any = opened(url, client_options=options, retry_config=retries)
        except (obstore.exceptions.BaseError, ValueError, TypeError) as error:
            hint = "give a directory, s3://BUCKET/PREFIX or redis://HOST:PORT/DATABASE"
            raise StorageError(
                f"the team's url cannot be used: {make_storage_error(error, 'opening it', url).message}", hint=hint
            ) from error

    async def list_entries(self, prefix: str) -> list[Entry]:
        """Return the objects below a prefix."""
        entries: list[Entry] = []

        async def collect_entries() -> None:
            async for part in obstore.list(self._store, prefix=prefix, chunk_size=1_000):
                entries.extend(Entry(meta["path"], meta["size"], meta["last_modified"].timestamp()) for meta in part)
                if len(entries) >= MAX_LISTED:
                    break

        await self._run_request("listing it", collect_entries())
        return entries[:MAX_LISTED]

    async def read(self, name: str, limit: int) -> bytes | None:
        """Return an object's bytes; only the first ``limit + 1`` of a larger one."""

        async def fetch_object() -> bytes | None:
            try:
                answer = await obstore.get_async(self._store, name)
                if answer.meta["size"] > limit:
                    return bytes(await obstore.get_range_async(self._store, name, start=0, length=limit + 1))
                return bytes(await answer.bytes_async())
            except (FileNotFoundError, obstore.exceptions.NotFoundError):
                return None
            except (PermissionError, obstore.exceptions.PermissionDeniedError) as error:
                raise make_storage_error(error, f"reading {name}", self._url, UnreadableObject) from error

        return await self._run_request(f"reading {name}", fetch_object())

    async def write(self, name: str, data: bytes) -> None:
        """Put an object."""
        await self._run_request(f"writing {name}", obstore.put_async(self._store, name, data, use_multipart=False))

    async def remove(self, name: str) -> None:
        """Delete an object."""

        async def delete_object() -> None:
            try:
                await obstore.delete_async(self._store, name)
            except (FileNotFoundError, obstore.exceptions.NotFoundError):
                return

        await self._run_request(f"removing {name}", delete_object())

    async def _run_request(self, doing: str, work: Awaitable[T]) -> T:
        async with within_deadline(doing, self._url, self._deadline_s):
            try:
                return await work
            except (obstore.exceptions.BaseError, OSError, ValueError) as error:
                raise make_storage_error(error, doing, self._url) from error
