"""The methods ``kernels``, ``add`` and ``unwatch``: what is declared in the watched roots, and which these are."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

import msgspec

from ktuned.catalog import Catalog
from ktuned.model import NotFound, Root, UsageError
from ktuned.protocol import (
    ADD,
    KERNELS,
    UNWATCH,
    AddAnswer,
    AddParams,
    KernelEntry,
    KernelsAnswer,
    KernelsParams,
    RootInfo,
    UnwatchAnswer,
    UnwatchParams,
)
from ktuned.scheduling import Intake, Renewal
from ktuned.serve.connection import Connection
from ktuned.serve.explain import Explainer
from ktuned.serve.method import Handler
from ktuned.store import Store


class KernelMethods:
    """Lists kernels, adds and removes roots; ``configured`` returns the paths of the roots in ``config.toml``."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        explainer: Explainer,
        intake: Intake,
        renewal: Renewal,
        store: Store,
        configured: Callable[[], Collection[str]],
    ) -> None:
        self._catalog = catalog
        self._explainer = explainer
        self._intake = intake
        self._renewal = renewal
        self._store = store
        self._configured = configured

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [
            Handler(KERNELS, self.handle_kernels),
            Handler(ADD, self.handle_add),
            Handler(UNWATCH, self.handle_unwatch),
        ]

    def handle_kernels(self, wanted: KernelsParams, connection: Connection) -> KernelsAnswer:
        """List kernels, errors in kernel files, and roots."""
        kernels, errors = self._catalog.kernels, self._catalog.errors
        if wanted.path is not None:
            place = os.path.realpath(wanted.path)
            kernels, errors = self._catalog.kernels_below(place), self._catalog.errors_below(place)
        if wanted.kernel is not None:
            kernels, errors = [self._catalog.resolve_kernel(wanted.kernel, wanted.directory)], []
        entries = [
            KernelEntry.from_kernel(kernel, self._explainer.explain_winners(kernel) if wanted.why else msgspec.UNSET)
            for kernel in kernels
        ]
        return KernelsAnswer(tuple(entries), tuple(errors), tuple(map(RootInfo.from_root, self._catalog.roots)))

    async def handle_add(self, wanted: AddParams, connection: Connection) -> AddAnswer:
        """Inspect and watch a path, without tuning it."""
        watched = {root.path for root in self._catalog.roots}
        added = await self._intake.add_path(wanted.path, wanted.python)
        gone = watched - {root.path for root in self._catalog.roots}
        return AddAnswer(
            RootInfo.from_root(added.root),
            tuple(map(KernelEntry.from_kernel, added.kernels)),
            tuple(added.errors),
            tuple(f"{path} is gone, and is watched no longer" for path in sorted(gone)),
        )

    async def handle_unwatch(self, wanted: UnwatchParams, connection: Connection) -> UnwatchAnswer:
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
        await self._renewal.forget_root(root)
        gone = before - {kernel.name for kernel in self._catalog.kernels_below(root.path)}
        return UnwatchAnswer(root.path, root.name, tuple(sorted(gone)))

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
