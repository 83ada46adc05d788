"""The watched roots: how they are forgotten. Their results stay, under their projects' names.

======================================  ===============================================================================
a request or config.toml drops it       the root is forgotten at once
its directory has been gone for a day   the root is forgotten: disks are unplugged, and mounts are down, for less
another directory takes its name        the root is forgotten at once, so that a project that has moved keeps its name,
                                        and with it its results
======================================  ===============================================================================

The time since which a directory is gone is kept in the store, because a daemon without work ends long before a day is
over. Roots in ``config.toml`` are forgotten only when the file no longer names them: only the user edits it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from time import time
from typing import Final

import anyio.to_thread
import structlog

from ktuned.catalog import Catalog, FileInspector, make_root_environment
from ktuned.devices import Machine
from ktuned.model import KtunedError, Root, StoreError
from ktuned.scheduling.renewal import Renewal
from ktuned.store import Store

GONE_S: Final = 86_400.0
"""Absence after which a root is forgotten. An unplugged disk or a broken network file system returns sooner."""

LOOK_S: Final = 600.0
"""Interval of checks, each of which takes a few system calls."""

MAX_SHOWN: Final = 8
"""Most forgotten roots that the notice names."""

_log = structlog.get_logger()


class WatchedRoots:
    """Forgets roots, and inspects roots whose settings have changed.

    Args:
        list_configured: Returns the paths of the roots in ``config.toml``.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        inspector: FileInspector,
        machine: Machine,
        store: Store,
        renewal: Renewal,
        list_configured: Callable[[], Collection[str]],
    ) -> None:
        self._catalog = catalog
        self._inspector = inspector
        self._machine = machine
        self._store = store
        self._renewal = renewal
        self._list_configured = list_configured
        self._forgotten: list[str] = []

    @property
    def notice(self) -> str:
        """One line about the roots that were forgotten since the daemon started; empty if there are none."""
        if not self._forgotten:
            return ""
        shown = ", ".join(self._forgotten[-MAX_SHOWN:])
        return f"no longer watched, as the directory is gone: {shown}; `ktuned add PATH` watches one again"

    def is_configured(self, root: Root) -> bool:
        """Return whether ``config.toml`` names a root."""
        return root.path in self._list_configured()

    async def forget_root(self, root: Root) -> None:
        """Stop watching a root that a request had added.

        Raises:
            StoreError: This cannot be recorded; the root is still watched.
        """
        await self._store.remove_root(root.path)
        await self.drop_roots([root])

    async def drop_roots(self, roots: Iterable[Root]) -> None:
        """Stop watching roots that config.toml no longer names."""
        for root in roots:
            changes = self._catalog.remove_root(root.path)
            try:
                await self._store.save_kernels([], changes.removed)
            except KtunedError as error:
                # No harm is done: the next daemon finds no root for these kernels.
                _log.warning("kernels_not_forgotten", root=root.path, reason=error.message)
            await self._renewal.react_to_changes(changes, saved=False)

    async def inspect_roots(self, roots: Iterable[Root]) -> None:
        """Inspect roots whose settings have changed; new roots are left to the watcher."""
        for root in roots:
            await self._machine.environments.probe_environment(make_root_environment(root))
            if not os.path.isdir(root.path):
                continue
            try:
                found = await self._inspector.inspect_root(root)
                await self._renewal.react_to_changes(found.changes, saved=False)
            except KtunedError as error:
                _log.error("root_not_inspected", root=root.path, reason=error.message, hint=error.hint)

    async def check_missing_periodically(self) -> None:
        """Check the roots every :data:`LOOK_S`, until cancelled."""
        while True:
            try:
                await self.check_missing_roots(time())
            except StoreError as error:
                _log.warning("absences_not_recorded", reason=error.message)
            await anyio.sleep(LOOK_S)

    async def check_missing_roots(self, now: float) -> None:
        """Record which directories are gone, and forget the roots whose directories have been gone for a day.

        Raises:
            StoreError: This cannot be recorded; nothing is forgotten.
        """
        missing = await self._list_missing_roots(self._catalog.roots)
        before = self._store.load_absences()
        # The day starts again when a directory comes back, and for all of them when the clock is set back.
        since = {root.path: min(before.get(root.path, now), now) for root in missing}
        if since != before:
            await self._store.save_absences(since)
        for root in missing:
            if now - since[root.path] >= GONE_S:
                await self._forget_missing_root(root)

    async def forget_missing_namesakes(self, new: Root) -> None:
        """Forget an older root with the project name of a new root, if the older root's directory is gone.

        Raises:
            StoreError: This cannot be recorded; nothing is forgotten.
        """
        namesakes = [root for root in self._catalog.roots if root.name == new.name and root.path != new.path]
        for root in await self._list_missing_roots(namesakes):
            await self._forget_missing_root(root)

    async def _list_missing_roots(self, roots: Iterable[Root]) -> list[Root]:
        """Return the roots without a directory. They are checked in a thread, as a network file system may hang."""
        requested = [root for root in roots if not self.is_configured(root)]
        return await anyio.to_thread.run_sync(
            lambda: [root for root in requested if not os.path.isdir(root.path)], abandon_on_cancel=True
        )

    async def _forget_missing_root(self, root: Root) -> None:
        await self.forget_root(root)
        self._forgotten.append(root.path)
        _log.warning("root_forgotten", root=root.path)
