"""The methods ``kernels``, ``add`` and ``unwatch``: list the kernels and the watched roots, add and remove roots."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from msgspec.structs import replace

from ktuned.catalog import Catalog
from ktuned.model import FrozenStruct, NotFound, UsageError
from ktuned.protocol import (
    ADD,
    KERNELS,
    UNWATCH,
    AddAnswer,
    AddParams,
    KernelEntry,
    KernelsAnswer,
    KernelsParams,
    Root,
    RootInfo,
    UnwatchAnswer,
    UnwatchParams,
)
from ktuned.scheduling import Intake, Repetition
from ktuned.serve.explain import Explainer
from ktuned.serve.method import Handler, Peer


class KernelMethods(FrozenStruct, kw_only=True):
    """Lists kernels, adds and removes roots.

    Attributes:
        catalog: The known kernels and roots.
        explainer: Explains stale winners.
        intake: Inspects and watches paths, and forgets roots.
        repetition: Makes winners again.
    """

    catalog: Catalog
    explainer: Explainer
    intake: Intake
    repetition: Repetition

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [
            Handler(KERNELS, self.handle_kernels),
            Handler(ADD, self.handle_add),
            Handler(UNWATCH, self.handle_unwatch),
        ]

    def handle_kernels(self, params: KernelsParams, peer: Peer) -> KernelsAnswer:
        """List kernels, errors in kernel files, and roots."""
        kernels, errors = self.catalog.kernels, self.catalog.errors
        if params.path is not None:
            place = os.path.realpath(params.path)
            kernels, errors = self.catalog.list_kernels_below(place), self.catalog.list_errors_below(place)
        if params.kernel is not None:
            kernels = [self.catalog.resolve_kernel(params.kernel, params.directory)]
            errors = self.catalog.list_errors_below(kernels[0].file)
        entries = [
            replace(
                KernelEntry.from_kernel(
                    kernel, self.explainer.explain_winners(kernel) if params.why else msgspec.UNSET
                ),
                repeated=self.repetition.describe_pace(kernel.name),
                quarantined=self.explainer.list_quarantined(kernel) if params.why else (),
            )
            for kernel in kernels
        ]
        return KernelsAnswer(tuple(entries), tuple(errors), tuple(map(RootInfo.from_root, self.catalog.roots)))

    async def handle_add(self, params: AddParams, peer: Peer) -> AddAnswer:
        """Inspect and watch a path, without tuning it."""
        watched = {root.path for root in self.catalog.roots}
        added = await self.intake.add_path(params.path, params.python)
        gone = watched - {root.path for root in self.catalog.roots}
        return AddAnswer(
            RootInfo.from_root(added.root),
            tuple(map(KernelEntry.from_kernel, added.kernels)),
            tuple(added.errors),
            tuple(f"{path} is gone, and is no longer watched" for path in sorted(gone)),
        )

    async def handle_unwatch(self, params: UnwatchParams, peer: Peer) -> UnwatchAnswer:
        """Stop watching a root: its jobs are cancelled, its kernels forgotten, its results kept.

        Raises:
            NotFound: nothing is watched there.
            UsageError: the path lies below a root, or ``config.toml`` names it.
        """
        root = self._find_watched_root(params.path)
        if self.intake.is_configured(root):
            raise UsageError(
                f"{root.path} is a root of config.toml",
                hint="remove its [[roots]] entry, then run `ktuned stop`: the next daemon reads the file",
            )
        before = {kernel.name for kernel in self.catalog.list_kernels_below(root.path)}
        await self.intake.forget_root(root)
        gone = before - {kernel.name for kernel in self.catalog.list_kernels_below(root.path)}
        return UnwatchAnswer(root.path, root.name, tuple(sorted(gone)))

    def _find_watched_root(self, path: str) -> Root:
        known = {root.path: root for root in self.catalog.roots}
        # Also the path as given: a root whose directory is gone may be known by a path that was a link.
        for place in (os.path.realpath(path), path):
            if place in known:
                return known[place]
        holder = self.catalog.find_root(os.path.realpath(path))
        if holder is not None:
            raise UsageError(f"{path} is watched as a part of {holder.path}", hint=f"`ktuned remove {holder.path}`")
        raise NotFound(f"{path} is not watched", hint=f"watched are: {', '.join(known) or 'no directories'}")
