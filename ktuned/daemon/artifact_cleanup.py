"""Clean-up of artifacts: keeps them within their cap, in the background.

Only artifacts are removed. Trials and winners are small and stay until ``forget``, so that an undone edit finds its
results again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from time import monotonic

import anyio
import anyio.to_thread
import msgspec
import structlog

from ktuned.model import StoreError
from ktuned.protocol import AnswersChanged, Event, JobDone, PublishEvent
from ktuned.store import Artifacts, Store

_log = structlog.get_logger()


class ArtifactCleanup(msgspec.Struct, eq=False):
    """Removes artifacts at the start and after each job; publishes it if answers named some of them.

    ``list_used_kernels`` returns the kernels that were looked up within some seconds: their artifacts go last.
    """

    store: Store
    artifacts: Artifacts
    list_used_kernels: Callable[[float], Collection[str]]
    publish: PublishEvent
    _collected_at: float = msgspec.field(default_factory=monotonic)
    _due: anyio.Event = msgspec.field(default_factory=anyio.Event)

    def handle_event(self, event: Event) -> None:
        """Have the cap checked after each job."""
        if isinstance(event, JobDone):
            self._due.set()

    async def run_until_cancelled(self) -> None:
        """Keep the artifacts within their cap until cancelled."""
        while True:
            self._due = anyio.Event()
            try:
                if await anyio.to_thread.run_sync(lambda: self.artifacts.size) > self.artifacts.cap_bytes:
                    await self._collect_artifacts()
            except StoreError as error:
                _log.warning("collect_artifacts_failed", reason=error.message)
            await self._due.wait()

    async def _collect_artifacts(self) -> None:
        won = {winner.artifact: winner.context.kernel for winner in self.store.list_winners() if winner.artifact}
        # Lookups are answered from memory, so what was served since the last collection is recorded only now.
        now = monotonic()
        used = {*self.list_used_kernels(now - self._collected_at)}
        self._collected_at = now
        await anyio.to_thread.run_sync(
            self.artifacts.mark_served, [artifact for artifact, kernel in won.items() if kernel in used]
        )
        removed = await self.artifacts.collect_garbage(won.keys())
        if removed:
            self.publish(AnswersChanged())
            _log.info("artifacts_collected", artifacts=len(removed), freed_bytes=sum(removed.values()))
