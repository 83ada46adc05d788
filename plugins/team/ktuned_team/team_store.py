"""The shared store of a team: objects in a directory, in object storage or in Redis, which the bridge reads and writes.

An object's name holds the digest of its bytes, so what was read once is never read again while it is held.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import accumulate
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from ktuned.bridge import Call, CallFailed
from ktuned.fleet import Bridge, BridgeDown, BridgeSlow
from ktuned.sharing import Found, SharedStore, SharedStoreDown, SharedWinner, ShareSettings, StoredWinner, hide_secrets
from ktuned_team import calls
from ktuned_team.objects import (
    MAX_OBJECT_BYTES,
    DamagedObject,
    ObjectName,
    kernel_prefix,
    read_object,
    write_object,
)
from ktuned_team.storage import REDIS

R = TypeVar("R")

CALL_S: Final = 30.0
"""Time of one call, or until its next item: the storage's own deadline, and what the bridge's start takes."""

SWEEP_S: Final = 600.0
"""Time of a sweep, which removes 16 objects at once, tens of thousands at most."""

MAX_AT_ADDRESS: Final = 32
"""Objects at one address that are read, the newest: more are the same few configs, again and again."""

MAX_HELD: Final = 16 * 2**20
"""Weight of the objects in memory, 2,000 of the usual ones. Of one kernel only so many are read, the newest; beyond it
those that were asked for the longest ago are forgotten."""

OBJECT_WEIGHT: Final = 8 * 1024
"""Added to an object's bytes: what its values take in memory."""


class TeamStore(SharedStore):
    """A store at a path, ``file://``, ``redis://``, ``rediss://``, ``unix://`` or a URL of obstore's."""

    def __init__(self, settings: ShareSettings, bridge: Bridge) -> None:
        super().__init__(settings, bridge)
        parts = urlsplit(settings.url)
        if parts.scheme in REDIS and "@" in settings.url and "@" not in parts.netloc:
            raise SharedStoreDown(
                f"{hide_secrets(settings.url)}: its password has special characters", hint="write them as %XX"
            )
        self._held: dict[str, tuple[SharedWinner, int]] = {}

    async def publish(self, address: str, winner: SharedWinner) -> None:
        """Store a winner as an object."""
        name, data = write_object(winner, address)
        await self._call(calls.StoreObject(self.settings.url, name, data), CALL_S)

    async def find(self, kernel: str, addresses: Collection[str]) -> Found:
        """List the objects at some addresses, and read those that are not held."""
        call = calls.FindWinners(self.settings.url, kernel_prefix(kernel), tuple(sorted(addresses)), MAX_AT_ADDRESS)
        listed = _within((await self._call(call, CALL_S)).entries, MAX_HELD)
        faults = await self._read([one for one in listed if one.name not in self._held])
        winners = []
        # The newest is held the longest.
        for one in reversed(listed):
            held = self._held.pop(one.name, None)
            parts = ObjectName.parse(one.name)
            if held is not None and parts is not None:
                self._held[one.name] = held
                winners.append(StoredWinner(parts.address, held[0], one.modified))
        self._forget_oldest()
        return Found(tuple(reversed(winners)), tuple(faults))

    async def tidy(self) -> None:
        """Have the bridge sweep the storage."""
        settings = self.settings
        await self._call(calls.SweepObjects(settings.url, settings.retention_s, settings.cap_bytes), SWEEP_S)

    async def _read(self, wanted: list[calls.Listed]) -> list[str]:
        """Hold those objects that are there and sound; return what is wrong with others."""
        faults: list[str] = []
        weights = {one.name: _weight(one) for one in wanted}

        def take(item: calls.Object) -> None:
            try:
                self._held[item.name] = read_object(item.name, item.data), weights.get(item.name, 0)
            except DamagedObject as error:
                faults.append(f"{error.message}{f' ({error.hint})' if error.hint else ''}")

        names = tuple(weights)
        for start in range(0, len(names), calls.MAX_FETCHED):
            part = names[start : start + calls.MAX_FETCHED]
            call = calls.FetchObjects(self.settings.url, part, MAX_OBJECT_BYTES)
            faults += (await self._call(call, CALL_S, take)).unreadable
        return faults

    def _forget_oldest(self) -> None:
        weight = sum(one for _, one in self._held.values())
        while weight > MAX_HELD:
            _, freed = self._held.pop(next(iter(self._held)))
            weight -= freed

    async def _call(self, call: Call[R, Any], deadline_s: float, on_item: Callable[[Any], None] | None = None) -> R:
        try:
            return await self.bridge.call_service(call, deadline_s, on_item=on_item)
        except (BridgeDown, BridgeSlow, CallFailed) as error:
            if isinstance(error, BridgeSlow):
                # Threads that hang in a file system go with it.
                self.bridge.kill(f"the shared store did not answer: {call.operation}")
            hint = "install ktuned-team there" if error.code == "no_service" else error.hint
            raise SharedStoreDown(error.message, hint=hint) from error


def _within(entries: Iterable[calls.Listed], most: int) -> list[calls.Listed]:
    """Return the newest entries, those that weigh no more together."""
    newest = sorted(entries, key=lambda one: (-one.modified, one.name))
    return [entry for entry, total in zip(newest, accumulate(map(_weight, newest)), strict=True) if total <= most]


def _weight(entry: calls.Listed) -> int:
    # One that is too large is refused when it is read.
    return OBJECT_WEIGHT + (entry.size if entry.size <= MAX_OBJECT_BYTES else 0)
