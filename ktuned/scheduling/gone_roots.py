"""Roots whose directories are gone: when they are no longer watched. Their results stay, by their projects' names.

======================================  ===============================================================================
its directory has been gone for a day   it is forgotten: that is longer than a disk is unplugged or a mount is down
another directory takes its name        it is forgotten at once: a project that has moved keeps its name, and so its
                                        results
======================================  ===============================================================================

Since when a directory is gone is kept in the store, because a daemon without work ends long before a day is over.
Roots of ``config.toml`` stay: that file is its author's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from time import time
from typing import Final

import anyio.to_thread
import structlog

from ktuned.catalog import Catalog
from ktuned.model import Root, StoreError
from ktuned.scheduling.renewal import Renewal
from ktuned.store import Store

GONE_S: Final = 86_400.0
"""Absence after which a root is forgotten: a disk is unplugged or a network file system is down for less."""

LOOK_S: Final = 600.0
"""Time between two looks, each a few system calls."""

MAX_SHOWN: Final = 8
"""Forgotten roots that the notice names."""

_log = structlog.get_logger()


class GoneRoots:
    """Forgets roots whose directories are gone; ``configured`` returns the paths of those that stay."""

    def __init__(
        self, *, catalog: Catalog, store: Store, configured: Callable[[], Collection[str]], renewal: Renewal
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._configured = configured
        self._renewal = renewal
        self._forgotten: list[str] = []

    @property
    def notice(self) -> str:
        """One line about the roots that were forgotten since the daemon started; empty if there are none."""
        if not self._forgotten:
            return ""
        shown = ", ".join(self._forgotten[-MAX_SHOWN:])
        return f"no longer watched, as the directory is gone: {shown}; `ktuned add PATH` watches one again"

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
        missing = await self._find_missing(self._catalog.roots)
        before = self._store.load_absences()
        # A directory that came back begins anew, and so does everything when the clock was set back.
        since = {root.path: min(before.get(root.path, now), now) for root in missing}
        if since != before:
            await self._store.save_absences(since)
        for root in missing:
            if now - since[root.path] >= GONE_S:
                await self._forget_root(root)

    async def free_name(self, new: Root) -> None:
        """Forget the root whose project's name a new root takes, if the directory of that one is gone.

        Raises:
            StoreError: it cannot be recorded; nothing is forgotten.
        """
        namesakes = [root for root in self._catalog.roots if root.name == new.name and root.path != new.path]
        for root in await self._find_missing(namesakes):
            await self._forget_root(root)

    async def _find_missing(self, roots: Iterable[Root]) -> list[Root]:
        """Return the roots without a directory, in a thread: a network file system may hang."""
        configured = self._configured()
        asked = [root for root in roots if root.path not in configured]
        return await anyio.to_thread.run_sync(
            lambda: [root for root in asked if not os.path.isdir(root.path)], abandon_on_cancel=True
        )

    async def _forget_root(self, root: Root) -> None:
        await self._renewal.forget_root(root)
        self._forgotten.append(root.path)
        _log.warning("root_forgotten", root=root.path)
