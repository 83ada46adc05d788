"""Environments that kernels run in, here and on other hosts: what each has, and whether that still holds.

Backends are asked in a worker. The last answer is kept in the store, so that lookups know what they stand on
before the first worker is up.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from time import monotonic
from typing import Any

import anyio
import msgspec
import structlog

from ktuned.backends import cpu, extra_of
from ktuned.devices.environment_report import EnvironmentReport, difference, difference_of_host, fingerprint_digest
from ktuned.fleet import Environment, Fleet
from ktuned.ipc import replies, requests
from ktuned.model import DeviceName, Role, StoreError, UsageError, WorkerError, canonical, suggest_name
from ktuned.store import Store

_log = structlog.get_logger()

LOOK_S = 1.0
"""For this long a look at a toolchain's files counts, as long as wrong answers may be given."""

MAX_ENVIRONMENTS = 256
"""Keys of environments in memory: more than anyone has roots."""


async def _no_hosts_come() -> None:
    """Wait for none: there is this machine alone."""


class Environments:
    """Knows the backends of environments; asks a worker for what it does not know yet.

    ``base_env`` is the workers' environment. ``settled`` waits until it is known which other hosts there are.
    """

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        *,
        deadlines: Mapping[str, float],
        base_env: Mapping[str, str] | None = None,
        settled: Callable[[], Awaitable[None]] = _no_hosts_come,
        look_s: float = LOOK_S,
    ) -> None:
        self._look_s = look_s
        self._settled = settled
        self._fleet = fleet
        self._store = store
        self._deadlines = deadlines
        self._reports = {
            key: report
            for key, kept in store.load_probes().items()
            if (report := EnvironmentReport.from_json(kept)) is not None
        }
        self._base_env = dict(os.environ if base_env is None else base_env)
        self._hosts: dict[str, None] = {}
        """The hosts that are there, in the order of their coming."""
        self._probed: set[str] = set()
        self._expected: set[str] = set()
        self._looked_at: dict[str, float] = {}
        self._doubts: dict[str, str] = {}
        self._disagreements: dict[str, str] = {}
        """Reasons for which this daemon doubts whatever workers find: their ktuned is another one."""
        self._locks: dict[str, anyio.Lock] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def reports(self) -> Iterator[EnvironmentReport]:
        """The last known reports of all environments."""
        return iter(self._reports.values())

    @property
    def probed(self) -> list[EnvironmentReport]:
        """The reports that this daemon has asked for, in a constant order."""
        return [self._reports[key] for key in sorted(self._probed)]

    def report(self, environment: Environment) -> EnvironmentReport | None:
        """Return what is known of an environment now."""
        return self._reports.get(_environment_key(environment))

    async def probe(self, environment: Environment, *, again: bool = False) -> EnvironmentReport:
        """Ask an environment's backends what they are, unless the last answer still holds; return the report.

        A report with an ``error`` says why no worker could answer; it is asked again the next time.
        """
        key = _environment_key(environment)
        async with self._locks.setdefault(key, anyio.Lock()):
            if key in self._probed and not again and not self.look(environment):
                return self._reports[key]
            known = self._reports.get(key, EnvironmentReport(environment.python, host=environment.host))
            if self.look(environment):
                # Workers have imported the libraries that were there before.
                self._fleet.outdate_workers(environment)
            try:
                async with self._fleet.lend(Role.INSPECT, environment) as worker:
                    request = requests.Probe(tuple(name for name, _ in environment.env))
                    found, _ = await worker.exchange(request, self._deadlines)
                report = EnvironmentReport(
                    found.executable if environment.host else environment.python,
                    self._placed(found, environment),
                    None,
                    found.version,
                    found.nvml,
                    found.strategies,
                    found.observed,
                    environment.host,
                    found.distributions,
                )
                self._probed.add(key)
                if environment.host:
                    self._doubts.pop(key, None)
                else:
                    self._compare_with_workers(key, report, environment)
            except WorkerError as error:
                # Lookups depend on the backends, so those that were known stay while no worker can answer.
                fault = replies.Fault(error.code, error.message, error.hint)
                report = replace(
                    EnvironmentReport(environment.python, known.backends, fault, observed=known.observed),
                    host=environment.host,
                    distributions=known.distributions,
                )
                _log.warning("probe_failed", python=environment.python, reason=error.message)
            if report != self._reports.get(key):
                self._reports[key] = report
                try:
                    await self._store.save_versions(_fingerprints(report))
                    await self._store.save_probe(key, report.to_json())
                except StoreError as error:
                    _log.warning("probe_not_recorded", python=environment.python, reason=error.message)
            return report

    def _compare_with_workers(self, key: str, report: EnvironmentReport, environment: Environment) -> None:
        """Note whether this daemon doubts what workers have just found, for the reason that they were asked for."""
        before = self._doubts.pop(key, "")
        observed = report.observed
        reason = self._difference(None if observed is None else replace(observed, files={}), environment)
        self._disagreements[key] = reason if reason == before else ""
        if self._disagreements[key]:
            _log.warning("daemon_outdated", python=environment.python, reason=reason)

    def _difference(self, observed: replies.ProbeDependencies | None, environment: Environment) -> str:
        return difference(observed, self.variables(environment), cpu.limits())

    def variables(self, environment: Environment) -> dict[str, str]:
        """Return the variables that workers of an environment are started with on this machine."""
        return {**self._base_env, **dict(environment.env)}

    def outdated(self, environment: Environment) -> str:
        """Return a line if an interpreter's ktuned is another one than this daemon's; else nothing."""
        return self._outdated(_environment_key(environment))

    def _outdated(self, key: str) -> str:
        if not (reason := self._disagreements.get(key)):
            return ""
        return (
            "this daemon is older than its workers' ktuned: `ktuned stop` ends it, and the next command starts the new "
            f"one ({self._reports[key].python}: {reason})"
        )

    @property
    def notices(self) -> list[str]:
        """A line for each interpreter whose ktuned is another one than this daemon's."""
        return [*dict.fromkeys(filter(None, map(self._outdated, self._disagreements)))]

    def _placed(self, found: replies.ProbeReport, environment: Environment) -> Mapping[str, replies.BackendReport]:
        """Return the backends of a report; of another host, with the places of its devices.

        A host's environment is part of the context: where it differs from this machine's for the project, that is in
        the fingerprints of its devices.
        """
        if not environment.host:
            return found.backends
        here = self.report(msgspec.structs.replace(environment, host=""))
        packages = difference_of_host(here, found)
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
        """Call ``listener`` when the toolchain of a host is another, and is to be probed again."""
        self._listeners.append(listener)

    def host_changed(self, host: str, reason: str) -> None:
        """Doubt what is known of a host until it is probed again."""
        for key in self._probed:
            if self._reports[key].host == host:
                self._doubts[key] = f"{host}: {reason}"
        for listener in self._listeners:
            listener()

    def host_up(self, host: str) -> None:
        """Count on a host from now on; its environments are to be probed."""
        self._hosts[host] = None
        self._probed -= {key for key in self._probed if self._reports[key].host == host}

    def host_lost(self, host: str) -> None:
        """Count on a host no more; what was measured there stays known."""
        self._hosts.pop(host, None)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The other hosts that are there."""
        return tuple(self._hosts)

    async def probe_hosts(self, environment: Environment) -> None:
        """Wait for the other hosts, and probe an environment on each that is there."""
        await self._settled()
        async with anyio.create_task_group() as tasks:
            for site in self.sites(environment)[1:]:
                tasks.start_soon(self.probe, site)

    def sites(self, environment: Environment) -> list[Environment]:
        """Return an environment on this machine, and on each host that is there."""
        return [environment, *(msgspec.structs.replace(environment, host=host) for host in self._hosts)]

    def known_sites(self, environment: Environment) -> list[Environment]:
        """Return an environment on this machine, and on each host that was ever there."""
        hosts = dict.fromkeys((*self._hosts, *(report.host for report in self._reports.values() if report.host)))
        return [environment, *(msgspec.structs.replace(environment, host=host) for host in hosts)]

    def look(self, environment: Environment) -> str:
        """Look whether an environment's report still holds; return why not, or nothing.

        Once in a second at most: it takes some 100 µs, and many kernels of one request ask.
        """
        key = _environment_key(environment)
        if environment.host:
            # Its files are there: its executor says when they change.
            return self._doubts.get(key, "")
        report = self._reports.get(key)
        if (
            report is None
            or key in self._doubts
            or monotonic() < self._looked_at.get(key, -self._look_s) + self._look_s
        ):
            return self._doubts.get(key, "")
        self._looked_at[key] = monotonic()
        reason = self._difference(report.observed, environment)
        if reason == self._disagreements.get(key):
            # Another probe would find the same.
            return ""
        if reason:
            self._doubts[key] = reason
        return reason

    def doubt(self, environment: Environment) -> str:
        """Return why an environment's report may not hold any more, as far as that has been looked at.

        The report of an earlier daemon is looked at now.
        """
        key = _environment_key(environment)
        if environment.host in self._hosts and key not in self._probed:
            return f"{environment.host} has come, and was not asked yet"
        if key in self._probed or key in self._looked_at:
            return self._doubts.get(key, "")
        return self.look(environment)

    def is_probed(self, environment: Environment) -> bool:
        """Return whether this daemon has asked an environment's backends."""
        return _environment_key(environment) in self._probed

    def toolchain_files(self, environment: Environment) -> Mapping[str, str]:
        """Return the files by which an environment's toolchain is known, as a probe saw them."""
        report = self.report(environment)
        return {} if report is None or report.observed is None else report.observed.files

    async def check_strategy(self, environment: Environment, name: str) -> None:
        """Refuse a strategy that an environment does not have; where it could not be asked, its worker will say so.

        Raises:
            UsageError: it is not installed there.
        """
        names = (await self.probe(environment)).strategies
        if names is not None and name not in names:
            # It may have been installed since.
            names = (await self.probe(environment, again=True)).strategies
        if names is not None and name not in names:
            # A plugin's strategies begin with its name: optuna_tpe.
            extra = extra_of(name.partition("_")[0]) if "_" in name else ""
            other = f"{suggest_name(name, names)} name one that is installed".lstrip()
            raise UsageError(
                f"there is no strategy {name!r} in {environment.python} (installed: {', '.join(names)})",
                hint=f"{environment.python} -m pip install '{extra}'" if extra else other,
            )

    def expect_measuring(self, environment: Environment, backend: str = "") -> None:
        """Have the workers of an environment's first job start beside its first probe and inspection.

        Once in a daemon's life: later ones are warm, or found nothing to do. They import ``backend``, if it is known
        or guessed, and what it compiles with, while the inspection does so, too: seconds. A worker that measures
        imports torch; it is not started where no backend had a device the last time.
        """
        key = _environment_key(environment)
        if key in self._expected:
            return
        self._expected.add(key)
        # In the order in which they are waited for: on a machine with many cores the compilers' starts take a while.
        self._fleet.prepare(Role.INSPECT, environment)
        report = self.report(environment)
        if report is None or any(known.devices for known in report.backends.values()):
            # One, which makes its context meanwhile: a second would be taken where it is there sooner, without one.
            self._fleet.prepare(Role.BENCH, environment, backend, with_context=True)
        self._fleet.prepare(Role.EXPLORE, environment, backend)
        self._fleet.prepare_compilers(environment, backend)

    def describe(self) -> list[dict[str, Any]]:
        """Return every environment's report, for a status."""
        return [report.to_wire() for report in self._reports.values()]


def _fingerprints(report: EnvironmentReport) -> dict[str, Mapping[str, Any]]:
    """Return the toolchains' and the devices' fingerprints in a report, by their digests."""
    found = [backend.fingerprint for backend in report.backends.values()]
    found += [device.fingerprint for backend in report.backends.values() for device in backend.devices]
    return {fingerprint_digest(fingerprint): fingerprint for fingerprint in found}


@lru_cache(MAX_ENVIRONMENTS)
def _environment_key(environment: Environment) -> str:
    key: dict[str, Any] = {"python": environment.python, "env": dict(environment.env)}
    return canonical(key | {"host": environment.host} if environment.host else key)
