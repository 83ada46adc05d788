"""The daemon's process: takes the socket, the lock and the store, runs the parts, ends them in order.

*Start.* Lock the state, open the socket, open the store, build the parts, start the fleet, then serve. Clients are
answered from the first moment, from what the store knows, while three things follow one another in the background:

1. devices are probed, so that answers stand on the drivers of today;
2. jobs that the last daemon left run again; meanwhile the watcher finds what was saved while no daemon was there;
3. when it has caught up, what changed is renewed: sources first, then drivers and toolchains.

*End.* Stop taking requests, answer those under way, cancel all tasks, kill all workers, close the store. Jobs stay in
the store, and the next daemon continues them.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import signal
import socket
import sys
from contextlib import suppress

import anyio
import anyio.abc
import msgspec
import structlog

from ktuned.daemon import state_directory
from ktuned.daemon.assembly import Parts, Replacements, assemble_parts
from ktuned.daemon.config import Settings
from ktuned.daemon.last_end import record_end
from ktuned.daemon.lifetime import AUTO_IDLE_EXIT_S
from ktuned.daemon.reload import list_watched_roots
from ktuned.daemon.systemd import Handover, Notifier
from ktuned.model import KtunedError
from ktuned.serve import bind_socket, inherit_socket, keep_reachable
from ktuned.store import STORE_NAME, Store

_log = structlog.get_logger()

_HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
"""uvloop halves the daemon's part of a lookup; without it, asyncio's own loop does the same work."""


_COLLECTIONS = (700, 3, 100)
"""Thresholds of the garbage collector: its middle generation takes 2 ms instead of 5 where many lanes are at work, and
full collections, which take 20 to 40, come a third as often."""

_SWITCH_S = 0.001
"""Time in seconds after which the store's thread gives way to the loop; by default a lookup may wait for 5 ms."""


def run(settings: Settings, *, starts_by_itself: bool = False, replacements: Replacements | None = None) -> int:
    """Run a daemon until it is stopped; return the exit code.

    Args:
        settings: Where it runs, and what ``config.toml`` says.
        starts_by_itself: Whether a command starts it when it is needed. Then it ends when it is idle, unless the
            settings say otherwise; so does a daemon whose socket a service manager holds.
        replacements: Parts of a test or a benchmark.

    Raises:
        KtunedError: it cannot start, or cannot continue; says what to do.
    """
    os.umask(state_directory.PRIVATE_UMASK)
    gc.set_threshold(*_COLLECTIONS)
    sys.setswitchinterval(_SWITCH_S)
    handover = Handover.take_from_environ(os.environ, os.getpid())
    try:
        serving = functools.partial(serve_until_stopped, replacements=replacements)
        anyio.run(serving, settings, handover, starts_by_itself, backend_options={"use_uvloop": _HAS_UVLOOP})
    except* KtunedError as group:
        raise _first_error(group) from None
    return 0


async def serve_until_stopped(
    settings: Settings, handover: Handover, starts_by_itself: bool, *, replacements: Replacements | None = None
) -> None:
    """Serve until SIGTERM, SIGINT or a ``shutdown`` request, or until it has been idle for long enough."""
    descriptor = handover.descriptor
    socket_of = bind_socket(settings.socket) if descriptor is None else inherit_socket(descriptor)
    idle_exit_s = AUTO_IDLE_EXIT_S if starts_by_itself or descriptor is not None else 0.0
    with (
        Notifier(handover.notify_path) as notifier,
        state_directory.hold_directories(settings.state, settings.cache),
        record_end(settings.state) as last_end,
        socket_of as listening,
    ):
        settings = msgspec.structs.replace(settings, socket=listening.getsockname())
        async with Store.open(settings.state / STORE_NAME) as store:
            # Before anything is read by a kernel's name.
            await store.projects.save_names({root.path: root.name for root in list_watched_roots(settings, store)})
            parts = assemble_parts(
                settings,
                store,
                notifier,
                watchdog_s=handover.watchdog_s,
                idle_exit_s=idle_exit_s,
                last_end=last_end,
                replacements=replacements,
            )
            # Without this a full collection scans all modules and the store's indexes, for 20 to 60 ms, and every
            # lookup waits.
            gc.freeze()
            async with parts.fleet.run_workers(), parts.bridge.accept_calls():
                await Daemon(parts).run_until_stopped(listening, is_bound=descriptor is None)


class Daemon:
    """The parts at work, until :attr:`Parts.stopping` is set."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    async def run_until_stopped(self, listening: socket.socket, *, is_bound: bool) -> None:
        """Run every part until the daemon is to stop; ``is_bound`` says that the socket's file is ours to keep."""
        parts = self.parts
        place = parts.current.settings.socket
        parts.artifacts.clean_staging()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._await_signals)
            await tasks.start(parts.server.serve_until_cancelled, listening)
            parts.notifier.report_ready(parts.activity.describe_activity())
            _log.info("ready", socket=place, pid=os.getpid())
            for work in (
                parts.lookups.run_until_cancelled,
                parts.portfolios.run_until_cancelled,
                parts.watcher.watch_until_cancelled,
                parts.renewal.retry_unrecorded,
                parts.gone_roots.check_periodically,
                parts.artifact_cleanup.run_until_cancelled,
                parts.probes.run_until_cancelled,
                parts.toolchain_survey.run_until_cancelled,
                self._take_up_work,
                parts.lifetime.run_until_cancelled,
                *([functools.partial(keep_reachable, place, parts.server.accept_from)] if is_bound else ()),
            ):
                tasks.start_soon(work)
            await parts.stopping.wait()
            parts.notifier.report_stopping()
            _log.info("stopping")
            await parts.server.drain_requests()
            tasks.cancel_scope.cancel()

    async def _await_signals(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    with suppress(KtunedError):
                        await self.parts.reload.reload_settings()
                else:
                    self.parts.stopping.set()

    async def _take_up_work(self) -> None:
        """Continue the work that was left, once it is known what the machine is now."""
        if self.parts.catalog.roots:
            await self.parts.probes.collect_reports()
            # Answers from before the probe may stand on an older report.
            self.parts.lookups.caches.forget_all_answers()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.parts.jobs.run_until_cancelled)
            tasks.start_soon(self._renew_changes)
            # Not earlier: adoptions need to know which kernels there are.
            tasks.start_soon(self.parts.adoptions.run)

    async def _renew_changes(self) -> None:
        """Renew what changed while no daemon was there: sources first, then drivers and toolchains."""
        await self.parts.watcher.caught_up.wait()
        self.parts.lookups.caught_up()
        await self.parts.reverification.queue_reverification()
        # Only now: what is shared must stand on today's contexts.
        await self.parts.share_exchange.run_until_cancelled()


def _first_error(group: BaseExceptionGroup[KtunedError]) -> KtunedError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, KtunedError)
    return error
