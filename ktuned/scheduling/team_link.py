"""The daemon's line to a team's storage: calls over the bridge, each with a deadline, and pauses after failures.

Nothing of a failure is an error of the daemon's: it is a notice, and what was to be done is done later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

import anyio
import structlog

from ktuned.bridge import Call, CallFailed
from ktuned.fleet import Bridge, BridgeDown, BridgeSlow, Health
from ktuned.model import KtunedError
from ktuned.team import (
    MAX_ARTIFACT_BYTES,
    MAX_OBJECT_BYTES,
    DamagedObject,
    ObjectName,
    SharedWinner,
    TeamSettings,
    calls,
    read_object,
    shown,
)

_log = structlog.get_logger()

R = TypeVar("R")

CALL_S: Final = 30.0
"""Time of one call, or until its next item: the storage's own deadline, and what the bridge's start takes."""

SWEEP_S: Final = 600.0
"""Time of a sweep, which removes 16 objects at once, tens of thousands at most."""

FIRST_PAUSE_S: Final = 5.0
"""Pause after a failure; each further one doubles it, up to a minute."""


class TeamDown(KtunedError):
    """The team's storage cannot be used now; the notice says why."""

    code = "team_down"


class TeamLink:
    """Lists, fetches and stores objects; ``settings`` say where, and are replaced when they are read again.

    ``damage`` is about objects that were not what they should be, in the last look at each kernel.
    """

    def __init__(self, bridge: Bridge, settings: TeamSettings, *, health: Health | None = None) -> None:
        self._bridge = bridge
        self._health = health or Health(first_pause_s=FIRST_PAUSE_S)
        self._settings = settings
        self._damage: dict[str, str] = {}
        self._decided = anyio.Event()
        self._changed = anyio.Event()

    @property
    def settings(self) -> TeamSettings:
        """The store's place, and the use that is made of it."""
        return self._settings

    def follow(self, settings: TeamSettings) -> None:
        """Use other settings; another store has not failed yet."""
        if settings != self._settings:
            self._settings = settings
            self._health.succeeded()
            self._damage.clear()
            self._changed.set()
            self._decided.set()

    def winner_decided(self) -> None:
        """Note that there may be a winner to publish."""
        self._decided.set()

    async def await_winner(self) -> None:
        """Wait until :meth:`winner_decided` is called, or the settings change, from the last wait's end on."""
        await self._decided.wait()
        self._decided = anyio.Event()

    async def await_change(self, at_most_s: float | None) -> None:
        """Wait for other settings, or for so long."""
        with anyio.move_on_after(at_most_s):
            await self._changed.wait()
            self._changed = anyio.Event()

    @property
    def pause_s(self) -> float:
        """Seconds until the storage is tried again; 0 if it may be used now."""
        return self._health.pause_s

    @property
    def fault(self) -> str:
        """The reason why the storage cannot be used; empty if it can."""
        return self._health.reason if self._health.is_sick else ""

    @property
    def notices(self) -> list[str]:
        """Reasons why winners are not shared, one line each."""
        if not self._settings.is_on:
            return []
        lines = [f"the team's store: {self.fault}; tuning goes on without it"] if self.fault else []
        return lines + [line for _, line in sorted(self._damage.items())][:3]

    async def names(self, prefix: str) -> tuple[calls.Listed, ...]:
        """Return the objects whose names begin with a prefix.

        Raises:
            TeamDown: the storage cannot be used now.
        """
        listing = await self._call(calls.ListObjects(self._settings.url, prefix), CALL_S)
        return listing.entries

    async def fetch(self, kernel: str, names: Sequence[str]) -> dict[str, SharedWinner]:
        """Return those objects that are there and sound; of the others there is a notice, under the kernel's name.

        Raises:
            TeamDown: the storage cannot be used now.
        """
        found: dict[str, SharedWinner] = {}
        faults: list[str] = []

        def take(item: calls.Object) -> None:
            try:
                found[item.name] = read_object(item.name, item.data)
            except DamagedObject as error:
                faults.append(f"{error.message}{f' ({error.hint})' if error.hint else ''}")

        for start in range(0, len(names), calls.MAX_FETCHED):
            part = tuple(names[start : start + calls.MAX_FETCHED])
            await self._call(calls.FetchObjects(self._settings.url, part, MAX_OBJECT_BYTES), CALL_S, on_item=take)
        self._note(kernel, faults)
        return found

    async def fetch_artifact(self, name: str) -> bytes | None:
        """Return the bytes of an artifact's object, if it is there.

        Raises:
            TeamDown: the storage cannot be used now.
        """
        found: list[bytes] = []
        call = calls.FetchObjects(self._settings.url, (name,), MAX_ARTIFACT_BYTES)
        await self._call(call, CALL_S, on_item=lambda item: found.append(item.data))
        return found[0] if found else None

    async def store(self, name: str, data: bytes) -> None:
        """Store an object.

        Raises:
            TeamDown: it cannot be stored now.
        """
        await self._call(calls.StoreObject(self._settings.url, name, data), CALL_S)

    async def sweep(self) -> calls.Swept:
        """Remove what is past its time, or beyond the cap.

        Raises:
            TeamDown: that cannot be done now.
        """
        settings = self._settings
        return await self._call(calls.SweepObjects(settings.url, settings.retention_s, settings.cap_bytes), SWEEP_S)

    async def _call(self, call: Call[R, Any], deadline_s: float, on_item: Callable[[Any], None] | None = None) -> R:
        if not self._settings.is_on:
            raise TeamDown("there is no team's store", hint="set `url` of [team] in config.toml")
        if self._health.pause_s:
            raise TeamDown(self._health.reason, hint=f"it is tried again in {self._health.pause_s:.0f} s")
        try:
            reply = await self._bridge.exchange(call, deadline_s, on_item=on_item)
        except (BridgeDown, BridgeSlow, CallFailed) as error:
            reason = f"{error.message}{f' ({error.hint})' if error.hint else ''}"
            if isinstance(error, BridgeSlow):
                # Threads that hang in a file system go with it.
                self._bridge.kill(f"the team's storage did not answer: {call.operation}")
            is_first = not self._health.is_sick
            self._health.failed(reason)
            (_log.warning if is_first else _log.info)("team_store_failed", url=shown(self._settings.url), reason=reason)
            raise TeamDown(reason) from error
        self._health.succeeded()
        return reply

    def _note(self, kernel: str, faults: Sequence[str]) -> None:
        if not faults:
            self._damage.pop(kernel, None)
            return
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        self._damage[kernel] = f"the team's store has damaged objects, which are left out: {faults[0]}{more}"
        _log.warning("team_objects_damaged", kernel=kernel, count=len(faults), reason=faults[0])


def newest(entries: Iterable[calls.Listed], most: int) -> dict[str, list[str]]:
    """Return the names of winners in a listing by their addresses, of each the newest ones. No IO."""
    found: dict[str, list[str]] = {}
    for entry in sorted(entries, key=lambda one: (-one.modified, one.name)):
        parts = ObjectName.parse(entry.name)
        if parts is not None and len(names := found.setdefault(parts.address, [])) < most:
            names.append(entry.name)
    return found
