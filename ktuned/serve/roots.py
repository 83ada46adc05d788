"""The methods ``add`` and ``unwatch``: watch a path without tuning it, and stop watching a root."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from ktuned.catalog import Catalog
from ktuned.model import NotFound, Root, UsageError
from ktuned.protocol import ADD, UNWATCH, AddParams, UnwatchParams
from ktuned.scheduling import Intake, Renewal
from ktuned.serve.connection import Connection
from ktuned.serve.method import Handler
from ktuned.store import Store


class RootMethods:
    """Adds and removes roots; ``configured`` returns the paths of those that ``config.toml`` names."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        intake: Intake,
        renewal: Renewal,
        store: Store,
        configured: Callable[[], Collection[str]],
    ) -> None:
        self._catalog = catalog
        self._intake = intake
        self._renewal = renewal
        self._store = store
        self._configured = configured

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [Handler(ADD, self.handle_add), Handler(UNWATCH, self.handle_unwatch)]

    async def handle_add(self, wanted: AddParams, connection: Connection) -> dict[str, Any]:
        """Inspect and watch a path, without tuning it."""
        moves = self._intake.moves
        added = await self._intake.add_path(wanted.path, wanted.python)
        return {
            "root": added.root.to_wire(),
            "kernels": [{"name": kernel.name, **kernel.to_wire()} for kernel in added.kernels],
            "errors": msgspec.to_builtins(added.errors),
            "notices": [line for line in self._intake.moves if line not in moves],
        }

    async def handle_unwatch(self, wanted: UnwatchParams, connection: Connection) -> dict[str, Any]:
        """Stop watching a root: its jobs are cancelled, its kernels forgotten, its results kept.

        Raises:
            NotFound: nothing is watched there.
            UsageError: the path lies below a root, or ``config.toml`` names it.
        """
        root = self._root_at(wanted.path)
        if root.path in self._configured():
            raise UsageError(
                f"{root.path} is a root of config.toml",
                hint="remove its [[roots]] entry, then run `ktuned config --reload`",
            )
        before = {kernel.name for kernel in self._catalog.kernels_below(root.path)}
        await self._store.remove_root(root.path)
        await self._renewal.drop_roots([root])
        gone = before - {kernel.name for kernel in self._catalog.kernels_below(root.path)}
        return {"path": root.path, "name": root.name, "kernels": sorted(gone)}

    def _root_at(self, path: str) -> Root:
        known = {root.path: root for root in self._catalog.roots}
        # A directory that is gone may have been a link.
        for place in (os.path.realpath(path), path):
            if place in known:
                return known[place]
        holder = self._catalog.root_of(os.path.realpath(path))
        if holder is not None:
            raise UsageError(f"{path} is watched as a part of {holder.path}", hint=f"`ktuned remove {holder.path}`")
        raise NotFound(f"{path} is not watched", hint=f"watched are: {', '.join(known) or 'no directories'}")
