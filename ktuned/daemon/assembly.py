"""The composition root: builds every part of a daemon once, each from the parts before it.

Every part is complete after its construction, and nothing runs before all are built. A part that calls a later part
gets a function defined in this module, which is first called when the daemon runs. Parts publish events to the router,
which is built last, and delivers them to the parts that act on events.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ktuned.adoption import Adoptions, KeyTunings
from ktuned.answers import KernelStates, Knowledge
from ktuned.backends import cpu
from ktuned.catalog import (
    Admission,
    Catalog,
    Changes,
    FileInspector,
    ForeignNames,
    Traces,
    make_root_environment,
    remake_roots,
)
from ktuned.daemon.artifact_cleanup import ArtifactCleanup
from ktuned.daemon.event_router import EventRouter
from ktuned.daemon.settings import Settings
from ktuned.devices import Environments, Machine, Probes, SurveyIntervals, ToolchainSurvey
from ktuned.fleet import (
    BENCH_MODULES,
    ClusterExecutor,
    Executor,
    Executors,
    Fleet,
    LocalExecutor,
    StartProcess,
    choose_worker_variables,
)
from ktuned.ipc import Trust
from ktuned.lookup import FollowUps, Lookups, WinnerTable
from ktuned.model import FrozenStruct, KernelInfo
from ktuned.protocol import Event, KernelStale, Root
from ktuned.scheduling import (
    HostObserver,
    IdlePolicy,
    Intake,
    Intervals,
    JobMachine,
    JobRequests,
    Jobs,
    Preparation,
    Reading,
    Renewal,
    Repetition,
)
from ktuned.serve import Events, JudgeMethods, TeamStore, WinnerExchange
from ktuned.store import Artifacts, Store
from ktuned.watch import Watcher


class Replacements(FrozenStruct, kw_only=True):
    """Parts and values that a test or a benchmark replaces; ``None`` keeps the daemon's own.

    Attributes:
        adopts: Whether the executor kills every child of the process that it did not start.
        base_env: The workers' environment.
        cores: The number of cores that timing and compiles share.
        events: The stream of events.
        executor: Wraps the daemon's executor of this machine.
        intervals: The jobs' intervals.
        preparation_type: The class that prepares jobs.
        read: Returns readings of the machine.
        spare_modules: The modules that spare workers import.
        start_process: Starts a worker's process.
        toolchain_intervals: Intervals of the survey of toolchains.
    """

    adopts: bool = True
    base_env: Mapping[str, str] | None = None
    cores: int | None = None
    events: Events | None = None
    executor: Callable[[Executor], Executor] | None = None
    intervals: Intervals | None = None
    preparation_type: type[Preparation] = Preparation
    read: Callable[[], Awaitable[Reading]] | None = None
    spare_modules: Sequence[str] = BENCH_MODULES
    start_process: StartProcess = subprocess.Popen
    toolchain_intervals: SurveyIntervals | None = None


class Parts:
    """All parts of a daemon that do its work; :class:`~ktuned.daemon.daemon.Daemon` adds those that answer clients.

    Args:
        settings: The settings from ``config.toml``, the environment and the arguments.
        store: The open store.
        replacements: Parts and values that a test or a benchmark replaces.
    """

    def __init__(self, settings: Settings, store: Store, replacements: Replacements | None = None) -> None:
        self.store = store
        replaced = replacements or Replacements()
        self.settings = settings

        # Parts that run workers: policy, executors, the fleet.
        job_machine = self.job_machine = JobMachine(
            pauses=store.load_pauses(), idle_policy=IdlePolicy(settings.file.policy)
        )
        trust = self.trust = Trust(settings.trusted_directories)
        base_env = choose_worker_variables(os.environ) if replaced.base_env is None else replaced.base_env
        executor = self.executor = LocalExecutor(
            scratch=settings.scratch,
            cache=settings.cache,
            artifacts=settings.artifacts,
            base_env=base_env,
            compile_cores=settings.compile_cores,
            ends_orphans=replaced.adopts,
            trust=trust,
            start_process=replaced.start_process,
        )

        # These are called only when the daemon runs; the parts that they use are built below.
        def publish_event(event: Event) -> None:
            router.publish_event(event)

        def on_host_up(host: str, cores: int) -> None:
            fleet.add_host(host, cores)
            probes.add_host(host)

        def on_host_lost(host: str) -> None:
            environments.remove_host(host)

        def on_host_changed(host: str, reason: str) -> None:
            environments.doubt_host(host, reason)

        cluster = self.cluster = ClusterExecutor(
            settings.file.cluster,
            has_memory_limits=settings.has_memory_limits,
            artifacts=settings.artifacts,
            state=settings.state,
            programs=executor.programs,
            on_up=on_host_up,
            on_lost=on_host_lost,
            on_changed=on_host_changed,
        )
        fleet = self.fleet = Fleet(
            Executors(executor if replaced.executor is None else replaced.executor(executor), cluster),
            compile_slots=settings.file.compile_slots,
            deadlines=dict(settings.deadlines),
            memory_limits=(settings.bench_bytes, settings.compile_bytes),
            keeps_spares=settings.file.spares,
            rank_of=job_machine.find_slot_rank,
            cores=replaced.cores or cpu.cores(),
            spare_modules=replaced.spare_modules,
        )

        # Parts that hold knowledge: kernels, devices, artifacts.
        artifacts = self.artifacts = Artifacts(settings.artifacts, settings.artifacts_bytes)
        catalog = self.catalog = Catalog(
            list_watched_roots(settings, store),
            store.load_kernels(),
            store.learned.list_names(),
        )
        admission = self.admission = Admission(catalog, fleet, store)
        environments = Environments(
            fleet,
            store,
            wait_for_hosts=cluster.await_hosts,
            base_env=base_env,
            publish=publish_event,
        )
        machine = self.machine = Machine(
            environments,
            arch=settings.file.arch,
            chosen=settings.file.devices,
        )

        known = self.known = Knowledge(
            admission, artifacts, catalog, machine, store, list_failed_jobs=job_machine.failures.list_messages
        )
        states = self.states = KernelStates(known)
        probes = self.probes = Probes(catalog, environments, str(settings.state))

        async def probe_root(root: Root) -> None:
            await environments.probe_environment(make_root_environment(root))

        inspector = self.inspector = FileInspector(catalog, fleet, store, trust, probe=probe_root)

        traces = self.traces = Traces(catalog, store, publish=publish_event)

        async def pass_changes_on(changes: Changes, saved: bool) -> None:
            await renewal.react_to_changes(changes, saved)

        async def inspect_kernel(name: str) -> None:
            kernel = catalog.resolve_kernel(name)
            root = catalog.find_root(kernel.file)
            if root is not None:
                await renewal.react_to_changes(await inspector.inspect_files(root, [kernel.file]), saved=False)

        repetition = self.repetition = Repetition(
            known,
            fleet=fleet,
            traces=traces,
            list_used_kernels=lambda: {*lookups.publication.list_used_kernels()},
            list_live_kernels=lambda: {job.kernel for job in jobs.list_live_jobs()},
            on_changes=pass_changes_on,
            publish=publish_event,
        )

        # Winners of other daemons.
        foreign_names = self.foreign_names = ForeignNames(catalog, inspector, traces)
        exchange = self.exchange = WinnerExchange(
            known=known,
            foreign_names=foreign_names,
            repetition=repetition,
            inspect=inspect_kernel,
            publish=publish_event,
        )
        team_store = self.team_store = TeamStore(
            settings.file.share,
            known,
            exchange=exchange,
            directory=settings.state,
            programs=executor.programs,
        )

        # Parts that tune.
        observer = HostObserver(fleet=fleet, machine=machine, environments=probes.list_environments)
        preparation = self.preparation = replaced.preparation_type(
            known,
            fleet=fleet,
            judges_contention=settings.file.contention,
            traces=traces,
            find_state=states.find_state,
            await_shared=team_store.await_first_look,
        )

        jobs = self.jobs = Jobs(
            job_machine,
            fleet=fleet,
            store=store,
            artifacts=artifacts,
            prepare=preparation.prepare_brief,
            inspect=inspect_kernel,
            publish=publish_event,
            read=replaced.read or observer.read_host_use,
            intervals=replaced.intervals or Intervals(),
        )
        catalog.when_kernels_change(jobs.mark_jobs_outdated)
        probes.when_hosts_come(jobs.add_new_devices)
        requests = self.requests = JobRequests(known, jobs=jobs)
        renewal = self.renewal = Renewal(
            known,
            jobs=jobs,
            requests=requests,
            publish=publish_event,
        )

        intake = self.intake = Intake(
            known,
            inspector=inspector,
            foreign_names=foreign_names,
            requests=requests,
            renewal=renewal,
            list_configured=lambda: {root.path for root in self.settings.roots},
        )

        judge = self.judge = JudgeMethods(known, intake=intake, jobs=jobs)

        # Parts that answer lookups and watch files.
        follow_ups = self.follow_ups = FollowUps(admission, jobs, fleet.gate, publish_event)
        events = self.events = replaced.events or Events()
        table = WinnerTable(os.path.dirname(settings.socket), epoch=events.epoch)
        lookups = self.lookups = Lookups(table, catalog, states, follow_ups, jobs)
        artifact_cleanup = self.artifact_cleanup = ArtifactCleanup(
            store, artifacts, lookups.publication.list_used_kernels, publish_event
        )

        self.adoptions = Adoptions(
            settings.state,
            known,
            intake=intake,
            keys=KeyTunings(known, requests=requests, jobs=jobs, publish=publish_event),
            lookups=lookups,
            jobs=jobs,
        )

        def list_kernels_in_use() -> set[str]:
            return {*lookups.publication.list_used_kernels(), *(job.kernel for job in jobs.list_live_jobs())}

        async def on_toolchain_probed(kernels: Sequence[KernelInfo], outdated: Sequence[KernelInfo]) -> None:
            for kernel in outdated:
                if store.list_winners(kernel.name):
                    publish_event(KernelStale(kernel=kernel.name, digest=kernel.digest))
            await renewal.reverify_probed(kernels, outdated)

        self.toolchain_survey = ToolchainSurvey(
            catalog,
            environments,
            list_used_kernels=list_kernels_in_use,
            on_probe=on_toolchain_probed,
            intervals=replaced.toolchain_intervals,
        )

        self.watcher = Watcher(
            catalog,
            inspector,
            repetition.react_to_changes,
            lookups.publication.list_used_kernels,
        )

        # Answers first: whoever acts on an event may need them.
        router = self.router = EventRouter(events, states, lookups, artifact_cleanup, probes, team_store, judge)


def list_watched_roots(settings: Settings, store: Store) -> list[Root]:
    """Return the roots to watch: those in ``config.toml``, and those that requests have added."""
    configured = {root.path for root in settings.roots}
    roots = [*settings.roots, *(root for root in store.load_roots() if root.path not in configured)]
    return remake_roots(roots, store.projects.load_names(), Trust(settings.trusted_directories))
