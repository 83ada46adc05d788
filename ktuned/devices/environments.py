"""Environments that kernels run in, here and on hosts: the report of each, and whether it still holds.

An environment's *report* describes its backends, devices and compilers; contexts of measurements are made from it. Only
a worker can make it (a *probe*), because the daemon imports no backend. The store keeps the last report, so that
lookups can answer before the first worker has started. A report is in one of four states:

============  ======================================================================================================
unknown       never probed: there are no devices
from before   of an earlier daemon: its toolchain is looked at once; if nothing changed, it is trusted until the probe
probed        by this daemon: looked at again when it matters, at most once in :data:`LOOK_S`
doubted       something that it depends on has changed: answers are stale, and the next probe replaces it
============  ======================================================================================================

If a probe fails, the backends of the last report are kept, with the error: a machine does not lose its devices because
an interpreter is being upgraded.

To look at a report is to compare the files and variables that the probe's worker saw with the present ones, on this
machine. A host's files are not here, so its executor reports their changes.

One kind of doubt cannot be removed by probing: if this daemon's own ktuned is older than its workers', the two find
different facts on the same machine. If a new report is doubted for the same reason for which it was made, that is a
*disagreement*: answers are no longer doubted for this reason, and a notice asks to restart the daemon.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from time import monotonic
from typing import Any

import anyio
import msgspec
import structlog
from msgspec.structs import replace

from ktuned.backends import cpu, find_extra
from ktuned.devices.environment_report import (
    EnvironmentReport,
    find_difference,
    find_host_difference,
    fingerprint_digest,
)
from ktuned.fleet import Environment, Fleet
from ktuned.ipc import replies, requests
from ktuned.model import (
    BackendReport,
    DeviceName,
    Fault,
    Role,
    StoreError,
    UsageError,
    WorkerError,
    canonical,
    suggest_name,
)
from ktuned.protocol import AnswersChanged, EnvironmentInfo, PublishEvent
from ktuned.store import Store

_log = structlog.get_logger()

LOOK_S = 1.0
"""How long a toolchain check stays valid, in seconds; answers may be out of date for this long."""

MAX_ENVIRONMENTS = 256
"""Most keys of environments in memory: more than anyone has roots."""


async def _await_no_hosts() -> None:
    """Return at once: without hosts, there is nothing to wait for."""


class _KnownEnvironment(msgspec.Struct, eq=False):
    """What this daemon knows of one environment.

    Attributes:
        report: the last report.
        is_probed: whether this daemon itself has made the report by a probe.
        has_workers: whether the workers of its first job were started.
        looked_at: when its toolchain was looked at last, in s of the monotonic clock.
        doubt: why the report may not hold; empty while it does.
        disagreement: why this daemon doubts every report of its workers, whose ktuned has another version.
        lock: held while it is probed.
    """

    report: EnvironmentReport | None = None
    is_probed: bool = False
    has_workers: bool = False
    looked_at: float | None = None
    doubt: str = ""
    disagreement: str = ""
    lock: anyio.Lock = msgspec.field(default_factory=anyio.Lock)


class Environments:
    """The reports of all environments. Asks a worker if a report is missing.

    Args:
        fleet: Lends workers.
        store: Keeps reports.
        base_env: The workers' variables; by default the daemon's own.
        wait_for_hosts: Waits until the hosts are known.
        look_s: How long a toolchain check stays valid, in seconds.
        publish: Announces that answers may have changed, because a report has, or whether it holds.
    """

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        *,
        base_env: Mapping[str, str] | None = None,
        wait_for_hosts: Callable[[], Awaitable[None]] = _await_no_hosts,
        look_s: float = LOOK_S,
        publish: PublishEvent = lambda event: None,
    ) -> None:
        self._publish = publish
        self._look_s = look_s
        self._wait_for_hosts = wait_for_hosts
        self._fleet = fleet
        self._store = store
        self._known: dict[str, _KnownEnvironment] = {}
        for key, kept in store.load_probes().items():
            # The next probe replaces a report that cannot be understood.
            with suppress(msgspec.ValidationError):
                self._known[key] = _KnownEnvironment(msgspec.convert(kept, EnvironmentReport))
        self._base_env = dict(os.environ if base_env is None else base_env)
        self._hosts: dict[str, None] = {}
        """The connected hosts, in the order in which they connected. Used as an ordered set."""
        self._listeners: list[Callable[[], None]] = []

    @property
    def reports(self) -> Iterator[EnvironmentReport]:
        """The last known reports of all environments."""
        return (known.report for known in self._known.values() if known.report is not None)

    @property
    def probed_reports(self) -> list[EnvironmentReport]:
        """The reports that this daemon's own probes made, in a constant order."""
        probed = [known for _, known in sorted(self._known.items()) if known.is_probed]
        return [known.report for known in probed if known.report is not None]

    def get_report(self, environment: Environment) -> EnvironmentReport | None:
        """Return the last known report of an environment, if there is one."""
        return self._find_known(environment).report

    def _find_known(self, environment: Environment) -> _KnownEnvironment:
        return self._known.setdefault(_environment_key(environment), _KnownEnvironment())

    async def probe_environment(self, environment: Environment, *, again: bool = False) -> EnvironmentReport:
        """Return an environment's report; ask a worker, unless this daemon has and the report still holds.

        Args:
            environment: The environment.
            again: Whether to ask in any case.

        Returns:
            The report. If no worker could answer, it has an ``error``, and the next call asks again.
        """
        known = self._find_known(environment)
        async with known.lock:
            before = known.report or EnvironmentReport(environment.python, {}, None, host=environment.host)
            is_outdated = bool(self.check_toolchain(environment))
            if known.is_probed and not again and not is_outdated:
                return before
            if is_outdated:
                # Idle workers have imported the earlier versions of the libraries.
                self._fleet.outdate_workers(environment)
            try:
                report = await self._ask_worker(environment)
            except WorkerError as error:
                # Lookups depend on the backends, so keep the known ones while no worker can answer.
                _log.warning("probe_failed", python=environment.python, reason=error.message)
                fault = Fault(error.code, error.message, error.hint)
                report = msgspec.structs.replace(
                    before, python=environment.python, error=fault, version=None, nvml=None, strategies=None
                )
            else:
                known.is_probed = True
                doubt, known.doubt = known.doubt, ""
                if not environment.host:
                    known.disagreement = self._find_disagreement(doubt, report, environment)
            if report != known.report:
                known.report = report
                await self._store_report(environment, report)
            if not environment.host:
                # Each device of this machine has a lane, which needs a core without compilers.
                self._fleet.leave_cores(self._count_local_devices())
            self._publish(AnswersChanged())
            return report

    async def _ask_worker(self, environment: Environment) -> EnvironmentReport:
        """Have a worker probe its interpreter.

        Raises:
            WorkerError: no worker could answer.
        """
        async with self._fleet.lend_worker(Role.INSPECT, environment) as worker:
            request = requests.Probe(tuple(name for name, _ in environment.env))
            found, _ = await worker.send_request(request, self._fleet.deadlines)
        return EnvironmentReport(
            found.executable if environment.host else environment.python,
            self._name_host_devices(found, environment),
            None,
            found.version,
            found.nvml,
            found.strategies,
            environment.host,
            found.observed,
            found.distributions,
        )

    async def _store_report(self, environment: Environment, report: EnvironmentReport) -> None:
        try:
            await self._store.save_versions(_list_fingerprints(report))
            await self._store.save_probe(_environment_key(environment), msgspec.to_builtins(report))
        except StoreError as error:
            _log.warning("record_probe_failed", python=environment.python, reason=error.message)

    def _count_local_devices(self) -> int:
        """Return the number of this machine's devices. Several environments, and backends, may see the same ones."""
        return len({device.name for report in self.reports if not report.host for device in report.devices})

    def _find_disagreement(self, doubt: str, report: EnvironmentReport, environment: Environment) -> str:
        """Return why this daemon doubts a new report, if it is the same doubt for which the report was made."""
        observed = report.observed
        reason = self._find_difference(None if observed is None else replace(observed, files={}), environment)
        if not reason or reason != doubt:
            return ""
        _log.warning("daemon_outdated", python=environment.python, reason=reason)
        return reason

    def _find_difference(self, observed: replies.ProbeDependencies | None, environment: Environment) -> str:
        return find_difference(observed, self.list_variables(environment), cpu.limits())

    def list_variables(self, environment: Environment) -> dict[str, str]:
        """Return the variables that workers of an environment are started with on this machine."""
        return {**self._base_env, **dict(environment.env)}

    def explain_doubt(self, environment: Environment) -> str:
        """Return why answers that depend on an environment's report cannot be fresh; empty if they can."""
        reason = self.find_doubt(environment)
        if reason:
            return f"the toolchain must be probed again: {reason}"
        return "" if environment.host else _describe_disagreement(self._find_known(environment))

    @property
    def notices(self) -> list[str]:
        """A line for each interpreter whose ktuned differs from this daemon's."""
        return [*dict.fromkeys(filter(None, map(_describe_disagreement, self._known.values())))]

    def _name_host_devices(self, found: replies.ProbeReport, environment: Environment) -> Mapping[str, BackendReport]:
        """Return the backends that a probe found, with the host's name added to the names of a host's devices.

        A host's interpreter is part of the context: its differences from this machine's interpreter are added to its
        devices' fingerprints.
        """
        if not environment.host:
            return found.backends
        here = self.get_report(msgspec.structs.replace(environment, host=""))
        packages = find_host_difference(here, found)
        return {
            name: replace(
                backend,
                devices=tuple(
                    replace(
                        device,
                        name=DeviceName(f"{environment.host}/{device.name}"),
                        fingerprint={**device.fingerprint, **packages},
                    )
                    for device in backend.devices
                ),
            )
            for name, backend in found.backends.items()
        }

    def when_host_changes(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` whenever the toolchain of a host has changed and must be probed again."""
        self._listeners.append(listener)

    def doubt_host(self, host: str, reason: str) -> None:
        """Doubt the reports of a host until it is probed again."""
        for known in self._list_probed_on(host):
            known.doubt = f"{host}: {reason}"
        self._publish(AnswersChanged())
        for listener in self._listeners:
            listener()

    def add_host(self, host: str) -> None:
        """Use a host from now on; its environments must be probed."""
        self._hosts[host] = None
        for known in self._list_probed_on(host):
            known.is_probed = False
        self._publish(AnswersChanged())

    def _list_probed_on(self, host: str) -> list[_KnownEnvironment]:
        return [
            known
            for known in self._known.values()
            if known.is_probed and known.report is not None and known.report.host == host
        ]

    def remove_host(self, host: str) -> None:
        """Stop using a host. Measurements that were made there are kept."""
        self._hosts.pop(host, None)
        self._publish(AnswersChanged())

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of the hosts that are connected now."""
        return tuple(self._hosts)

    async def probe_hosts(self, environment: Environment) -> None:
        """Wait for hosts, and probe an environment on each connected one."""
        await self._wait_for_hosts()
        async with anyio.create_task_group() as tasks:
            for site in self.list_sites(environment)[1:]:
                tasks.start_soon(self.probe_environment, site)

    def list_sites(self, environment: Environment) -> list[Environment]:
        """Return an environment on this machine, and on each host that is connected now."""
        return [environment, *(msgspec.structs.replace(environment, host=host) for host in self._hosts)]

    def list_known_sites(self, environment: Environment) -> list[Environment]:
        """Return an environment on this machine, and on each host that was ever connected."""
        hosts = dict.fromkeys((*self._hosts, *(report.host for report in self.reports if report.host)))
        return [environment, *(msgspec.structs.replace(environment, host=host) for host in hosts)]

    def check_toolchain(self, environment: Environment) -> str:
        """Look whether an environment's report still holds; return why not, or an empty text.

        The files are looked at no more than once in :data:`LOOK_S`, because that takes some 100 µs, and a request may
        ask for each of many kernels.
        """
        known = self._find_known(environment)
        is_recent = known.looked_at is not None and monotonic() < known.looked_at + self._look_s
        # A host's files are not on this machine; its executor reports changes.
        if environment.host or known.report is None or known.doubt or is_recent:
            return known.doubt
        known.looked_at = monotonic()
        reason = self._find_difference(known.report.observed, environment)
        if reason == known.disagreement:
            # Another probe would find the same.
            known.doubt = ""
        else:
            # The end of a disagreement needs a probe, too, so answers are stale until then.
            known.doubt = reason or f"{known.disagreement} again"
            self._publish(AnswersChanged())
        return known.doubt

    def find_doubt(self, environment: Environment) -> str:
        """Return why an environment's report may not hold, as of the last look, or an empty text.

        Only an earlier daemon's report is looked at now.
        """
        known = self._find_known(environment)
        if environment.host in self._hosts and not known.is_probed:
            return f"{environment.host} joined and has not been probed yet"
        if known.is_probed or known.looked_at is not None:
            return known.doubt
        return self.check_toolchain(environment)

    def is_probed(self, environment: Environment) -> bool:
        """Return whether this daemon has probed an environment."""
        return self._find_known(environment).is_probed

    def list_toolchain_files(self, environment: Environment) -> Mapping[str, str]:
        """Return the files of an environment's toolchain, with their sights at the probe."""
        report = self.get_report(environment)
        return {} if report is None or report.observed is None else report.observed.files

    async def check_strategy(self, environment: Environment, name: str) -> None:
        """Refuse a strategy that an environment does not have. If no worker could answer, the job itself will find out.

        Raises:
            UsageError: the strategy is not installed there.
        """
        names = (await self.probe_environment(environment)).strategies
        if names is not None and name not in names:
            # The strategy may have been installed since the probe.
            names = (await self.probe_environment(environment, again=True)).strategies
        if names is not None and name not in names:
            # The names of a plugin's strategies begin with the plugin's name, like optuna_tpe.
            extra = find_extra(name.partition("_")[0]) if "_" in name else ""
            other = f"{suggest_name(name, names)} name one that is installed".lstrip()
            raise UsageError(
                f"there is no strategy {name!r} in {environment.python} (installed: {', '.join(names)})",
                hint=f"{environment.python} -m pip install '{extra}'" if extra else other,
            )

    def prepare_first_job(self, environment: Environment, backend: str = "") -> None:
        """Start the workers of an environment's first job now, in parallel with its first probe and inspection.

        That saves seconds, in which they import ``backend``, if it is known or guessed, with its compiler. It is done
        once in a daemon's life, because later workers are warm. If no backend had a device the last time, no worker for
        measuring is started, because it would import torch for nothing.
        """
        known = self._find_known(environment)
        if known.has_workers:
            return
        known.has_workers = True
        # Start them in the order in which they are needed: with many cores, starting all compile workers takes a while.
        self._fleet.prepare_spares(Role.INSPECT, environment)
        if known.report is None or any(backend.devices for backend in known.report.backends.values()):
            # Start only one, which makes its context meanwhile. A second one without a context could be taken first.
            self._fleet.prepare_spares(Role.BENCH, environment, backend, with_context=True)
        self._fleet.prepare_spares(Role.EXPLORE, environment, backend)
        self._fleet.prepare_compilers(environment, backend)

    def prepare_adoption(self, environment: Environment, backend: str, library: Mapping[str, Any] | None) -> None:
        """Start the workers of an application's first job and probe its environment, before there is a record.

        A front end imports the ``library`` of the functions, if it is known.
        """
        self.prepare_first_job(environment, backend)
        self._fleet.start_soon(self.probe_environment, environment)
        if library is not None:
            self._fleet.start_soon(
                self._fleet.front_ends.import_library, environment, backend, library, self._fleet.deadlines
            )

    def describe_environments(self) -> tuple[EnvironmentInfo, ...]:
        """Return every environment's report, for a status."""
        return tuple(map(EnvironmentInfo.from_report, self.reports))


def _describe_disagreement(known: _KnownEnvironment) -> str:
    if not known.disagreement or known.report is None:
        return ""
    return (
        "the daemon is older than its workers' ktuned: run `ktuned stop` to restart it "
        f"({known.report.python}: {known.disagreement})"
    )


def _list_fingerprints(report: EnvironmentReport) -> dict[str, Mapping[str, Any]]:
    """Return the toolchains' and the devices' fingerprints in a report, by their digests."""
    found = [backend.fingerprint for backend in report.backends.values()]
    found += [device.fingerprint for backend in report.backends.values() for device in backend.devices]
    return {fingerprint_digest(fingerprint): fingerprint for fingerprint in found}


@lru_cache(MAX_ENVIRONMENTS)
def _environment_key(environment: Environment) -> str:
    key: dict[str, Any] = {"python": environment.python, "env": dict(environment.env)}
    return canonical(key | {"host": environment.host} if environment.host else key)
