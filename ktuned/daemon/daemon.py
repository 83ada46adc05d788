"""The running daemon: runs its parts (:mod:`ktuned.daemon.assembly`), and adds those that answer clients.

Clients are answered from the start, from the store's content. Meanwhile, three steps run in the background:

1. Devices are probed, so that answers are based on today's drivers.
2. Jobs that the last daemon left continue, and the watcher looks for files that changed while no daemon was running.
3. When the watcher has caught up, everything that changed is renewed: sources first, then drivers and toolchains.

At its end the daemon accepts no more requests, answers those under way, and cancels all tasks. Jobs stay in the store,
and the next daemon continues them.
"""

from __future__ import annotations

import os
import signal
import socket
from typing import Any

import anyio
import anyio.abc
import structlog

from ktuned.daemon.assembly import Parts
from ktuned.daemon.lifetime import Lifetime
from ktuned.daemon.status import collect_status
from ktuned.daemon.systemd import Notifier
from ktuned.protocol import AnswersChanged, StatusAnswer, WorkFigures
from ktuned.scheduling import work_in_quiet
from ktuned.serve import (
    CallMethods,
    Checks,
    DaemonMethods,
    DevicePeaks,
    Explainer,
    Handler,
    JobMethods,
    KernelMethods,
    LookupMethods,
    Responses,
    Server,
    Subscriptions,
    TrialMethods,
    keep_reachable,
    remove_socket,
)

_log = structlog.get_logger()


class Daemon:
    """A daemon, which runs until :attr:`stopping` is set.

    Args:
        parts: The parts that do the work.
        notifier: Reports to the service manager.
        idle_exit_s: Seconds of inactivity after which the daemon ends, unless the settings say otherwise; 0 is never.

    Attributes:
        parts: The parts that do the work.
        stopping: Set when the daemon is to stop.
        lifetime: Feeds the watchdog, and ends an idle daemon.
        peaks: Measures the limits of devices.
        handlers: The handlers of the protocol's methods, by name.
        server: Answers clients.
    """

    def __init__(
        self,
        parts: Parts,
        notifier: Notifier,
        *,
        idle_exit_s: float = 0.0,
    ) -> None:
        self.parts = parts
        self.stopping = anyio.Event()
        self.lifetime = Lifetime(
            notifier,
            idle_exit_s=idle_exit_s,
            busy=self._list_reasons_to_stay,
            totals=self._read_totals,
            describe=self._describe_activity,
            stop=self.stopping.set,
        )
        self.peaks = DevicePeaks(
            machine=parts.machine,
            store=parts.store,
            fleet=parts.fleet,
            environments=parts.probes.list_probed_environments,
            lane=parts.jobs.get_lane,
        )
        self.handlers = {handler.method.name: handler for handler in self._list_handlers()}
        self.responses = Responses(lambda: parts.states.version)
        self.server = Server(self.handlers.values(), responses=self.responses)
        self._notifier = notifier

    def _list_handlers(self) -> list[Handler[Any, Any]]:
        """Return the handlers of all methods of the protocol."""
        parts = self.parts
        catalog, events, fleet, jobs = parts.catalog, parts.events, parts.fleet, parts.jobs
        lookups, store = parts.lookups, parts.store
        return [
            *DaemonMethods(
                events=events,
                table=lookups.table,
                status=self._collect_status,
                probe=parts.probes.collect_reports,
                stop=self.stopping.set,
            ).list_handlers(),
            *JobMethods(
                known=parts.known,
                applications=fleet.applications,
                events=events,
                intake=parts.intake,
                jobs=jobs,
            ).list_handlers(),
            *TrialMethods(
                known=parts.known,
                jobs=jobs,
                publish=parts.router.publish_event,
                states=parts.states,
            ).list_handlers(),
            *LookupMethods(lookups).list_handlers(),
            *Subscriptions(events, jobs).list_handlers(),
            *parts.exchange.list_handlers(),
            *parts.team_store.list_handlers(),
            *parts.judge.list_handlers(),
            *Checks(
                known=parts.known,
                fleet=fleet,
                prepare=parts.preparation.prepare_brief,
                lane=parts.jobs.get_lane,
                scratch=parts.executor.scratch / "sanitizers",
                publish=parts.router.publish_event,
            ).list_handlers(),
            *self.peaks.list_handlers(),
            *CallMethods(parts.adoptions, fleet.applications).list_handlers(),
            *KernelMethods(
                catalog=catalog,
                explainer=Explainer(catalog, parts.states, store),
                intake=parts.intake,
                repetition=parts.repetition,
            ).list_handlers(),
        ]

    def _collect_status(self) -> StatusAnswer:
        return collect_status(self.parts, self.server, self.lifetime)

    def _read_totals(self) -> WorkFigures:
        """Return totals since the start; they never decrease."""
        answered = self.server.describe_traffic().answered
        lookups = self.parts.lookups.answered + self.responses.lookups
        return WorkFigures(requests=answered, lookups=lookups, trials=self.parts.router.trials)

    def _list_reasons_to_stay(self) -> list[str]:
        """Return the reasons why an idle daemon does not end: ``clients``, ``jobs``, ``watches``."""
        reasons = {
            "clients": bool(self.server.connections),
            "jobs": bool(self.parts.jobs.list_live_jobs()),
            "watches": any(os.path.isdir(root.path) for root in self.parts.catalog.roots),
        }
        return [reason for reason, holds in reasons.items() if holds]

    def _describe_activity(self) -> str:
        """Return jobs and clients as one line, for the service manager."""
        live = self.parts.jobs.list_live_jobs()
        running = sum(job.state == "running" for job in live)
        return f"{running} jobs running, {len(live) - running} queued; {len(self.server.connections)} clients"

    async def run_until_stopped(self, listening: socket.socket, *, is_bound: bool) -> None:
        """Run every part until the daemon is to stop; ``is_bound`` says that we bound the socket and keep its file."""
        parts = self.parts
        place = parts.settings.socket
        parts.artifacts.clean_staging()
        await parts.jobs.take_up_jobs()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._await_signals)
            # Before the first request, so that clients find the last winners in the table even if the daemon is slow.
            tasks.start_soon(parts.lookups.run_until_cancelled)
            await tasks.start(self.server.serve_until_cancelled, listening)
            self._notifier.report_ready(self._describe_activity())
            _log.info("daemon_ready", socket=place, pid=os.getpid())
            for work in (
                parts.watcher.watch_until_cancelled,
                parts.renewal.retry_unrecorded,
                parts.intake.check_missing_periodically,
                parts.artifact_cleanup.run_until_cancelled,
                parts.probes.run_until_cancelled,
                parts.toolchain_survey.run_until_cancelled,
                self._remeasure_in_quiet,
                self._resume_work,
                self.lifetime.run_until_cancelled,
                *([self._keep_reachable] if is_bound else ()),
            ):
                tasks.start_soon(work)
            await self.stopping.wait()
            self._notifier.report_stopping()
            _log.info("daemon_stopping")
            if is_bound:
                # Before anything else ends: the next command starts a daemon, which waits for the end of this one.
                remove_socket(place)
            await self.server.drain_requests()
            tasks.cancel_scope.cancel()

    async def _keep_reachable(self) -> None:
        await keep_reachable(
            self.parts.settings.socket, self.server.accept_from, self.parts.lookups.table.restore_file, self.stopping
        )

    async def _remeasure_in_quiet(self) -> None:
        works = [self.peaks.remeasure_doubtful, self.parts.renewal.remeasure_provisional_winners]
        await work_in_quiet(works, is_working=lambda: bool(self.parts.jobs.list_live_jobs()))

    async def _await_signals(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for _ in signals:
                self.stopping.set()

    async def _resume_work(self) -> None:
        """Continue the last daemon's work, after probing the machine's devices."""
        if self.parts.catalog.roots:
            await self.parts.probes.collect_reports()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.parts.jobs.run_until_cancelled)
            tasks.start_soon(self._renew_changes)
            # Not earlier, because adoptions need to know the kernels.
            tasks.start_soon(self.parts.adoptions.run_until_cancelled)
            tasks.start_soon(self.parts.repetition.run_until_cancelled)
            tasks.start_soon(self.parts.repetition.compare_until_cancelled)

    async def _renew_changes(self) -> None:
        """Renew everything that changed while no daemon was running: sources first, then drivers and toolchains."""
        await self.parts.watcher.caught_up.wait()
        # The doubts of a start are over, because the watcher has now looked at every file.
        self.parts.states.start_doubts.end_doubts()
        self.parts.router.publish_event(AnswersChanged())
        await self.parts.renewal.queue_reverification()
        # The exchange comes last, because contexts must be today's.
        await self.parts.team_store.run_until_cancelled()
