"""The composition root: every part of a daemon, built once, each from those before it.

No part is completed after its construction, and nothing runs before all are built. Two things would be cycles:

- *Events.* Parts that act on events (caches, clean-up, probes) are built before the router, those that publish after
  it.
- *Callbacks.* A part that calls one built later gets a function of this module. It is first called when the daemon
  runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
import msgspec

from ktuned.adoption import Adoptions, KeyTunings
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
from ktuned.daemon.event_router import EventRouter, list_routes
from ktuned.daemon.last_end import END_NAME
from ktuned.daemon.lifetime import Lifetime
from ktuned.daemon.notices import Notices
from ktuned.daemon.reload import CurrentSettings, Reload, list_watched_roots
from ktuned.daemon.status import StatusReport
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
from ktuned.protocol import KernelStale
from ktuned.scheduling import (
    Dispatcher,
    DueKernels,
    GoneRoots,
    HostObserver,
    IdlePolicy,
    Intake,
    Intervals,
    JobMachine,
    JobRequests,
    Jobs,
    KeptPortfolios,
    PortfolioMaker,
    Portfolios,
    Preparation,
    Reading,
    Renewal,
    Reverification,
    SharedWinners,
    ShareExchange,
)
from ktuned.serve import (
    Activity,
    CallMethods,
    Captures,
    Checks,
    Control,
    DaemonMethods,
    DevicePeaks,
    Events,
    Explainer,
    Handler,
    JobMethods,
    KernelMethods,
    LookupMethods,
    PortfolioMethods,
    Server,
    ShareMethods,
    Subscriptions,
    Traffic,
    TrialCount,
    TrialMethods,
    WinnerExchange,
)
from ktuned.store import Artifacts, Store
from ktuned.watch import Watcher


class Replacements(msgspec.Struct, frozen=True, kw_only=True):
    """Parts that a test or a benchmark brings along; ``None`` leaves the daemon's own.

    ``executor`` wraps the daemon's executor of this machine. ``read`` gives readings of the machine. ``base_env`` is
    the workers' environment. An executor that ``adopts`` kills every child of the process that it did not start. Spare
    workers import ``spare_modules``, timing and compiles share ``cores``, ``start_process`` starts a worker's process.
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
    """All parts of a daemon; ``handlers`` are those of the protocol's methods, by their names.

    Setting ``stopping`` ends the daemon; the next one continues what is unfinished.
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
    gone_roots: GoneRoots
    intake: Intake
    jobs: Jobs
    lifetime: Lifetime
    lookups: Lookups
    machine: Machine
    handlers: Mapping[str, Handler[Any, Any]]
    notifier: Notifier
    portfolios: Portfolios
    preparation: Preparation
    probes: Probes
    reload: Reload
    renewal: Renewal
    requests: JobRequests
    reverification: Reverification
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


def assemble_parts(
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

    Args:
        settings: What ``config.toml``, the environment and the arguments say.
        store: The open store.
        notifier: Reports to the service manager.
        watchdog_s: How often the service manager expects a sign of life, in seconds; 0 is never.
        idle_exit_s: Seconds of inactivity after which the daemon ends, where the settings leave that open; 0 is never.
        last_end: How the daemon before this one ended, if not in order.
        replacements: Parts of a test or a benchmark.
    """
    replaced = replacements or Replacements()
    current = CurrentSettings(settings, idle_exit_s)
    deadlines = current.deadlines
    stopping = anyio.Event()

    # What runs workers: policy, executors, the fleet.
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

    # Called when the daemon runs; the parts that they act on are built below.
    def on_host_up(host: str, cores: int) -> None:
        fleet.add_host(host, cores)
        probes.add_host(host)

    def on_host_lost(host: str) -> None:
        environments.remove_host(host)

    def on_host_changed(host: str, reason: str) -> None:
        environments.doubt_host(host, reason)

    executors = Executors(
        executor if replaced.executor is None else replaced.executor(executor),
        surroundings,
        HostEvents(on_host_up, on_host_lost, on_host_changed),
    )
    executors.apply_settings(settings.executors, limits_are_given=settings.limits_are_given)
    fleet = Fleet(
        executors,
        compile_slots=settings.compile_slots,
        spawn_s=settings.deadlines["spawn"],
        memory_limits=(settings.bench_bytes, settings.compile_bytes),
        keeps_spares=settings.keeps_spares,
        rank_of=job_machine.find_slot_rank,
        cores=replaced.cores or cpu.cores(),
        spare_modules=replaced.spare_modules,
    )

    # What is known: kernels, inputs, devices, artifacts.
    artifacts = Artifacts(settings.artifacts, settings.artifacts_bytes)
    catalog = Catalog(
        list_watched_roots(settings, store),
        store.load_kernels(),
        store.learned.list_names(),
    )
    admission = Admission(catalog, fleet, store, deadlines)
    buckets = Buckets(catalog, fleet, store, deadlines)
    captured_inputs = CapturedInputs(store, settings.captures)
    environments = Environments(
        fleet, store, deadlines=deadlines, settled=executors.await_hosts, base_env=replaced.base_env
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
        list_routes(
            artifact_cleanup=artifact_cleanup,
            caches=caches,
            probes=probes,
            to_share=to_share,
            trial_count=trial_count,
        ),
    )

    async def probe_root(root: Root) -> None:
        await environments.probe_environment(environment_of(root))

    inspector = FileInspector(catalog, fleet, store, deadlines, trust, probe=probe_root)

    def on_names_learned(kernel: KernelName, names: Sequence[Observation]) -> None:
        caches.rename_contexts(kernel, store.list_winners(kernel), names)

    traces = Traces(catalog, store, renamed=on_names_learned, publish=router.publish_event)

    # What others share.
    foreign_names = ForeignNames(catalog, inspector, traces, machine.digest_kernel)
    shared_winners = SharedWinners(settings.share, bridge, catalog=catalog, foreign_names=foreign_names)

    # What tunes.
    served = ServedWinners(catalog, store, machine, admission, caches)
    observer = HostObserver(fleet=fleet, machine=machine, environments=probes.list_environments, deadlines=deadlines)
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
        find_shared=shared_winners.find_best,
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
        publish=router.publish_event,
        idle_policy=idle_policy,
        read=replaced.read or observer.read_host_use,
        intervals=replaced.intervals or Intervals(),
        applications=applications,
    )
    jobs = Jobs(job_machine, dispatcher, store=store, publish=router.publish_event)
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
        publish=router.publish_event,
    )

    def list_configured_roots() -> set[str]:
        return {root.path for root in current.settings.roots}

    gone_roots = GoneRoots(catalog=catalog, store=store, configured=list_configured_roots, renewal=renewal)
    intake = Intake(
        catalog=catalog,
        inspector=inspector,
        machine=machine,
        store=store,
        requests=requests,
        renewal=renewal,
        gone_roots=gone_roots,
    )

    portfolio_maker = PortfolioMaker(
        admission=admission,
        catalog=catalog,
        fleet=fleet,
        jobs=jobs,
        machine=machine,
        requests=requests,
        store=store,
        deadlines=deadlines,
    )
    portfolios = Portfolios(
        catalog=catalog,
        jobs=jobs,
        kept=kept_portfolios,
        machine=machine,
        maker=portfolio_maker,
        on_change=caches.forget_answers,
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
        keys=KeyTunings(catalog=catalog, requests=requests, jobs=jobs, portfolios=portfolios, store=store),
        lookups=lookups,
        jobs=jobs,
        front_ends=fleet.front_ends,
        machine=machine,
        store=store,
        deadlines=deadlines,
    )

    def list_kernels_in_use() -> set[str]:
        return {*lookups.looked_up(), *(job.kernel for job in jobs.list_live_jobs())}

    share_exchange = ShareExchange(
        shared_winners, to_share, admission=admission, catalog=catalog, machine=machine, store=store, jobs=jobs
    )

    async def on_toolchain_probed(kernels: Sequence[KernelInfo], outdated: Sequence[KernelInfo]) -> None:
        caches.forget_all_answers()
        for kernel in outdated:
            if store.list_winners(kernel.name):
                router.publish_event(KernelStale(kernel=kernel.name, digest=kernel.digest))
        await reverification.reverify_probed(kernels, outdated)

    toolchain_survey = ToolchainSurvey(
        catalog,
        environments,
        in_use=list_kernels_in_use,
        doubted=caches.forget_all_answers,
        probed=on_toolchain_probed,
        intervals=replaced.toolchain_intervals,
    )

    async def on_changes(changes: Changes, saved: bool) -> None:
        await renewal.react_to_changes(changes, saved=saved)

    watcher = Watcher(catalog, inspector, on_changes, lookups.looked_up, doubts_changed=caches.forget_all_answers)

    # What reports, and what the server calls.
    traffic = Traffic(caches.shortcuts)
    activity = Activity(catalog=catalog, jobs=jobs, lookups=lookups, traffic=traffic, trial_count=trial_count)
    lifetime = Lifetime(
        notifier,
        watchdog_s=watchdog_s,
        idle_exit_s=current.idle_exit_s,
        busy=activity.list_reasons_to_stay,
        totals=activity.read_totals,
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
        gone_roots=gone_roots,
        jobs=jobs,
        machine=machine,
        renewal=renewal,
        store=store,
        shared=shared_winners,
        watcher=watcher,
    )
    status = StatusReport(
        settings=settings,
        artifacts=artifacts,
        catalog=catalog,
        events=events,
        executors=executors,
        fleet=fleet,
        jobs=jobs,
        lifetime=lifetime,
        lookups=lookups,
        machine=machine,
        notices=notices,
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
    exchange = WinnerExchange(
        admission=admission,
        catalog=catalog,
        foreign_names=foreign_names,
        machine=machine,
        store=store,
        artifacts=artifacts,
        served=lookups.served,
        publish=router.publish_event,
    )
    subscriptions = Subscriptions(events, jobs)
    found: list[Handler[Any, Any]] = [
        *DaemonMethods(
            events=events,
            table=caches.table,
            status=status.collect_figures,
            probe=probes.collect_reports,
            stop=stopping.set,
        ).list_handlers(),
        *JobMethods(
            applications=applications, catalog=catalog, events=events, intake=intake, jobs=jobs, store=store
        ).list_handlers(),
        *TrialMethods(catalog=catalog, machine=machine, lookups=lookups, jobs=jobs, store=store).list_handlers(),
        *LookupMethods(lookups).list_handlers(),
        *subscriptions.list_handlers(),
        *Control(catalog=catalog, machine=machine, jobs=jobs).list_handlers(),
        *exchange.list_handlers(),
        *Checks(
            catalog=catalog,
            store=store,
            fleet=fleet,
            artifacts=artifacts,
            prepare=preparation.prepare_brief,
            lane=dispatcher.get_lane,
            scratch=executor.scratch / "sanitizers",
        ).list_handlers(),
        *DevicePeaks(
            machine=machine,
            store=store,
            fleet=fleet,
            environments=probes.list_probed_environments,
            lane=dispatcher.get_lane,
        ).list_handlers(),
        *CallMethods(adoptions, applications).list_handlers(),
        *Captures(captured_inputs, catalog, jobs, lookups.results_changed).list_handlers(),
        *KernelMethods(
            catalog=catalog,
            explainer=Explainer(catalog, admission, machine, store, lookups.find_doubt),
            intake=intake,
            renewal=renewal,
            store=store,
            configured=list_configured_roots,
        ).list_handlers(),
        *ShareMethods(
            catalog=catalog, events=events, exchange=share_exchange, jobs=jobs, shared=shared_winners
        ).list_handlers(),
        *PortfolioMethods(catalog, portfolios).list_handlers(),
        *artifact_cleanup.list_handlers(),
        *reload.list_handlers(),
    ]
    handlers = {handler.method.name: handler for handler in found}
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
        gone_roots=gone_roots,
        intake=intake,
        jobs=jobs,
        lifetime=lifetime,
        lookups=lookups,
        machine=machine,
        handlers=handlers,
        notifier=notifier,
        portfolios=portfolios,
        preparation=preparation,
        probes=probes,
        reload=reload,
        renewal=renewal,
        requests=requests,
        reverification=reverification,
        router=router,
        server=Server(handlers.values(), shortcuts=caches.shortcuts, traffic=traffic, subscribers=subscriptions),
        share_exchange=share_exchange,
        shared_winners=shared_winners,
        stopping=stopping,
        store=store,
        traces=traces,
        toolchain_survey=toolchain_survey,
        inspector=inspector,
        watcher=watcher,
    )
