"""Moves of roots: a directory that is watched from now on may be a root whose own directory is gone. Results follow.

That is so where both have the same name (that of ``ktuned.toml`` above all), or where half of the known kernel files of
the one that is gone stand at the same places in the new one: after ``mv``, for another worktree in place of one that
was removed, for a clone on another disk.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

import anyio.to_thread
import msgspec
import structlog

from ktuned.catalog import Catalog
from ktuned.model import Root
from ktuned.store import Store

MAX_SHOWN: Final = 8
"""Moves that are remembered for the notice: more is no notice, and ``ktuned logs`` has all."""

_log = structlog.get_logger()


class MissingRoot(msgspec.Struct, frozen=True):
    """A root whose directory is gone: its path, its name, and its kernel files as they were, relative to it."""

    path: str
    name: str
    files: tuple[str, ...] = ()


def find_moved_root(gone: Iterable[MissingRoot], name: str, is_there: Callable[[str], bool]) -> MissingRoot | None:
    """Return the root that moved to a directory, or ``None``.

    ``name`` is what the directory's project would be called, ``is_there`` says whether it has such a file. A root of
    that name comes first, then the one with the most files there.
    """
    found = {root: sum(map(is_there, root.files)) for root in gone}
    likely = [root for root, count in found.items() if root.name == name or (count and 2 * count >= len(root.files))]
    likely.sort(key=lambda root: (root.name != name, -found[root], root.path))
    return likely[0] if likely else None


class RootMoves:
    """Follows roots to their new places; ``drop`` has the old ones watched no longer."""

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
        self._said: dict[str, str] = {}
        self._files: dict[str, tuple[str, ...]] = {}
        catalog.when_kernels_change(lambda names: self._remember_files())

    @property
    def notices(self) -> list[str]:
        """A line for each of the last moves since the daemon started."""
        return list(self._said.values())

    async def follow_move(self, new: Root) -> None:
        """Forget the root that moved to ``new``, if one did; its names and results are those of that from now on.

        Raises:
            StoreError: it cannot be recorded; nothing is forgotten.
        """
        self._remember_files()
        known = {root.path: root for root in self._catalog.roots if root.path not in self._configured()}
        roots = [MissingRoot(root.path, root.name, self._files.get(root.path, ())) for root in known.values()]
        moved = await anyio.to_thread.run_sync(_find_origin, roots, new)
        if moved is None:
            return
        await self._store.projects.move_project(moved.path, new.path)
        await self._store.remove_root(moved.path)
        await self._drop([known[moved.path]])
        self._said[new.path] = f"{moved.path} is gone and is watched no longer: its project moved to {new.path}"
        while len(self._said) > MAX_SHOWN:
            del self._said[next(iter(self._said))]
        _log.info("root_moved", root=moved.path, to=new.path)

    def _remember_files(self) -> None:
        """Note the kernel files of each root; those of a directory that has gone stay as they were."""
        roots = self._catalog.roots
        self._files = {root.path: self._files_of(root) for root in roots}

    def _files_of(self, root: Root) -> tuple[str, ...]:
        before = self._files.get(root.path, ())
        now = tuple(os.path.relpath(file, root.path) for file in self._catalog.files_of(root))
        return now if len(now) >= len(before) or os.path.isdir(root.path) else before


def _find_origin(roots: Iterable[MissingRoot], new: Root) -> MissingRoot | None:
    gone = [root for root in roots if not os.path.isdir(root.path)]
    return find_moved_root(gone, new.name, lambda file: os.path.isfile(os.path.join(new.path, file)))
