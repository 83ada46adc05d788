"""Clean-up of artifacts: keeps them within their cap, in the background.

Only artifacts are removed. Trials and winners are small and stay until ``forget``, so that an undone edit finds its
results again.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.to_thread
import structlog

from ktuned.model import StoreError
from ktuned.store import Artifacts, Store

_log = structlog.get_logger()


class ArtifactCleanup:
    """Removes artifacts at the start and after each job; calls ``on_collected`` if any were removed."""

    def __init__(self, store: Store, artifacts: Artifacts, on_collected: Callable[[], None]) -> None:
        self._store = store
        self._artifacts = artifacts
        self._on_collected = on_collected
        self._due = anyio.Event()

    def request_collection(self) -> None:
        """Have the cap checked soon, because there are new artifacts, or the cap has changed."""
        self._due.set()

    async def run_until_cancelled(self) -> None:
        """Keep the artifacts within their cap until cancelled."""
        while True:
            self._due = anyio.Event()
            try:
                if await anyio.to_thread.run_sync(lambda: self._artifacts.size) > self._artifacts.cap_bytes:
                    await self._collect_artifacts()
            except StoreError as error:
                _log.warning("artifacts_not_collected", reason=error.message)
            await self._due.wait()

    async def _collect_artifacts(self) -> None:
        won = {winner.artifact for winner in self._store.list_winners() if winner.artifact is not None}
        removed = await self._artifacts.collect_garbage(won)
        if removed:
            self._on_collected()
            _log.info("artifacts_collected", artifacts=len(removed), freed_bytes=sum(removed.values()))
