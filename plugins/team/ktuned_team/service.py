"""The bridge's service ``team``: carries out calls about a team's storage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

import anyio

from ktuned.bridge import Call, CallFailed, Send, Service
from ktuned.model import Record
from ktuned_team.calls import (
    Fetched,
    FetchObjects,
    FindWinners,
    Listed,
    Listing,
    Object,
    Stored,
    StoreObject,
    SweepObjects,
    Swept,
)
from ktuned_team.objects import is_ours
from ktuned_team.retention import newest, surplus
from ktuned_team.storage import Entry, Storage, StorageError, UnreadableObject, open_storage

MAX_AT_ONCE: Final = 16
"""Objects that are fetched or removed at once: what hides the latency of a server elsewhere."""

MAX_PREFIXES: Final = 16
"""Addresses that are listed one by one; with more of them listing all of a kernel's takes fewer requests."""


class TeamStorage(Service):
    """Keeps the storages that were named open, by their URLs: mostly one."""

    calls: ClassVar = (FindWinners, FetchObjects, StoreObject, SweepObjects)

    def __init__(self, opened: Callable[[str], Storage] = open_storage) -> None:
        self._open = opened
        self._storages: dict[str, Storage] = {}

    async def carry_out(self, call: Call[Any, Any], send: Send) -> Record:
        """Carry out one call."""
        match call:
            case FindWinners():
                return await self._find(call)
            case FetchObjects():
                return await self._fetch(call, send)
            case StoreObject():
                await self._storage(call.url).write(call.name, call.data)
                return Stored(call.name)
            case SweepObjects():
                return await self._sweep(call)
        raise CallFailed("no_operation", f"the service has no operation {call.operation!r}")

    async def close(self) -> None:
        """Close all storages."""
        for storage in self._storages.values():
            await storage.close()

    def _storage(self, url: str) -> Storage:
        if url not in self._storages:
            self._storages[url] = self._open(url)
        return self._storages[url]

    async def _find(self, call: FindWinners) -> Listing:
        storage = self._storage(call.url)
        prefixes = [f"{call.kernel_prefix}{address}/" for address in call.addresses]
        kept: list[Entry] = []

        async def find(prefix: str) -> None:
            kept.extend(await storage.entries(prefix))

        await _all_of(prefixes if len(prefixes) <= MAX_PREFIXES else [call.kernel_prefix], find)
        found = newest(kept, {*call.addresses}, call.most)
        return Listing(tuple(Listed(one.name, one.size, one.modified) for one in found))

    async def _fetch(self, call: FetchObjects, send: Send) -> Fetched:
        storage = self._storage(call.url)
        missing: list[str] = []
        unreadable: list[str] = []

        async def fetch(name: str) -> None:
            try:
                data = await storage.read(name, call.limit)
            except UnreadableObject as error:
                unreadable.append(error.message)
                return
            if data is None:
                missing.append(name)
            else:
                await send(Object(name, data))

        await _all_of(call.names, fetch)
        return Fetched(tuple(sorted(missing)), tuple(sorted(unreadable)))

    async def _sweep(self, call: SweepObjects) -> Swept:
        storage = self._storage(call.url)
        found = [entry for entry in await storage.entries("v1/") if is_ours(entry.name)]
        doomed = {*surplus(found, time.time(), call.retention_s, call.cap_bytes)}
        await _all_of(sorted(doomed), storage.remove)
        left = [entry for entry in found if entry.name not in doomed]
        return Swept(len(doomed), len(left), sum(entry.size for entry in left))


async def _all_of(names: Any, work: Callable[[str], Any]) -> None:
    """Do something with each name, many at once.

    Raises:
        StorageError: it failed for one; the others may be done or not.
    """
    limiter = anyio.CapacityLimiter(MAX_AT_ONCE)

    async def one(name: str) -> None:
        async with limiter:
            await work(name)

    try:
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(one, name)
    except* StorageError as group:
        raise _first(group) from None


def _first(group: BaseExceptionGroup[StorageError]) -> StorageError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StorageError)
    return error
