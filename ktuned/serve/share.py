"""The methods ``share``, ``share_push`` and ``share_pull``: report on the shared store, and exchange winners now."""

from __future__ import annotations

from typing import Any

import msgspec

from ktuned.catalog import Catalog
from ktuned.model import UsageError
from ktuned.protocol import (
    SHARE,
    SHARE_PULL,
    SHARE_PUSH,
    NoParams,
    ShareAnswer,
    SharePullAnswer,
    SharePullParams,
    SharePushAnswer,
)
from ktuned.scheduling import Jobs, SharedWinners, ShareExchange
from ktuned.serve.events import Events
from ktuned.serve.method import Handler, Peer
from ktuned.sharing import ShareSettings, hide_secrets


class ShareMethods(msgspec.Struct, frozen=True, kw_only=True):
    """Handles the methods about the shared store."""

    catalog: Catalog
    events: Events
    exchange: ShareExchange
    jobs: Jobs
    shared: SharedWinners

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [
            Handler(SHARE, self.handle_status),
            Handler(SHARE_PUSH, self.handle_push),
            Handler(SHARE_PULL, self.handle_pull),
        ]

    def handle_status(self, nothing: NoParams, peer: Peer) -> ShareAnswer:
        """Return where the store is, and the result of the last exchange with it."""
        settings = self.shared.settings
        if not settings.is_on:
            return ShareAnswer(None)
        looked, last = self.exchange.last_look or (None, None)
        return ShareAnswer(
            hide_secrets(settings.url),
            settings.read_only,
            looked,
            None if last is None else last.found,
            None if last is None else last.fresh,
            self.shared.fault,
            self.shared.notices,
        )

    async def handle_push(self, nothing: NoParams, peer: Peer) -> SharePushAnswer:
        """Publish the winners that the store lacks; return when all are there.

        Raises:
            UsageError: there is no store, or its settings make it read-only.
            SharedStoreDown: the store cannot be used now.
        """
        settings = self._require_store()
        if settings.read_only:
            raise UsageError(
                "the shared store is only read here", hint="leave out `read_only` of [share] in config.toml"
            )
        return SharePushAnswer(hide_secrets(settings.url), await self.exchange.publish_all())

    async def handle_pull(self, params: SharePullParams, peer: Peer) -> SharePullAnswer:
        """Look for others' winners of declared problems, and queue jobs that verify them; return the jobs.

        Raises:
            UsageError: there is no store.
            NotFound: there is no such kernel.
            SharedStoreDown: the store cannot be used now.
        """
        settings = self._require_store()
        kernels = self.catalog.kernels
        if params.kernel is not None:
            kernels = [self.catalog.resolve_kernel(params.kernel, params.directory)]
        epoch, seq = self.events.epoch, self.events.seq
        exchanged = await self.exchange.pull_winners(kernels)
        return SharePullAnswer(
            hide_secrets(settings.url),
            exchanged.found,
            exchanged.fresh,
            jobs=tuple(map(self.jobs.describe_job, exchanged.jobs)),
            errors=(),
            notices=self.shared.notices,
            epoch=epoch,
            seq=seq,
        )

    def _require_store(self) -> ShareSettings:
        settings = self.shared.settings
        if not settings.is_on:
            raise UsageError("there is no shared store", hint="set `url` of [share] in config.toml")
        return settings
