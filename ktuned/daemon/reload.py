"""Reload of ``config.toml``: on SIGHUP and by the method ``reload``.

The new file is first read and checked as a whole. If it is invalid, nothing changes, and a notice says why until a
reload succeeds. Otherwise each part gets its new settings at once, and running work continues under them. The socket
and the directories stay as they were at the start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import structlog

from ktuned.daemon.assembly import Parts, list_watched_roots
from ktuned.daemon.lifetime import Lifetime
from ktuned.daemon.settings import Settings
from ktuned.daemon.systemd import Notifier
from ktuned.model import KtunedError
from ktuned.protocol import RELOAD, AnswersChanged, NoParams, ReloadAnswer
from ktuned.serve import Handler, Peer

_log = structlog.get_logger()


class Reload:
    """Gives every part its new settings when ``config.toml`` is reloaded.

    Args:
        parts: The parts.
        lifetime: Gets the idle time after which the daemon ends.
        notifier: Reports to the service manager.
        describe: Returns one line about the daemon's activity, for the service manager.

    Attributes:
        notice: Why the last reload was refused; empty if it was not.
    """

    def __init__(self, parts: Parts, lifetime: Lifetime, notifier: Notifier, describe: Callable[[], str]) -> None:
        self.notice = ""
        self._parts = parts
        self._lifetime = lifetime
        self._notifier = notifier
        self._describe = describe
        self._lock = anyio.Lock()

    def list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the methods with their handlers."""
        return [Handler(RELOAD, self.handle_reload)]

    async def handle_reload(self, nothing: NoParams, peer: Peer) -> ReloadAnswer:
        """Reload, and return the names of the settings that changed."""
        changed = await self.reload_settings()
        return ReloadAnswer(str(self._parts.settings.config_path), tuple(changed))

    async def reload_settings(self) -> list[str]:
        """Apply ``config.toml`` as it is now; return the names of the settings that changed.

        Raises:
            SettingsError: the file is invalid; nothing has changed.
        """
        async with self._lock:
            self._notifier.report_reloading()
            before = self._parts.settings
            try:
                settings = before.reload_settings_file()
                changed = settings.list_changes_since(before)
                await self._apply_settings(settings, before)
            except KtunedError as error:
                self.notice = f"config.toml was not reloaded: {error.message}"
                _log.error("config_wrong", reason=error.message, hint=error.hint)
                raise
            finally:
                self._notifier.report_ready(self._describe())
        return changed

    async def _apply_settings(self, settings: Settings, before: Settings) -> None:
        self.notice = ""
        parts = self._parts
        # The daemon already listens, so a new socket takes effect at its next start.
        parts.settings = msgspec.structs.replace(settings, socket=parts.settings.socket)
        parts.fleet.deadlines.update(settings.deadlines)
        parts.preparation.judges_contention = settings.file.contention
        self._lifetime.apply_limit(settings.idle_exit_s)
        parts.job_machine.idle_policy.policy = settings.file.policy
        parts.jobs.request_review()
        # A config that failed may work with more time or memory.
        parts.jobs.forget_failures()
        if parts.trust.set_exceptions(settings.trusted_directories):
            # Workers get these directories only at their start.
            parts.fleet.outdate_workers()
        parts.fleet.apply_limits(settings.file.compile_slots, (settings.bench_bytes, settings.compile_bytes))
        parts.fleet.machine.keeps_spares = settings.file.spares
        parts.artifacts.cap_bytes = settings.artifacts_bytes
        parts.machine.arch, parts.machine.chosen = settings.file.arch, settings.file.devices
        parts.artifact_cleanup.request_collection()
        if settings.file.share != before.file.share:
            parts.team_store.apply_settings(settings.file.share)
        parts.cluster.apply_settings(settings.file.cluster, has_memory_limits=settings.has_memory_limits)
        await self._apply_roots(settings)
        parts.router.publish_event(AnswersChanged())

    async def _apply_roots(self, settings: Settings) -> None:
        catalog, store, intake = self._parts.catalog, self._parts.store, self._parts.intake
        known = catalog.roots
        paths = {root.path for root in settings.roots}
        configured = [root for root in list_watched_roots(settings, store) if root.path in paths]
        for root in configured:
            await self._parts.inspector.watch_root(root)
        kept = {root.path for root in (*settings.roots, *store.load_roots())}
        await intake.drop_roots([root for root in known if root.path not in kept])
        _log.info("config_reloaded", path=str(settings.config_path))
        before = {root.path for root in known}
        await intake.inspect_roots([root for root in configured if root not in known and root.path in before])
