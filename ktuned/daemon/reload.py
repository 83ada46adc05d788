"""Reload of ``config.toml``: on SIGHUP and by the method ``reload``.

The new file is read and checked as a whole first. If it cannot be followed nothing changes, and a notice says why,
until a reload succeeds. Otherwise each part gets its new settings at once, and running work continues under them. The
socket and the directories stay as they were at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import structlog

from ktuned.catalog import Catalog, FileInspector, known_roots
from ktuned.daemon.artifact_cleanup import ArtifactCleanup
from ktuned.daemon.config import Settings
from ktuned.daemon.lifetime import Lifetime
from ktuned.daemon.systemd import Notifier
from ktuned.devices import Machine
from ktuned.fleet import Executors, Fleet
from ktuned.ipc import Trust
from ktuned.model import KtunedError, Root
from ktuned.protocol import RELOAD, NoParams, ReloadAnswer
from ktuned.scheduling import IdlePolicy, Jobs, JobSettings, Preparation, Renewal, ShareExchange
from ktuned.serve import Connection, Handler
from ktuned.store import Artifacts, Store

_log = structlog.get_logger()


class CurrentSettings:
    """The settings that are in force, and a ``notice`` if the last reload was refused.

    ``deadlines`` is one map that all parts share which watch deadlines, so that a reload reaches them all.

    Args:
        settings: The settings at the start.
        idle_exit_s: Idle time before the end where the settings leave that open; depends on how the daemon was started.
    """

    def __init__(self, settings: Settings, idle_exit_s: float) -> None:
        self.settings = settings
        self.notice = ""
        self.deadlines = dict(settings.deadlines)
        self._default_idle_exit_s = idle_exit_s

    @property
    def job_settings(self) -> JobSettings:
        """The settings that every job follows."""
        return JobSettings(self.settings.judges_contention, self.settings.slots_are_given)

    @property
    def idle_exit_s(self) -> float:
        """Seconds of inactivity after which the daemon ends; 0 is never."""
        chosen = self.settings.idle_exit_s
        return self._default_idle_exit_s if chosen is None else chosen


class Reload:
    """Gives every part its settings when the file has changed; ``describe`` is one line for the service manager."""

    def __init__(
        self,
        current: CurrentSettings,
        notifier: Notifier,
        *,
        artifact_cleanup: ArtifactCleanup,
        artifacts: Artifacts,
        catalog: Catalog,
        executors: Executors,
        describe: Callable[[], str],
        fleet: Fleet,
        idle_policy: IdlePolicy,
        jobs: Jobs,
        lifetime: Lifetime,
        machine: Machine,
        preparation: Preparation,
        renewal: Renewal,
        store: Store,
        share_exchange: ShareExchange,
        inspector: FileInspector,
        trust: Trust,
    ) -> None:
        self._current = current
        self._notifier = notifier
        self._artifact_cleanup = artifact_cleanup
        self._artifacts = artifacts
        self._catalog = catalog
        self._executors = executors
        self._describe = describe
        self._fleet = fleet
        self._idle_policy = idle_policy
        self._jobs = jobs
        self._lifetime = lifetime
        self._machine = machine
        self._preparation = preparation
        self._renewal = renewal
        self._store = store
        self._share_exchange = share_exchange
        self._inspector = inspector
        self._trust = trust
        self._lock = anyio.Lock()

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [Handler(RELOAD, self.handle_reload)]

    async def handle_reload(self, nothing: NoParams, connection: Connection) -> ReloadAnswer:
        """Reload, and return the names of the settings that changed."""
        changed = await self.reload_settings()
        return ReloadAnswer(str(self._current.settings.config_path), tuple(changed))

    async def reload_settings(self) -> list[str]:
        """Apply ``config.toml`` as it is now; return the names of the settings that changed.

        Raises:
            SettingsError: it cannot be followed; nothing has changed.
        """
        async with self._lock:
            self._notifier.report_reloading()
            try:
                settings = self._current.settings.load_again()
                changed = settings.list_changes_since(self._current.settings)
                await self._apply_settings(settings)
            except KtunedError as error:
                self._current.notice = f"config.toml was not taken in: {error.message}"
                _log.error("config_wrong", reason=error.message, hint=error.hint)
                raise
            finally:
                self._notifier.report_ready(self._describe())
        return changed

    async def _apply_settings(self, settings: Settings) -> None:
        current = self._current
        current.notice = ""
        # The daemon listens already: a new socket counts from its next start.
        current.settings = msgspec.structs.replace(settings, socket=current.settings.socket)
        current.deadlines.update(settings.deadlines)
        self._preparation.settings = current.job_settings
        self._lifetime.idle_exit_s = current.idle_exit_s
        self._idle_policy.policy = settings.policy
        self._jobs.request_review()
        # With more time or memory a config that failed may work.
        self._jobs.forget_failures()
        if self._trust.set_exceptions(settings.trusted_directories):
            # Workers learn them at their start alone.
            self._fleet.outdate_workers()
        self._fleet.apply_limits(settings.compile_slots, (settings.bench_bytes, settings.compile_bytes))
        self._fleet.spawn_s = settings.deadlines["spawn"]
        self._fleet.machine.keeps_spares = settings.keeps_spares
        self._artifacts.cap_bytes = settings.artifacts_bytes
        self._machine.arch, self._machine.chosen = settings.arch, settings.devices
        self._artifact_cleanup.request_collection()
        self._share_exchange.apply_settings(settings.share)
        self._executors.apply_settings(settings.executors, limits_are_given=settings.limits_are_given)
        await self._apply_roots(settings)

    async def _apply_roots(self, settings: Settings) -> None:
        known = self._catalog.roots
        paths = {root.path for root in settings.roots}
        configured = [root for root in list_watched_roots(settings, self._store) if root.path in paths]
        for root in configured:
            await self._inspector.adopt_root(root)
        kept = {root.path for root in (*settings.roots, *self._store.load_roots())}
        await self._renewal.drop_roots([root for root in known if root.path not in kept])
        _log.info("config_reloaded", path=str(settings.config_path))
        before = {root.path for root in known}
        await self._renewal.look_around([root for root in configured if root not in known and root.path in before])


def list_watched_roots(settings: Settings, store: Store) -> list[Root]:
    """Return the roots to watch: those of ``config.toml``, and those that requests have added."""
    configured = {root.path for root in settings.roots}
    roots = [*settings.roots, *(root for root in store.load_roots() if root.path not in configured)]
    return known_roots(roots, store.projects.load_names(), Trust(settings.trusted_directories))
