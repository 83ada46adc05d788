"""The methods ``team``, ``team_push`` and ``team_pull``: what a team's store holds, and an exchange with it now."""

from __future__ import annotations

from typing import Any

import msgspec

from ktuned.catalog import Catalog
from ktuned.model import UsageError
from ktuned.scheduling import Jobs, TeamExchange, TeamLink, TeamWinners
from ktuned.serve.connection import Connection
from ktuned.serve.events import Events
from ktuned.serve.method import Method
from ktuned.serve.params import NoParams
from ktuned.team import TeamSettings, shown


class TeamPullParams(msgspec.Struct, frozen=True):
    """``team_pull``: one kernel, or all; ``directory`` decides which project a short name means."""

    kernel: str | None = None
    directory: str | None = None


class TeamMethods:
    """The team's store as clients see it."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        events: Events,
        exchange: TeamExchange,
        jobs: Jobs,
        link: TeamLink,
        winners: TeamWinners,
    ) -> None:
        self._catalog = catalog
        self._events = events
        self._exchange = exchange
        self._jobs = jobs
        self._link = link
        self._winners = winners

    def table(self) -> dict[str, Method[Any]]:
        """Return the methods by their names on the wire."""
        return {
            "team": Method(NoParams, self.status),
            "team_push": Method(NoParams, self.push),
            "team_pull": Method(TeamPullParams, self.pull),
        }

    def status(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Return where the store is, what is done with it, and how it does."""
        settings = self._link.settings
        if not settings.is_on:
            return {"url": None}
        published, waiting = self._exchange.counts()
        return {
            "url": shown(settings.url),
            "read_only": settings.read_only,
            "trust_artifacts": settings.trust_artifacts,
            "retention_days": settings.retention_days,
            "cap_gib": settings.cap_gib,
            "published": published,
            "waiting": 0 if settings.read_only else waiting,
            "read": self._winners.held,
            "looked": self._exchange.looked,
            "fault": self._link.fault,
            "notices": self._link.notices,
        }

    async def push(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        """Publish what the store lacks, and return when it is there.

        Raises:
            UsageError: there is no store, or it is only read.
            TeamDown: it cannot be used now.
        """
        settings = self._required()
        if settings.read_only:
            raise UsageError(
                "the team's store is only read here", hint="leave out `read_only` of [team] in config.toml"
            )
        sent = await self._exchange.push()
        published, waiting = self._exchange.counts()
        return {"url": shown(settings.url), "sent": sent, "published": published, "waiting": waiting}

    async def pull(self, wanted: TeamPullParams, connection: Connection) -> dict[str, Any]:
        """Look for others' winners of declared problems, and queue what verifies them; return the jobs.

        Raises:
            UsageError: there is no store.
            NotFound: there is no such kernel.
            TeamDown: the store cannot be used now.
        """
        settings = self._required()
        kernels = self._catalog.kernels
        if wanted.kernel is not None:
            kernels = [self._catalog.resolve(wanted.kernel, wanted.directory)]
        place = {"epoch": self._events.epoch, "seq": self._events.seq}
        pulled = await self._exchange.pull(kernels)
        return {
            "url": shown(settings.url),
            "found": pulled.found,
            "fresh": pulled.fresh,
            "jobs": [self._jobs.describe(job) for job in pulled.jobs],
            "errors": [],
            "notices": self._link.notices,
            **place,
        }

    def _required(self) -> TeamSettings:
        settings = self._link.settings
        if not settings.is_on:
            raise UsageError("there is no team's store", hint="set `url` of [team] in config.toml, see docs/sharing.md")
        return settings
