"""Expiry of roots: one whose directory has been gone for a day is watched no longer. Its results stay.

Since when a directory is gone is kept in the store, because a daemon without work ends long before a day is over.
Roots of ``config.toml`` stay: that file is its author's.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from time import time
from typing import Final

import anyio.to_thread
import msgspec
import structlog

from ktuned.catalog import Catalog
from ktuned.model import Root, StoreError
from ktuned.store import Store

GONE_S: Final = 86_400.0
"""Absence after which a root is forgotten: a disk is unplugged or a network file system is down for less."""

LOOK_S: Final = 600.0
"""Time between two looks, each a few system calls."""

MAX_SHOWN: Final = 8
"""Forgotten roots that the notice names."""

_log = structlog.get_logger()


class Absences(msgspec.Struct, frozen=True):
    """Roots' directories that are gone, by path, since when (Unix seconds), and those gone for too long."""

    since: Mapping[str, float]
    expired: frozenset[str]


def judge_absences(missing: Collection[str], since: Mapping[str, float], now: float) -> Absences:
    """Return the absences now, given the last ones. A clock that was set back starts them again."""
    begun = {path: min(since.get(path, now), now) for path in missing}
    return Absences(begun, frozenset(path for path, start in begun.items() if now - start >= GONE_S))


class RootExpiry:
    """Looks for roots whose directories are gone; ``drop`` has them watched no longer."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        store: Store,
        configured: Callable[[], Collection[str]],
        drop: Callable[[Iterable[Root]], Awaitable[None]],
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._configured = configured
        self._drop = drop
        self._forgotten: list[str] = []

    @property
    def notice(self) -> str:
        """One line about the roots that were forgotten since the daemon started; empty if there are none."""
        if not self._forgotten:
            return ""
        shown = ", ".join(self._forgotten[-MAX_SHOWN:])
        return f"no longer watched, as the directory is gone for a day: {shown}; `ktuned add PATH` watches one again"

    async def check_periodically(self) -> None:
        """Look now and then, until cancelled."""
        while True:
            try:
                await self.check_roots(time())
            except StoreError as error:
                _log.warning("absences_not_recorded", reason=error.message)
            await anyio.sleep(LOOK_S)

    async def check_roots(self, now: float) -> None:
        """Note which directories are gone, and forget the roots that have been without theirs for a day.

        Raises:
            StoreError: it cannot be recorded; nothing is forgotten.
        """
        known = {root.path: root for root in self._catalog.roots if root.path not in self._configured()}
        missing = await anyio.to_thread.run_sync(_missing_directories, list(known), abandon_on_cancel=True)
        before = self._store.load_absences()
        found = judge_absences(missing, before, now)
        if found.since != before:
            await self._store.save_absences(found.since)
        for path in sorted(found.expired):
            await self._store.remove_root(path)
            await self._drop([known[path]])
            self._forgotten.append(path)
            _log.warning("root_forgotten", root=path, gone_s=round(now - found.since[path]))


def _missing_directories(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if not os.path.isdir(path)]
