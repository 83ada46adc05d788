"""The bridge's service ``team``: carries out the daemon's calls on a team's storage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar, Final

import anyio
import msgspec

from ktuned.bridge import Call, CallFailed, Send, Service
from ktuned.ipc import replies
from ktuned.model import find_first_error
from ktuned_team.calls import (
    Entry,
    Fetched,
    FetchObjects,
    FindWinners,
    Listing,
    Object,
    StoreObject,
    SweepObjects,
)
from ktuned_team.objects import is_ktuned_name
from ktuned_team.retention import select_newest, select_surplus
from ktuned_team.storage import Storage, StorageError, UnreadableObject, open_storage

MAX_AT_ONCE: Final = 16
"""Objects that are fetched or removed at once, to hide the latency of a distant server."""

MAX_PREFIXES: Final = 16
"""Most addresses that are listed one by one; for more, listing all objects of the kernel takes fewer requests."""


class TeamStorage(Service):
    """Carries out calls, and keeps each storage open by its URL; mostly there is one."""

    calls: ClassVar = (FindWinners, FetchObjects, StoreObject, SweepObjects)

    def __init__(self, opened: Callable[[str], Storage] = open_storage) -> None:
        self._open = opened
        self._storages: dict[str, Storage] = {}

    async def carry_out(self, call: Call[Any, Any], send: Send) -> msgspec.Struct:
        """Carry out one call."""
        match call:
            case FindWinners():
                return await self._find_winners(call)
            case FetchObjects():
                return await self._fetch_objects(call, send)
            case StoreObject():
                await self._find_storage(call.url).write(call.name, call.data)
                return replies.Empty()
            case SweepObjects():
                return await self._sweep_objects(call)
        raise CallFailed("no_operation", f"the service has no operation {call.operation!r}")

    async def close(self) -> None:
        """Close all storages."""
        for storage in self._storages.values():
            await storage.close()

    def _find_storage(self, url: str) -> Storage:
        if url not in self._storages:
            self._storages[url] = self._open(url)
        return self._storages[url]

    async def _find_winners(self, call: FindWinners) -> Listing:
        storage = self._find_storage(call.url)
        prefixes = [f"{call.kernel_prefix}{address}/" for address in call.addresses]
        entries: list[Entry] = []

        async def list_prefix(prefix: str) -> None:
            entries.extend(await storage.list_entries(prefix))

        await _run_for_all(prefixes if len(prefixes) <= MAX_PREFIXES else [call.kernel_prefix], list_prefix)
        return Listing(tuple(select_newest(entries, {*call.addresses}, call.most)))

    async def _fetch_objects(self, call: FetchObjects, send: Send) -> Fetched:
        storage = self._find_storage(call.url)
        missing: list[str] = []
        unreadable: list[str] = []

        async def fetch_object(name: str) -> None:
            try:
                data = await storage.read(name, call.limit)
            except UnreadableObject as error:
                unreadable.append(error.message)
                return
            if data is None:
                missing.append(name)
            else:
                await send(Object(name, data))

        await _run_for_all(call.names, fetch_object)
        return Fetched(tuple(sorted(missing)), tuple(sorted(unreadable)))

    async def _sweep_objects(self, call: SweepObjects) -> replies.Empty:
        storage = self._find_storage(call.url)
        entries = [entry for entry in await storage.list_entries("v1/") if is_ktuned_name(entry.name)]
        doomed = {*select_surplus(entries, time.time(), call.retention_s, call.cap_bytes)}
        await _run_for_all(sorted(doomed), storage.remove)
        return replies.Empty()


async def _run_for_all(names: Any, work: Callable[[str], Any]) -> None:
    """Run ``work`` for each name, :data:`MAX_AT_ONCE` at once.

    Raises:
        StorageError: it failed for one name; of the others some may be done.
    """
    limiter = anyio.CapacityLimiter(MAX_AT_ONCE)

    async def run_limited(name: str) -> None:
        async with limiter:
            await work(name)

    try:
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(run_limited, name)
    except* StorageError as group:
        raise find_first_error(group) from None
