"""Clean-up of artifacts: keeps them within their cap, in the background and by the method ``gc``.

Only artifacts are removed. Trials and winners are small and stay until ``forget``, so that an undone edit finds its
results again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import structlog

from ktuned.model import StoreError, UsageError
from ktuned.protocol import COLLECT, CollectAnswer, CollectParams
from ktuned.serve import Handler, Peer
from ktuned.store import Artifacts, Store

_log = structlog.get_logger()

GIB = 2**30


class ArtifactCleanup:
    """Removes artifacts at the start, after each job, and on demand; calls ``on_collected`` if any were removed."""

    def __init__(self, store: Store, artifacts: Artifacts, on_collected: Callable[[], None]) -> None:
        self._store = store
        self._artifacts = artifacts
        self._on_collected = on_collected
        self._due = anyio.Event()

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [Handler(COLLECT, self.handle_gc)]

    def request_collection(self) -> None:
        """Have the cap checked soon, because there are new artifacts, or the cap has changed."""
        self._due.set()

    async def run_until_cancelled(self) -> None:
        """Keep the artifacts within their cap until cancelled."""
        while True:
            self._due = anyio.Event()
            try:
                if await anyio.to_thread.run_sync(lambda: self._artifacts.size) > self._artifacts.cap_bytes:
                    await self._collect_artifacts(self._artifacts.cap_bytes)
            except StoreError as error:
                _log.warning("artifacts_not_collected", reason=error.message)
            await self._due.wait()

    async def handle_gc(self, params: CollectParams, peer: Peer) -> CollectAnswer:
        """Remove the least recently served artifacts, those of winners last, down to ``keep_gib`` or the cap."""
        if params.keep_gib is not None and not 0 <= params.keep_gib < math.inf:
            raise UsageError(f"keep_gib is {params.keep_gib}", hint="give GiB, 0 for none")
        bytes_kept = self._artifacts.cap_bytes if params.keep_gib is None else int(params.keep_gib * GIB)
        if params.dry_run:
            surplus = await self._artifacts.list_surplus(self._list_won_artifacts(), bytes_kept)
            count, freed = len(surplus), sum(surplus.values())
        else:
            count, freed = await self._collect_artifacts(bytes_kept)
        size = await anyio.to_thread.run_sync(lambda: self._artifacts.size)
        return CollectAnswer(artifacts=count, freed_bytes=freed, bytes=size, cap_bytes=self._artifacts.cap_bytes)

    async def _collect_artifacts(self, bytes_kept: int) -> tuple[int, int]:
        removed = await self._artifacts.collect_garbage(self._list_won_artifacts(), bytes_kept)
        if removed:
            self._on_collected()
            _log.info("artifacts_collected", artifacts=len(removed), freed_bytes=sum(removed.values()))
        return len(removed), sum(removed.values())

    def _list_won_artifacts(self) -> set[str]:
        return {winner.artifact for winner in self._store.list_winners() if winner.artifact is not None}
