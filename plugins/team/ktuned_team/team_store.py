"""The shared store of a team, on the daemon's side: the bridge reads and writes the objects.

An object's name has the digest of its bytes, so an object that is held in memory need not be read again. If the bridge
does not answer, it is killed, because its threads may hang in a file system; the next call starts another.
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
    make_kernel_prefix,
    read_object,
    write_object,
)
from ktuned_team.storage import REDIS

R = TypeVar("R")

CALL_S: Final = 30.0
"""Deadline of a call or of its next item: it covers the storage's own deadline and the bridge's start."""

SWEEP_S: Final = 600.0
"""Deadline of a sweep, which removes tens of thousands of objects at most, 16 at once."""

MAX_AT_ADDRESS: Final = 32
"""Most objects that are read at one address, the newest first; further ones repeat the same few configs."""

MAX_HELD: Final = 16 * 2**20
"""Limit for the weight of the objects in memory: some 2,000 usual objects. The newest objects of a kernel are read up
to this limit; beyond it, the objects that were not used for the longest time are dropped."""

OBJECT_WEIGHT: Final = 8 * 1024
"""Memory of an object's decoded values, which is added to the size of its bytes."""


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
        await self._exchange_call(calls.StoreObject(self.settings.url, name, data), CALL_S)

    async def find(self, kernel: str, addresses: Collection[str]) -> Found:
        """List the objects at some addresses, and read those that are not held."""
        call = calls.FindWinners(
            self.settings.url, make_kernel_prefix(kernel), tuple(sorted(addresses)), MAX_AT_ADDRESS
        )
        listed = _select_newest((await self._exchange_call(call, CALL_S)).entries, MAX_HELD)
        faults = await self._read_objects([one for one in listed if one.name not in self._held])
        winners = []
        # The newest object is added last to the dict, so that it is dropped last.
        for one in reversed(listed):
            held = self._held.pop(one.name, None)
            parts = ObjectName.parse(one.name)
            if held is not None and parts is not None:
                self._held[one.name] = held
                winners.append(StoredWinner(parts.address, held[0], one.modified))
        self._forget_oldest()
        return Found(tuple(reversed(winners)), tuple(faults))

    async def tidy(self) -> None:
        """Make the bridge sweep the storage."""
        settings = self.settings
        await self._exchange_call(calls.SweepObjects(settings.url, settings.retention_s, settings.cap_bytes), SWEEP_S)

    async def _read_objects(self, wanted: list[calls.Entry]) -> list[str]:
        """Fetch objects and hold the sound ones; return the faults of the others."""
        faults: list[str] = []
        weights = {entry.name: _weigh_entry(entry) for entry in wanted}

        def hold_object(item: calls.Object) -> None:
            try:
                self._held[item.name] = read_object(item.name, item.data), weights.get(item.name, 0)
            except DamagedObject as error:
                faults.append(f"{error.message}{f' ({error.hint})' if error.hint else ''}")

        names = tuple(weights)
        for start in range(0, len(names), calls.MAX_FETCHED):
            part = names[start : start + calls.MAX_FETCHED]
            call = calls.FetchObjects(self.settings.url, part, MAX_OBJECT_BYTES)
            faults += (await self._exchange_call(call, CALL_S, hold_object)).unreadable
        return faults

    def _forget_oldest(self) -> None:
        weight = sum(one for _, one in self._held.values())
        while weight > MAX_HELD:
            _, freed = self._held.pop(next(iter(self._held)))
            weight -= freed

    async def _exchange_call(
        self, call: Call[R, Any], deadline_s: float, on_item: Callable[[Any], None] | None = None
    ) -> R:
        try:
            return await self.bridge.call_service(call, deadline_s, on_item=on_item)
        except (BridgeDown, BridgeSlow, CallFailed) as error:
            if isinstance(error, BridgeSlow):
                # The bridge's threads that hang in a file system end with it.
                self.bridge.kill(f"the shared store did not answer: {call.operation}")
            hint = "install ktuned-team there" if error.code == "no_service" else error.hint
            raise SharedStoreDown(error.message, hint=hint) from error


def _select_newest(entries: Iterable[calls.Entry], most: int) -> list[calls.Entry]:
    """Return the newest entries up to a total weight."""
    newest = sorted(entries, key=lambda one: (-one.modified, one.name))
    return [entry for entry, total in zip(newest, accumulate(map(_weigh_entry, newest)), strict=True) if total <= most]


def _weigh_entry(entry: calls.Entry) -> int:
    # A larger object is rejected when it is read, so it is never held.
    return OBJECT_WEIGHT + (entry.size if entry.size <= MAX_OBJECT_BYTES else 0)
