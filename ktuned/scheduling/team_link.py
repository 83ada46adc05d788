"""The daemon's line to a team's storage: calls over the bridge, each with a deadline, and pauses after failures.

Nothing of a failure is an error of the daemon's: it is a notice, and what was to be done is done later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
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


class Use(Enum):
    """A use of the storage: each may be refused without the others, as by a full bucket or for want of rights."""

    READ = auto()
    WRITE = auto()
    SWEEP = auto()


class TeamLink:
    """Lists, fetches and stores objects; ``settings`` say where, and are replaced when they are read again.

    ``damage`` is about objects that were not what they should be, in the last look at each kernel.
    """

    def __init__(self, bridge: Bridge, settings: TeamSettings) -> None:
        self._bridge = bridge
        self._health = {use: Health(first_pause_s=FIRST_PAUSE_S) for use in Use}
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
            for health in self._health.values():
                health.succeeded()
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

    def pause_s(self, *uses: Use) -> float:
        """Return the seconds until the storage is tried again for these uses; 0 if it may be now."""
        return max(self._health[use].pause_s for use in uses)

    @property
    def fault(self) -> str:
        """The reasons why the storage cannot be used; empty if it can."""
        return "; ".join(dict.fromkeys(health.reason for health in self._health.values() if health.is_sick))

    @property
    def notices(self) -> list[str]:
        """Reasons why winners are not shared, one line each."""
        if not self._settings.is_on:
            return []
        lines = [f"the team's store: {self.fault}; tuning goes on without it"] if self.fault else []
        return lines + [line for _, line in sorted(self._damage.items())][:3]

    async def find(self, kernel_prefix: str, addresses: Iterable[str], most: int) -> tuple[calls.Listed, ...]:
        """Return the newest winners of a kernel at some addresses, at most so many of each.

        Raises:
            TeamDown: the storage cannot be used now.
        """
        call = calls.FindWinners(self._settings.url, kernel_prefix, tuple(sorted(addresses)), most)
        return (await self._call(call, CALL_S, Use.READ)).entries

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
            call = calls.FetchObjects(self._settings.url, part, MAX_OBJECT_BYTES)
            faults += (await self._call(call, CALL_S, Use.READ, on_item=take)).unreadable
        self.note_damage(kernel, faults)
        return found

    async def fetch_artifact(self, name: str) -> bytes | None:
        """Return the bytes of an artifact's object, if it is there.

        Raises:
            TeamDown: the storage cannot be used now.
        """
        found: list[bytes] = []
        call = calls.FetchObjects(self._settings.url, (name,), MAX_ARTIFACT_BYTES)
        await self._call(call, CALL_S, Use.READ, on_item=lambda item: found.append(item.data))
        return found[0] if found else None

    async def store(self, name: str, data: bytes) -> None:
        """Store an object.

        Raises:
            TeamDown: it cannot be stored now.
        """
        await self._call(calls.StoreObject(self._settings.url, name, data), CALL_S, Use.WRITE)

    async def sweep(self) -> calls.Swept:
        """Remove what is past its time, or beyond the cap.

        Raises:
            TeamDown: that cannot be done now.
        """
        settings = self._settings
        call = calls.SweepObjects(settings.url, settings.retention_s, settings.cap_bytes)
        return await self._call(call, SWEEP_S, Use.SWEEP)

    async def _call(
        self, call: Call[R, Any], deadline_s: float, use: Use, on_item: Callable[[Any], None] | None = None
    ) -> R:
        health = self._health[use]
        if not self._settings.is_on:
            raise TeamDown("there is no team's store", hint="set `url` of [team] in config.toml")
        if health.pause_s:
            raise TeamDown(health.reason, hint=f"it is tried again in {health.pause_s:.0f} s")
        try:
            reply = await self._bridge.exchange(call, deadline_s, on_item=on_item)
        except (BridgeDown, BridgeSlow, CallFailed) as error:
            reason = f"{error.message}{f' ({error.hint})' if error.hint else ''}"
            if isinstance(error, BridgeSlow):
                # Threads that hang in a file system go with it.
                self._bridge.kill(f"the team's storage did not answer: {call.operation}")
            is_first = not health.is_sick
            health.failed(reason)
            (_log.warning if is_first else _log.info)("team_store_failed", url=shown(self._settings.url), reason=reason)
            raise TeamDown(reason) from error
        health.succeeded()
        return reply

    def note_damage(self, kernel: str, faults: Sequence[str]) -> None:
        """Have a notice of what was left out in the last look at a kernel, or none."""
        if not faults:
            self._damage.pop(kernel, None)
            return
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        self._damage[kernel] = f"the team's store has damaged objects, which are left out: {faults[0]}{more}"
        _log.warning("team_objects_damaged", kernel=kernel, count=len(faults), reason=faults[0])
