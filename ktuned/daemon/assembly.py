"""The composition root: every part of a daemon, built once, each from those before it.

No part is completed after its construction. What would be a cycle is broken by the order: those that act on events
(caches, clean-up, probes) come before the router, those that publish come after it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from ktuned.adoption import Adoptions
from ktuned.backends import cpu
from ktuned.catalog import (
    Admission,
    Buckets,
    CapturedInputs,
    Catalog,
    Changes,
    FileInspector,
    ForeignNames,
    Traces,
    environment_of,
)
from ktuned.daemon.artifact_cleanup import ArtifactCleanup
from ktuned.daemon.config import Settings
from ktuned.daemon.event_router import EventRouter, routes
from ktuned.daemon.last_end import END_NAME
from ktuned.daemon.lifetime import Lifetime
from ktuned.daemon.notices import Notices
from ktuned.daemon.reload import CurrentSettings, Reload, watched_roots
from ktuned.daemon.systemd import Notifier
from ktuned.devices import Environments, Machine, Probes, SurveyIntervals, ToolchainSurvey
from ktuned.fleet import (
    BENCH_MODULES,
    Applications,
    Bridge,
    Executor,
    Executors,
    Fleet,
    HostEvents,
    LocalExecutor,
    StartProcess,
    Surroundings,
)
from ktuned.ipc import Trust
from ktuned.lookup import AnswerCaches, Certainty, Lookups, ServedWinners, WinnerTable
from ktuned.model import KernelInfo, KernelName, Observation, Root
from ktuned.scheduling import (
    Dispatcher,
    DueKernels,
    HostObserver,
    IdlePolicy,
    Intake,
    Intervals,
    JobMachine,
    JobRequests,
    Jobs,
    KeptPortfolios,
    Portfolios,
    Preparation,
    Reading,
    Renewal,
    Reverification,
    RootExpiry,
    RootMoves,
    SharedWinners,
    ShareExchange,
)
from ktuned.serve import (
    Activity,
    CallMethods,
    Captures,
    Checks,
    Control,
    DevicePeaks,
    Events,
    Explainer,
    Method,
    Methods,
    PortfolioMethods,
    RootMethods,
    Server,
    ShareMethods,
    StatusReport,
    Subscriptions,
    Traffic,
    TrialCount,
    WinnerExchange,
)
from ktuned.store import Artifacts, Store
from ktuned.watch import Watcher


class Replacements(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that a test or a benchmark brings itself; ``None`` leaves the daemon's own.

    ``executor`` returns the one that is used, over the daemon's own. ``read`` gives readings of the machine,
    ``base_env`` is the workers' environment; a fleet that ``adopts`` takes every child of the process for its own.
    Spare workers import ``spare_modules``; timing and compiles share ``cores``. ``start_process`` starts a worker's
    process.
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


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """All parts of a daemon; ``methods`` are the protocol's, by their names on the wire.

    Setting ``stopping`` ends the daemon; the next one takes up what is unfinished.
    """

    activity: Activity
    admission: Admission
    adoptions: Adoptions
    artifact_cleanup: ArtifactCleanup
    artifacts: Artifacts
    bridge: Bridge
    buckets: Buckets
    caches: AnswerCaches
    captured_inputs: CapturedInputs
    catalog: Catalog
    executors: Executors
    current: CurrentSettings
    events: Events
    fleet: Fleet
    intake: Intake
    jobs: Jobs
    lifetime: Lifetime
    lookups: Lookups
    machine: Machine
    methods: Mapping[str, Method[Any]]
    notifier: Notifier
    portfolios: Portfolios
    preparation: Preparation
    probes: Probes
    reload: Reload
    renewal: Renewal
    requests: JobRequests
    reverification: Reverification
    root_expiry: RootExpiry
    router: EventRouter
    server: Server
    share_exchange: ShareExchange
    shared_winners: SharedWinners
    stopping: anyio.Event
    store: Store
    traces: Traces
    toolchain_survey: ToolchainSurvey
    inspector: FileInspector
    watcher: Watcher


def assemble(
    settings: Settings,
    store: Store,
    notifier: Notifier,
    *,
    watchdog_s: float = 0.0,
    idle_exit_s: float = 0.0,
    last_end: str = "",
    replacements: Replacements | None = None,
) -> Parts:
    """Build a daemon's parts over a store; nothing runs yet.

    ``watchdog_s`` is how often the service manager expects a sign of life (0 for never), ``idle_exit_s`` after how much
    inactivity the daemon ends where the settings leave that open; ``last_end`` is how the one before ended, if not in
    order.
    """
    replaced = replacements or Replacements()
    current = CurrentSettings(settings, idle_exit_s)
    deadlines = current.deadlines
    stopping = anyio.Event()

    # Who runs, and where.
    idle_policy = IdlePolicy(settings.policy)
    job_machine = JobMachine(pauses=store.load_pauses(), refuse=idle_policy.refuse_job)
    trust = Trust(settings.trusted_directories)
    base_env = dict(os.environ) if replaced.base_env is None else replaced.base_env
    kept: set[int] = set()
    executor = LocalExecutor(
        scratch=settings.scratch,
        cache=settings.cache,
        artifacts=settings.artifacts,
        captures=settings.captures,
        base_env=base_env,
        compile_cores=settings.compile_cores,
        adopts=replaced.adopts,
        trust=trust,
        kept=kept,
        last_end=settings.state / END_NAME,
        start_process=replaced.start_process,
    )
    bridge = Bridge(python=sys.executable, directory=settings.state, base_env=base_env, mark=executor.mark, kept=kept)
    surroundings = Surroundings(settings.artifacts, settings.captures, settings.state, base_env, executor.mark, kept)

    # Called when the daemon runs: what they act on is made below.
    def host_up(host: str, cores: int) -> None:
        fleet.add_host(host, cores)
        probes.host_up(host)

    def host_lost(host: str) -> None:
        environments.host_lost(host)

    def host_changed(host: str, reason: str) -> None:
        environments.host_changed(host, reason)

    executors = Executors(
        executor if replaced.executor is None else replaced.executor(executor),
        surroundings,
        HostEvents(host_up, host_lost, host_changed),
    )
    executors.follow(settings.executors, limits_are_given=settings.limits_are_given)
    fleet = Fleet(
        executors,
        compile_slots=settings.compile_slots,
        spawn_s=settings.deadlines["spawn"],
        memory_limits=(settings.bench_bytes, settings.compile_bytes),
        keeps_spares=settings.keeps_spares,
        rank_of=job_machine.slot_rank,
        cores=replaced.cores or cpu.cores(),
        spare_modules=replaced.spare_modules,
    )

    # What is known: kernels, inputs, devices, artifacts.
    artifacts = Artifacts(settings.artifacts, settings.artifacts_bytes)
    catalog = Catalog(
        watched_roots(settings, store), store.load_kernels(), store.projects.load_aliases(), store.learned.list_names()
    )
    admission = Admission(catalog, fleet, store, deadlines)
    buckets = Buckets(catalog, fleet, store, deadlines)
    captured_inputs = CapturedInputs(store, settings.captures)
    environments = Environments(
        fleet, store, deadlines=deadlines, settled=executors.settled, base_env=replaced.base_env
    )
    machine = Machine(
        environments, arch=settings.arch, chosen=settings.devices, captured=captured_inputs.digest_of_inputs
    )

    # What acts on events, and the router.
    events = replaced.events or Events()
    caches = AnswerCaches(WinnerTable(os.path.dirname(settings.socket), epoch=events.epoch))
    artifact_cleanup = ArtifactCleanup(store, artifacts, on_collected=caches.forget_all_answers)
    probes = Probes(catalog, environments, str(settings.state), changed=caches.forget_all_answers)

    to_share = DueKernels()

    trial_count = TrialCount()
    router = EventRouter(
        events,
        routes(
            artifact_cleanup=artifact_cleanup,
            caches=caches,
            probes=probes,
            to_share=to_share,
            trial_count=trial_count,
        ),
    )

    async def probe(root: Root) -> None:
        await environments.probe(environment_of(root))

    def project_renamed() -> None:
        captured_inputs.reload_captures()
        caches.forget_all_answers()

    inspector = FileInspector(catalog, fleet, store, deadlines, trust, probe=probe, renamed=project_renamed)

    def names_learned(kernel: KernelName, names: Sequence[Observation]) -> None:
        caches.rename_contexts(kernel, store.list_winners(kernel), names)

    traces = Traces(catalog, store, renamed=names_learned, publish=router.publish)

    # What others share.
    foreign_names = ForeignNames(catalog, inspector, traces, machine.digest)
    shared_winners = SharedWinners(settings.share, bridge, catalog=catalog, foreign_names=foreign_names)

    # What tunes.
    served = ServedWinners(catalog, store, machine, admission, caches)
    observer = HostObserver(fleet=fleet, machine=machine, environments=probes.environments, deadlines=deadlines)
    kept_portfolios = KeptPortfolios(store)
    preparation = replaced.preparation_type(
        current.job_settings,
        admission=admission,
        catalog=catalog,
        machine=machine,
        fleet=fleet,
        trust=trust,
        traces=traces,
        deadlines=deadlines,
        captured=captured_inputs.digest_for,
        anchor=store.anchors.find_anchor,
        served=served.list_winners,
        portfolios=kept_portfolios,
        shared=shared_winners,
    )
    applications = Applications(is_used=observer.is_used)

    async def inspect_kernel(name: str) -> None:
        kernel = catalog.resolve_kernel(name)
        root = catalog.root_of(kernel.file)
        if root is not None:
            found = await inspector.inspect_files(root, [kernel.file])
            await renewal.react_to_changes(found.changes, saved=False)

    dispatcher = Dispatcher(
        job_machine,
        fleet=fleet,
        store=store,
        artifacts=artifacts,
        prepare=preparation.prepare_brief,
        inspect=inspect_kernel,
        publish=router.publish,
        idle_policy=idle_policy,
        read=replaced.read or observer.read_host_use,
        intervals=replaced.intervals or Intervals(),
        applications=applications,
    )
    jobs = Jobs(job_machine, dispatcher, store=store, publish=router.publish)
    catalog.when_kernels_change(jobs.mark_outdated)
    probes.when_hosts_come(jobs.join_devices)
    reverification = Reverification(catalog=catalog, machine=machine, store=store, jobs=jobs)
    requests = JobRequests(
        admission=admission, buckets=buckets, catalog=catalog, machine=machine, store=store, jobs=jobs
    )
    renewal = Renewal(
        admission=admission,
        buckets=buckets,
        catalog=catalog,
        inspector=inspector,
        machine=machine,
        store=store,
        jobs=jobs,
        requests=requests,
        publish=router.publish,
    )

    def configured_roots() -> set[str]:
        return {root.path for root in current.settings.roots}

    moves = RootMoves(catalog=catalog, store=store, configured=configured_roots, drop=renewal.drop_roots)
    intake = Intake(
        catalog=catalog,
        inspector=inspector,
        machine=machine,
        store=store,
        requests=requests,
        renewal=renewal,
        moves=moves,
    )
    root_expiry = RootExpiry(catalog=catalog, store=store, configured=configured_roots, drop=renewal.drop_roots)

    portfolios = Portfolios(
        admission=admission,
        catalog=catalog,
        fleet=fleet,
        jobs=jobs,
        kept=kept_portfolios,
        machine=machine,
        requests=requests,
        store=store,
        deadlines=deadlines,
        changed=caches.forget_answers,
    )

    # What answers and watches.
    lookups = Lookups(
        catalog=catalog,
        admission=admission,
        buckets=buckets,
        machine=machine,
        store=store,
        artifacts=artifacts,
        jobs=jobs,
        portfolios=portfolios,
        caches=caches,
        served=served,
        certainty=Certainty(catalog, machine),
        gate=fleet.gate,
    )

    adoptions = Adoptions(
        settings.state,
        catalog=catalog,
        intake=intake,
        requests=requests,
        lookups=lookups,
        jobs=jobs,
        front_ends=fleet.front_ends,
        machine=machine,
        store=store,
        deadlines=deadlines,
    )

    def in_use() -> set[str]:
        return {*lookups.looked_up(), *(job.kernel for job in jobs.list_live_jobs())}

    share_exchange = ShareExchange(
        shared_winners, to_share, admission=admission, catalog=catalog, machine=machine, store=store, jobs=jobs
    )

    async def toolchain_probed(kernels: Sequence[KernelInfo], outdated: Sequence[KernelInfo]) -> None:
        caches.forget_all_answers()
        for kernel in outdated:
            if store.list_winners(kernel.name):
                router.publish("stale", kernel=kernel.name, digest=kernel.digest)
        await reverification.reverify_probed(kernels, outdated)

    toolchain_survey = ToolchainSurvey(
        catalog,
        environments,
        in_use=in_use,
        doubted=caches.forget_all_answers,
        probed=toolchain_probed,
        intervals=replaced.toolchain_intervals,
    )

    async def take_in(changes: Changes, saved: bool) -> None:
        await renewal.react_to_changes(changes, saved=saved)

    watcher = Watcher(catalog, inspector, take_in, lookups.looked_up, doubts_changed=caches.forget_all_answers)

    # What reports, and what the server calls.
    traffic = Traffic(caches.shortcuts)
    activity = Activity(catalog=catalog, jobs=jobs, lookups=lookups, traffic=traffic, trial_count=trial_count)
    lifetime = Lifetime(
        notifier,
        watchdog_s=watchdog_s,
        idle_exit_s=current.idle_exit_s,
        busy=activity.count_busy,
        counters=activity.read_counters,
        describe=activity.describe_activity,
        stop=stopping.set,
    )
    notices = Notices(
        last_end=last_end,
        adoptions=adoptions,
        bridge=bridge,
        executors=executors,
        current=current,
        fleet=fleet,
        jobs=jobs,
        machine=machine,
        renewal=renewal,
        root_expiry=root_expiry,
        root_moves=moves,
        store=store,
        shared=shared_winners,
        watcher=watcher,
    )
    status = StatusReport(
        socket=settings.socket,
        home=str(settings.state),
        activity=activity,
        artifacts=artifacts,
        catalog=catalog,
        executors=executors,
        events=events,
        fleet=fleet,
        idle_policy=idle_policy,
        jobs=jobs,
        lookups=lookups,
        machine=machine,
        notices=notices.lines,
        pace=lifetime,
        store=store,
        traffic=traffic,
    )
    reload = Reload(
        current,
        notifier,
        artifact_cleanup=artifact_cleanup,
        artifacts=artifacts,
        catalog=catalog,
        executors=executors,
        describe=activity.describe_activity,
        fleet=fleet,
        idle_policy=idle_policy,
        jobs=jobs,
        lifetime=lifetime,
        machine=machine,
        preparation=preparation,
        renewal=renewal,
        store=store,
        share_exchange=share_exchange,
        inspector=inspector,
        trust=trust,
    )
    methods = Methods(
        catalog=catalog,
        machine=machine,
        intake=intake,
        lookups=lookups,
        jobs=jobs,
        store=store,
        events=events,
        explain=Explainer(catalog, admission, machine, store, lookups.find_doubt).explain_winners,
        status=status.collect_figures,
        probe=probes.reports,
        stop=stopping.set,
        applications=applications,
    )
    exchange = WinnerExchange(
        admission=admission,
        catalog=catalog,
        foreign_names=foreign_names,
        machine=machine,
        store=store,
        artifacts=artifacts,
        served=lookups.served,
        publish=router.publish,
    )
    subscriptions = Subscriptions(events, jobs)
    table = {
        **methods.list_methods(),
        **subscriptions.list_methods(),
        **Control(catalog=catalog, machine=machine, jobs=jobs).list_methods(),
        **exchange.list_methods(),
        **Checks(
            catalog=catalog,
            store=store,
            fleet=fleet,
            artifacts=artifacts,
            prepare=preparation.prepare_brief,
            lane=dispatcher.get_lane,
            scratch=executor.scratch / "sanitizers",
        ).list_methods(),
        **DevicePeaks(
            machine=machine, store=store, fleet=fleet, environments=probes.asked, lane=dispatcher.get_lane
        ).list_methods(),
        **CallMethods(adoptions, applications).list_methods(),
        **Captures(captured_inputs, catalog, jobs, lookups.results_changed).list_methods(),
        **RootMethods(
            catalog=catalog, intake=intake, renewal=renewal, store=store, configured=configured_roots
        ).list_methods(),
        **ShareMethods(
            catalog=catalog, events=events, exchange=share_exchange, jobs=jobs, shared=shared_winners
        ).list_methods(),
        **PortfolioMethods(catalog, portfolios).list_methods(),
        **artifact_cleanup.table(),
        **reload.table(),
    }
    return Parts(
        activity=activity,
        admission=admission,
        adoptions=adoptions,
        bridge=bridge,
        buckets=buckets,
        artifact_cleanup=artifact_cleanup,
        artifacts=artifacts,
        caches=caches,
        captured_inputs=captured_inputs,
        catalog=catalog,
        executors=executors,
        current=current,
        events=events,
        fleet=fleet,
        intake=intake,
        jobs=jobs,
        lifetime=lifetime,
        lookups=lookups,
        machine=machine,
        methods=table,
        notifier=notifier,
        portfolios=portfolios,
        preparation=preparation,
        probes=probes,
        reload=reload,
        renewal=renewal,
        requests=requests,
        reverification=reverification,
        root_expiry=root_expiry,
        router=router,
        server=Server(table, shortcuts=caches.shortcuts, traffic=traffic, subscribers=subscriptions),
        share_exchange=share_exchange,
        shared_winners=shared_winners,
        stopping=stopping,
        store=store,
        traces=traces,
        toolchain_survey=toolchain_survey,
        inspector=inspector,
        watcher=watcher,
    )
