"""The composition root: builds the parts, runs them in one task group, takes them down in order."""

from __future__ import annotations

import functools
import importlib.util
import os
import signal
from contextlib import suppress
from typing import Any

import anyio
import anyio.abc
import anyio.to_thread
import msgspec
import structlog

from ktuned.catalog import Catalog, Survey, Trust
from ktuned.daemon import state_directory
from ktuned.daemon.artifact_cleanup import Housekeeping
from ktuned.daemon.config import Settings
from ktuned.daemon.lifetime import AUTO_IDLE_EXIT_S, Life
from ktuned.daemon.systemd import Handover, Notifier
from ktuned.devices import Machine, Probing
from ktuned.fleet import Fleet
from ktuned.lookup import Generations, Lookups, ask_for_short_slices
from ktuned.model import KtunedError
from ktuned.scheduling import Intake, Jobs, JobSettings, Manners, Observer, Preparing, Reverifying
from ktuned.serve import (
    Captures,
    Connection,
    Control,
    Events,
    Method,
    Methods,
    NoParams,
    Overview,
    Server,
    Sharing,
    Why,
    bind_socket,
    inherit_socket,
    keep_reachable,
)
from ktuned.store import Artifacts, Store
from ktuned.watch import Watcher

_log = structlog.get_logger()

_STORE_NAME = "ktuned.sqlite"

_HAS_UVLOOP = importlib.util.find_spec("uvloop") is not None
"""It halves the daemon's part of a lookup; where it cannot be installed, asyncio's own loop does the same work."""


def run(settings: Settings, *, starts_by_itself: bool = False) -> int:
    """Run a daemon until it is told to stop; return the exit code.

    One that ``starts_by_itself`` when it is needed ends when it is idle, unless the settings say otherwise; so does
    one whose socket a service manager holds.

    Raises:
        KtunedError: it cannot start, or cannot go on; says what mends it.
    """
    os.umask(state_directory.PRIVATE_UMASK)
    handover = Handover.take(os.environ, os.getpid())
    try:
        anyio.run(serve, settings, handover, starts_by_itself, backend_options={"use_uvloop": _HAS_UVLOOP})
    except* KtunedError as group:
        raise _first(group) from None
    return 0


async def serve(settings: Settings, handover: Handover, starts_by_itself: bool) -> None:
    """Serve until SIGTERM, SIGINT or a ``shutdown`` request, or until it has been idle for long enough."""
    ask_for_short_slices()
    descriptor = handover.descriptor
    socket_of = bind_socket(settings.socket) if descriptor is None else inherit_socket(descriptor)
    idle_exit_s = AUTO_IDLE_EXIT_S if starts_by_itself or descriptor is not None else 0.0
    with (
        Notifier(handover.notify_path) as notifier,
        state_directory.held(settings.state, settings.cache),
        socket_of as listening,
    ):
        settings = msgspec.structs.replace(settings, socket=listening.getsockname())
        async with Store.open(settings.state / _STORE_NAME) as store:
            fleet = Fleet(
                scratch=settings.cache / "tmp",
                cache=settings.cache,
                base_env=dict(os.environ),
                compile_slots=settings.compile_slots,
                compile_cores=settings.compile_cores,
                spawn_s=settings.deadlines["spawn"],
                memory_limits=(settings.bench_bytes, settings.compile_bytes),
                keeps_spares=settings.keeps_spares,
                adopts=True,
            )
            async with fleet.running():
                daemon = Daemon(
                    settings, store, fleet, notifier, watchdog_s=handover.watchdog_s, idle_exit_s=idle_exit_s
                )
                await daemon.run(listening, is_bound=descriptor is None)


class Daemon:
    """All parts of a running daemon; ``methods`` are the protocol's, by their names on the wire."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        fleet: Fleet,
        notifier: Notifier,
        *,
        watchdog_s: float,
        idle_exit_s: float,
    ) -> None:
        self._settings = settings
        self._store = store
        self._fleet = fleet
        self._notifier = notifier
        self._default_idle_exit_s = idle_exit_s
        self._stopping = anyio.Event()
        self._config_notice = ""
        self._reloading = anyio.Lock()
        # One map for all who watch deadlines, so that a reload reaches them.
        self._deadlines = dict(settings.deadlines)
        self.events = Events()
        self._artifacts = Artifacts(settings.cache / "artifacts", settings.artifacts_bytes)
        configured = {root.path for root in settings.roots}
        roots = [*settings.roots, *(root for root in store.roots() if root.path not in configured)]
        self._catalog = Catalog(roots, store.kernels())
        self._machine = Machine(fleet, store, deadlines=self._deadlines, arch=settings.arch, chosen=settings.devices)
        self._probing = Probing(self._catalog, self._machine, str(settings.state))
        self._trust = Trust(settings.trusted_directories)
        self._survey = Survey(self._catalog, fleet, store, self._deadlines, self._trust)
        self._manners = Manners(settings.policy)
        observer = Observer(
            fleet=fleet,
            machine=self._machine,
            environments=self._probing.environments,
            deadlines=self._deadlines,
        )
        self._preparing = Preparing(
            JobSettings(settings.judges_contention, settings.slots_are_given),
            catalog=self._catalog,
            machine=self._machine,
            fleet=fleet,
            trust=self._trust,
            deadlines=self._deadlines,
            captured=lambda kernel, problem: self._captures.path(kernel, problem),  # noqa: PLW0108 - made later
        )
        self._jobs = Jobs(
            fleet=fleet,
            store=store,
            artifacts=self._artifacts,
            prepare=self._preparing.prepare,
            publish=self._publish,
            manners=self._manners,
            read=observer.read,
        )
        self._reverifying = Reverifying(catalog=self._catalog, machine=self._machine, store=store, jobs=self._jobs)
        self._generations = Generations(os.path.dirname(settings.socket), epoch=self.events.epoch)
        self._lookups = Lookups(
            catalog=self._catalog,
            machine=self._machine,
            fleet=fleet,
            store=store,
            artifacts=self._artifacts,
            jobs=self._jobs,
            deadlines=self._deadlines,
            generations=self._generations,
        )
        self._housekeeping = Housekeeping(store, self._artifacts, on_collected=self._lookups.changed_all)
        self._watcher = Watcher(
            self._catalog,
            self._survey,
            lambda changes, saved: self._intake.react(changes, saved=saved),
            self._lookups.looked_up,
        )
        self._intake = Intake(
            catalog=self._catalog,
            survey=self._survey,
            machine=self._machine,
            store=store,
            jobs=self._jobs,
            publish=self._publish,
            roots_changed=self._watcher.roots_changed,
        )
        methods = Methods(
            catalog=self._catalog,
            machine=self._machine,
            intake=self._intake,
            lookups=self._lookups,
            jobs=self._jobs,
            store=store,
            events=self.events,
            explain=Why(self._catalog, self._machine, store).explain,
            status=lambda: self._overview.status(self._life.idle_exit_s, self._life.rates()),
            probe=self._probing.reports,
            stop=self.stop,
        )
        captures = settings.state / "captures"
        self._captures = Captures(store, captures, self._catalog, self._jobs, self._lookups.changed)
        self._machine.captured = self._captures.digest
        sharing = Sharing(
            catalog=self._catalog,
            machine=self._machine,
            store=store,
            artifacts=self._artifacts,
            publish=self._publish,
        )
        control = Control(catalog=self._catalog, machine=self._machine, jobs=self._jobs)
        self.methods = {
            **methods.table(),
            **control.table(),
            **sharing.table(),
            **self._captures.table(),
            **self._housekeeping.table(),
            "reload": Method(NoParams, self._answer_reload),
        }
        self._server = Server(self.methods, shortcuts=self._lookups.shortcuts)
        self._overview = Overview(
            socket=settings.socket,
            home=str(settings.state),
            policy=settings.policy,
            catalog=self._catalog,
            machine=self._machine,
            fleet=fleet,
            store=store,
            artifacts=self._artifacts,
            jobs=self._jobs,
            lookups=self._lookups,
            events=self.events,
            server=self._server,
            notices=self._notices,
        )
        self._life = Life(
            notifier,
            watchdog_s=watchdog_s,
            idle_exit_s=self._idle_exit_s(),
            busy=self._overview.busy,
            counters=self._overview.counters,
            describe=self._overview.line,
            stop=self.stop,
        )

    async def run(self, listening: Any, *, is_bound: bool) -> None:
        """Run every part until told to stop, then take them down; ``is_bound`` if the socket's file is ours to keep."""
        self._artifacts.clean_staging()
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._await_signals)
            await tasks.start(self._server.serve, listening)
            self._notifier.ready(self._overview.line())
            _log.info("ready", socket=self._settings.socket, pid=os.getpid())
            for part in (
                self._lookups.run,
                self._watcher.run,
                self._intake.run,
                self._housekeeping.run,
                self._probing.run,
                self._take_up,
                self._life.run,
                *([functools.partial(keep_reachable, self._settings.socket, self._server.listen)] if is_bound else ()),
            ):
                tasks.start_soon(part)
            await self._stopping.wait()
            self._notifier.stopping()
            _log.info("stopping")
            await self._server.drain()
            tasks.cancel_scope.cancel()

    def stop(self) -> None:
        """Have :meth:`run` take the parts down; the next daemon takes up what is unfinished."""
        self._stopping.set()

    async def _await_signals(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            task_status.started()
            async for number in signals:
                if number == signal.SIGHUP:
                    with suppress(KtunedError):
                        await self._reload()
                else:
                    self.stop()

    async def _answer_reload(self, nothing: NoParams, connection: Connection) -> dict[str, Any]:
        changed = await self._reload()
        return {"path": str(self._settings.config_path), "changed": changed}

    async def _reload(self) -> list[str]:
        """Follow ``config.toml`` as it is now, and return what it says otherwise.

        Raises:
            SettingsError: it cannot be followed; nothing has changed.
        """
        async with self._reloading:
            self._notifier.reloading()
            try:
                settings = self._settings.again()
                changed = settings.changed_since(self._settings)
                await self._follow(settings)
            except KtunedError as error:
                self._config_notice = f"config.toml was not taken in: {error.message}"
                _log.error("config_wrong", reason=error.message, hint=error.hint)
                raise
            finally:
                self._notifier.ready(self._overview.line())
        return changed

    async def _follow(self, settings: Settings) -> None:
        self._config_notice = ""
        # The socket stays where it is, whoever made it.
        self._settings = msgspec.structs.replace(settings, socket=self._settings.socket)
        self._overview.policy = settings.policy
        self._preparing.settings = JobSettings(settings.judges_contention, settings.slots_are_given)
        self._life.idle_exit_s = self._idle_exit_s()
        self._manners.policy = settings.policy
        self._jobs.review()
        # With more time or memory it may work.
        self._jobs.forget_failures()
        self._deadlines.update(settings.deadlines)
        self._trust.allow(settings.trusted_directories)
        self._fleet.resize(settings.compile_slots, (settings.bench_bytes, settings.compile_bytes))
        self._fleet.spawn_s, self._fleet.keeps_spares = settings.deadlines["spawn"], settings.keeps_spares
        self._artifacts.cap_bytes = settings.artifacts_bytes
        self._machine.arch, self._machine.chosen = settings.arch, settings.devices
        self._housekeeping.due()
        known = self._catalog.roots
        for root in settings.roots:
            self._catalog.add_root(root)
        kept = {root.path for root in (*settings.roots, *self._store.roots())}
        await self._intake.drop_roots([root for root in known if root.path not in kept])
        self._watcher.roots_changed()
        _log.info("config_reloaded", path=str(settings.config_path))
        paths = {root.path for root in known}
        await self._intake.look_around([root for root in settings.roots if root not in known and root.path in paths])

    def _idle_exit_s(self) -> float:
        chosen = self._settings.idle_exit_s
        return self._default_idle_exit_s if chosen is None else chosen

    def _notices(self) -> list[str]:
        return [
            *filter(None, (self._store.notice, self._store.lost, self._store.damaged, self._watcher.notice)),
            *filter(None, (self._intake.notice, self._config_notice)),
            *([f"tuning is paused: {self._jobs.stalled}"] if self._jobs.stalled else []),
            *self._fleet.notices,
            *self._machine.notices,
        ]

    async def _take_up(self) -> None:
        """Go on with the work that was left, once it is known what the machine is now."""
        if self._catalog.roots:
            await self._probing.reports()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._jobs.run)
            tasks.start_soon(self._catch_up)

    async def _catch_up(self) -> None:
        """Have renewed what changed while no daemon was there: sources first, then drivers and toolchains."""
        await self._watcher.caught_up.wait()
        await self._reverifying.run()

    def _publish(self, type: str, **fields: Any) -> None:  # noqa: A002 - the protocol's word
        kernel = fields.get("kernel")
        if kernel is not None and type in ("winner", "stale", "job_done"):
            self._lookups.changed(kernel)
        if type == "trial_done" and fields.get("trial") is not None:
            self._overview.trials += 1
        if type == "job_done":
            self._housekeeping.due()
        if type == "lane" and fields["state"] == "sick":
            self._probing.device_failed()
        if type == "reloaded":
            # A name that is new may make another one ambiguous, or known.
            self._lookups.changed_all()
        self.events.publish(type, **fields)


def _first(group: BaseExceptionGroup[KtunedError]) -> KtunedError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, KtunedError)
    return error
