"""The methods ``share``, ``share_push`` and ``share_pull``: how a shared store stands, and an exchange with it now."""

from __future__ import annotations

from typing import Any

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
from ktuned.serve.connection import Connection
from ktuned.serve.events import Events
from ktuned.serve.method import Handler
from ktuned.sharing import ShareSettings, hide_secrets


class ShareMethods:
    """The shared store as clients see it."""

    def __init__(
        self, *, catalog: Catalog, events: Events, exchange: ShareExchange, jobs: Jobs, shared: SharedWinners
    ) -> None:
        self._catalog = catalog
        self._events = events
        self._exchange = exchange
        self._jobs = jobs
        self._shared = shared

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [
            Handler(SHARE, self.handle_status),
            Handler(SHARE_PUSH, self.handle_push),
            Handler(SHARE_PULL, self.handle_pull),
        ]

    def handle_status(self, nothing: NoParams, connection: Connection) -> ShareAnswer:
        """Return where the store is, and how the exchange with it stands."""
        settings = self._shared.settings
        if not settings.is_on:
            return ShareAnswer(None)
        looked, last = self._exchange.last_look or (None, None)
        return ShareAnswer(
            hide_secrets(settings.url),
            settings.read_only,
            looked,
            None if last is None else last.found,
            None if last is None else last.fresh,
            self._shared.fault,
            self._shared.notices,
        )

    async def handle_push(self, nothing: NoParams, connection: Connection) -> SharePushAnswer:
        """Publish what the store lacks, and return when it is there.

        Raises:
            UsageError: there is no store, or it is only read.
            SharedStoreDown: it cannot be used now.
        """
        settings = self._require_store()
        if settings.read_only:
            raise UsageError(
                "the shared store is only read here", hint="leave out `read_only` of [share] in config.toml"
            )
        return SharePushAnswer(hide_secrets(settings.url), await self._exchange.publish_all())

    async def handle_pull(self, wanted: SharePullParams, connection: Connection) -> SharePullAnswer:
        """Look for others' winners of declared problems, and queue what verifies them; return the jobs.

        Raises:
            UsageError: there is no store.
            NotFound: there is no such kernel.
            SharedStoreDown: the store cannot be used now.
        """
        settings = self._require_store()
        kernels = self._catalog.kernels
        if wanted.kernel is not None:
            kernels = [self._catalog.resolve_kernel(wanted.kernel, wanted.directory)]
        epoch, seq = self._events.epoch, self._events.seq
        exchanged = await self._exchange.pull_winners(kernels)
        return SharePullAnswer(
            hide_secrets(settings.url),
            exchanged.found,
            exchanged.fresh,
            jobs=tuple(map(self._jobs.describe_job, exchanged.jobs)),
            errors=(),
            notices=self._shared.notices,
            epoch=epoch,
            seq=seq,
        )

    def _require_store(self) -> ShareSettings:
        settings = self._shared.settings
        if not settings.is_on:
            raise UsageError("there is no shared store", hint="set `url` of [share] in config.toml")
        return settings
