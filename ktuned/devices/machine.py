"""The machine's capabilities: for each interpreter its backends, their toolchains and their devices.

Backends are asked in a worker. The last answer is kept in the store, so that lookups know what they stand on
before the first worker is up.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from time import monotonic
from typing import Any

import anyio
import structlog

from ktuned.backends import Absence, cpu, extra_of, install_hint
from ktuned.devices.environment_report import EnvironmentReport, difference
from ktuned.fleet import Environment, Fleet
from ktuned.ipc import replies, requests
from ktuned.model import (
    BackendError,
    Context,
    Device,
    DeviceModel,
    DeviceName,
    KernelInfo,
    KeyProblem,
    NotFound,
    Problem,
    Role,
    StoreError,
    Target,
    UsageError,
    WorkerError,
    canonical,
    with_captured,
)
from ktuned.store import Store

_log = structlog.get_logger()

LOOK_S = 1.0
"""For this long a look at a toolchain's files counts, as long as wrong answers may be given."""

MAX_ENVIRONMENTS = 256
"""Keys of environments in memory: more than anyone has roots."""


def fingerprint_digest(fingerprint: Mapping[str, Any]) -> str:
    """Return the short text that stands for a fingerprint in keys."""
    return hashlib.sha256(canonical(fingerprint).encode()).hexdigest()[:16]


def is_named(device: Device, name: str) -> bool:
    """Return whether a name of config.toml's ``devices`` means a device: its name, its node, its kind, or a part of its
    model.
    """
    return name in (device.name, device.kind, device.node or None) or name.casefold() in device.model.casefold()


@dataclass(frozen=True, slots=True)
class Aim:
    """The target of a job's configs, and the devices that measure them; without devices ``absence`` may say why."""

    target: str
    devices: tuple[Device, ...] = ()
    absence: str = ""

    @property
    def model(self) -> Device:
        """The device that stands for all of them; where there is none, one that has the target for its model."""
        return (
            self.devices[0] if self.devices else Device(DeviceName(""), DeviceModel(self.target), Target(self.target))
        )


def _fingerprints(report: EnvironmentReport) -> dict[str, Mapping[str, Any]]:
    """Return the toolchains' and the devices' fingerprints in a report, by their digests."""
    found = [backend.fingerprint for backend in report.backends.values()]
    found += [device.fingerprint for backend in report.backends.values() for device in backend.devices]
    return {fingerprint_digest(fingerprint): fingerprint for fingerprint in found}


async def _at_once() -> None:
    """Wait for nothing."""


class Machine:
    """Knows backends and devices per environment; asks a worker for what it does not know yet.

    ``captured`` returns the digest of the inputs that were captured for a kernel's problem, empty if none were.
    ``arch`` is what is compiled for where a backend has no device (the backend's own default if empty); ``chosen``
    names the devices that may be used (all if empty). ``base_env`` is the workers' environment. ``settled`` waits until
    the nodes of a cluster have come.
    """

    def __init__(
        self,
        fleet: Fleet,
        store: Store,
        *,
        deadlines: Mapping[str, float],
        arch: str = "",
        chosen: Sequence[str] = (),
        captured: Callable[[str, str], str] = lambda kernel, problem: "",
        base_env: Mapping[str, str] | None = None,
        settled: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        self._settled = settled
        self.arch = arch
        self.chosen = tuple(chosen)
        self._captured = captured
        self._fleet = fleet
        self._store = store
        self._deadlines = deadlines
        self._reports = {
            key: report
            for key, kept in store.probes().items()
            if (report := EnvironmentReport.from_json(kept)) is not None
        }
        self._base_env = dict(os.environ if base_env is None else base_env)
        self._nodes: dict[str, None] = {}
        """The nodes that are there, in the order of their coming."""
        self._probed: set[str] = set()
        self._expected: set[str] = set()
        self._looked_at: dict[str, float] = {}
        self._doubts: dict[str, str] = {}
        self._locks: dict[str, anyio.Lock] = {}

    async def probe(self, environment: Environment, *, again: bool = False) -> EnvironmentReport:
        """Ask an environment's backends what they are, unless the last answer still holds; return the report.

        A report with an ``error`` says why no worker could answer; it is asked again the next time.
        """
        key = _environment_key(environment)
        async with self._locks.setdefault(key, anyio.Lock()):
            if key in self._probed and not again and not self.look(environment):
                return self._reports[key]
            known = self._reports.get(key, EnvironmentReport(environment.python, node=environment.node))
            if self.look(environment):
                # Workers have imported the libraries that were there before.
                self._fleet.renew(environment)
            try:
                async with self._fleet.lend(Role.INSPECT, environment) as worker:
                    request = requests.Probe(tuple(name for name, _ in environment.env))
                    found, _ = await worker.exchange(request, self._deadlines)
                report = EnvironmentReport(
                    found.executable if environment.node else environment.python,
                    self._placed(found, environment),
                    None,
                    found.version,
                    found.nvml,
                    found.strategies,
                    found.observed,
                    environment.node,
                    found.distributions,
                )
                self._probed.add(key)
                self._doubts.pop(key, None)
            except WorkerError as error:
                # Lookups depend on the backends, so those that were known stay while no worker can answer.
                fault = replies.Fault(error.code, error.message, error.hint)
                report = replace(
                    EnvironmentReport(environment.python, known.backends, fault, observed=known.observed),
                    node=environment.node,
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

    def _placed(self, found: replies.ProbeReport, environment: Environment) -> Mapping[str, replies.BackendReport]:
        """Return the backends of a report; of a node, with the places of its devices.

        A node's environment is part of the context: where it differs from this machine's for the project, that is in
        the fingerprints of its devices.
        """
        if not environment.node:
            return found.backends
        here = self.report(replace(environment, node=""))
        packages = _difference(here, found)
        return {
            name: replace(
                backend,
                devices=tuple(
                    replace(
                        device,
                        name=DeviceName(f"{environment.node}/{device.name}"),
                        fingerprint={**device.fingerprint, **packages},
                    )
                    for device in backend.devices
                ),
            )
            for name, backend in found.backends.items()
        }

    def node_up(self, node: str) -> None:
        """Count on a node from now on; its environments are to be probed."""
        self._nodes[node] = None
        self._probed -= {key for key in self._probed if self._reports[key].node == node}

    def node_lost(self, node: str) -> None:
        """Count on a node no more; what was measured there stays known."""
        self._nodes.pop(node, None)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that are there."""
        return tuple(self._nodes)

    async def probe_nodes(self, environment: Environment) -> None:
        """Wait for the cluster's nodes, and probe an environment on each that is there."""
        await self._settled()
        async with anyio.create_task_group() as tasks:
            for site in self.sites(environment)[1:]:
                tasks.start_soon(self.probe, site)

    def sites(self, environment: Environment) -> list[Environment]:
        """Return an environment on this machine, and on each node that is there."""
        return [environment, *(replace(environment, node=node) for node in self._nodes)]

    def _known_sites(self, environment: Environment) -> list[Environment]:
        """Return an environment on this machine, and on each node that was ever there."""
        nodes = dict.fromkeys((*self._nodes, *(report.node for report in self._reports.values() if report.node)))
        return [environment, *(replace(environment, node=node) for node in nodes)]

    def look(self, environment: Environment) -> str:
        """Look whether an environment's report still holds; return why not, or nothing.

        Once in a second at most: it takes some 100 µs, and many kernels of one request ask.
        """
        if environment.node:
            # Its files are there: a compile on the node compares them, and it is probed whenever it comes.
            return ""
        key = _environment_key(environment)
        report = self._reports.get(key)
        if report is None or key in self._doubts or monotonic() < self._looked_at.get(key, -LOOK_S) + LOOK_S:
            return self._doubts.get(key, "")
        self._looked_at[key] = monotonic()
        reason = difference(report.observed, {**self._base_env, **dict(environment.env)}, cpu.limits())
        if reason:
            self._doubts[key] = reason
        return reason

    def doubt(self, environment: Environment) -> str:
        """Return why an environment's report may not hold any more, as far as that has been looked at.

        The report of an earlier daemon is looked at now.
        """
        key = _environment_key(environment)
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
            raise UsageError(
                f"there is no strategy {name!r} in {environment.python} (installed: {', '.join(names)})",
                hint=f"{environment.python} -m pip install '{extra}'" if extra else "name one that is installed",
            )

    def expect_measuring(self, environment: Environment) -> None:
        """Have the workers of an environment's first job start beside its first probe and inspection.

        Once in a daemon's life: later ones are warm, or found nothing to do. A worker that measures imports torch, for
        seconds; it is not started where no backend had a device the last time.
        """
        key = _environment_key(environment)
        if key in self._expected:
            return
        self._expected.add(key)
        self._fleet.prepare_spares(Role.EXPLORE, environment)
        self._fleet.prepare_spares(Role.COMPILE, environment)
        report = self.report(environment)
        if report is None or any(backend.devices for backend in report.backends.values()):
            self._fleet.prepare_spares(Role.BENCH, environment)

    def report(self, environment: Environment) -> EnvironmentReport | None:
        """Return what is known of an environment now."""
        return self._reports.get(_environment_key(environment))

    def devices(self, environment: Environment, backend: str) -> list[Device]:
        """Return the devices that a backend may use, those of this machine first, then those known of nodes.

        None when it has none, or has not been asked yet.
        """
        return [device for device in self._found(environment, backend) if self._is_chosen(device)]

    def _found(self, environment: Environment, backend: str) -> list[Device]:
        return [device for site in self._known_sites(environment) for device in self._backend(site, backend).devices]

    def _is_chosen(self, device: Device) -> bool:
        return not self.chosen or any(is_named(device, name) for name in self.chosen)

    def _backend(self, environment: Environment, backend: str) -> replies.BackendReport:
        """Return what is known of a backend; nothing of one that is unknown."""
        report = self.report(environment)
        return _UNKNOWN if report is None else report.backends.get(backend, _UNKNOWN)

    def group_size(self, environment: Environment, backend: str) -> int:
        """Return how many units a backend gains from compiling at once."""
        return self._backend(environment, backend).group_size

    def lowers(self, environment: Environment, backend: str) -> bool:
        """Return whether a backend's functions are translated before they are compiled."""
        return self._backend(environment, backend).lowers

    def target(self, environment: Environment, backend: str) -> str:
        """Return what a backend compiles for here: its first device's target, else ``arch``, else its own default.

        Raises:
            BackendError: it cannot compile here, or has no device and no target is given.
        """
        found = self.devices(environment, backend) or self._found(environment, backend)
        if found:
            return found[0].target
        absence = self._why_none(environment, backend)
        known = self._backend(environment, backend)
        if known.absent is None or known.error is not None or known.absent.reason == Absence.NO_COMPILER:
            raise absence
        if not known.target:
            named = "or name what to compile for: `ktuned compile --arch`"
            raise BackendError(absence.message, hint="; ".join(filter(None, (absence.hint, named))))
        return self.arch or known.target

    def aim(self, environment: Environment, backend: str, wanted: str, *, compile_only: bool = False) -> Aim:
        """Return where the configs of a job for the device ``wanted`` are measured, on all devices that are alike.

        With ``compile_only`` they are compiled for the target ``wanted``, without any device for :meth:`target`.

        Raises:
            BackendError: the backend has no device here and cannot compile without one.
            NotFound: it has devices, but not that one.
        """
        if compile_only:
            return Aim(wanted)
        devices = self.devices(environment, backend)
        if not devices:
            absence = self._why_none(environment, backend)
            return Aim(self.target(environment, backend), (), absence.message)
        there = [device for device in devices if not device.node or device.node in self._nodes]
        meant = [device for device in there if wanted in (device.name, device.model)]
        first = meant[0] if meant else self.device(environment, backend, wanted)
        if not meant:
            return Aim(first.target, (), f"the node {first.node} is not there now")
        toolchain = self._toolchain(environment, backend, first)
        alike = [
            other
            for other in there
            if _is_like(other, first) and self._toolchain(environment, backend, other) == toolchain
        ]
        return Aim(first.target, tuple(alike))

    def _toolchain(self, environment: Environment, backend: str, device: Device) -> str:
        """Return the digest of the toolchain where a device is."""
        site = replace(environment, node=device.node)
        return fingerprint_digest(self._backend(site, backend).fingerprint)

    def compilers(self, environment: Environment, backend: str, toolchain: str) -> list[Environment]:
        """Return where there is a toolchain by its digest: here first, then on the nodes that are there."""
        return [
            site
            for site in self.sites(environment)
            if fingerprint_digest(self._backend(site, backend).fingerprint) == toolchain
        ]

    def has_device(self, environment: Environment, backend: str, wanted: str | None) -> bool:
        """Return whether a device that is wanted (any, without a name or model) is there now."""
        return any(
            wanted in (None, device.name, device.model) and (not device.node or device.node in self._nodes)
            for device in self.devices(environment, backend)
        )

    def device(self, environment: Environment, backend: str, wanted: str | None) -> Device:
        """Return the device that a request means: by name (``cpu:0``), by model, or the backend's first.

        Raises:
            BackendError: the backend is missing, or has no device here; says why and what mends it.
            NotFound: it has devices, but not that one.
        """
        devices = self.devices(environment, backend)
        if not devices:
            raise self._why_none(environment, backend)
        for device in devices:
            if wanted in (None, device.name, device.model):
                return device
        known = ", ".join(f"{device.name} ({device.model})" for device in devices)
        raise NotFound(f"backend {backend!r} has no device {wanted!r} here", hint=f"it has {known}")

    def _why_none(self, environment: Environment, backend: str) -> BackendError:
        report = self.report(environment)
        if report is None:
            return BackendError(f"{environment.python}: its backends have not been asked yet")
        if report.error is not None:
            return BackendError(f"{environment.python}: {report.error.message}", hint=report.error.hint)
        found = report.backends.get(backend)
        if found is None:
            installed = ", ".join(report.backends) or "none"
            return BackendError(
                f"{environment.python} has no backend {backend!r} (installed: {installed})",
                hint=install_hint(backend, environment.python),
            )
        reason = found.error or found.absent
        if reason is None:
            there = ", ".join(f"{device.name} ({device.model})" for device in self._found(environment, backend))
            return BackendError(
                f"config.toml's devices leave backend {backend!r} none of {there or 'no devices'}",
                hint="name one of them there, or leave out `devices`",
            )
        return BackendError(f"backend {backend!r} cannot run here: {reason.message}", hint=reason.hint)

    def context(self, kernel: KernelInfo, environment: Environment, problem: Problem, device: Device) -> Context:
        """Return the context of a measurement that is made now."""
        specialized = canonical(kernel.specialized(problem))
        return Context(
            kernel=kernel.name,
            problem=KeyProblem(specialized),
            device=device.model,
            digest=self.digest(kernel, specialized),
            toolchain=self._toolchain(environment, kernel.backend, device),
            device_fingerprint=fingerprint_digest(device.fingerprint),
        )

    def is_outdated(self, environment: Environment, backend: str, context: Context) -> bool:
        """Return whether a context has another toolchain, or another driver of its device, than is known now."""
        alike = [device for device in self._found(environment, backend) if device.model == context.device]
        if not alike:
            return context.toolchain != fingerprint_digest(self._backend(environment, backend).fingerprint)
        return not any(
            context.toolchain == self._toolchain(environment, backend, device)
            and context.device_fingerprint == fingerprint_digest(device.fingerprint)
            for device in alike
        )

    def digest(self, kernel: KernelInfo, specialized: str) -> str:
        """Return what a kernel means for a specialised problem (canonical text), whose captured inputs belong to it."""
        return with_captured(kernel.digest, self._captured(kernel.name, specialized))

    def device_models(self, environment: Environment | None = None) -> dict[str, set[str]]:
        """Return the devices that are known, of one environment or of all: their models by their names.

        Two backends may know one device by two models.
        """
        reports = self._reports.values() if environment is None else filter(None, [self.report(environment)])
        models: dict[str, set[str]] = {}
        for report in reports:
            for device in report.devices:
                models.setdefault(device.name, set()).add(device.model)
        return models

    def describe(self) -> list[dict[str, Any]]:
        """Return every environment's report, for a status."""
        return [report.to_wire() for report in self._reports.values()]

    @property
    def notices(self) -> list[str]:
        """Differences from config.toml, and reasons why figures are not judged, one line each."""
        return [*self._unknown_names(), *_unjudged(self._reports[key] for key in sorted(self._probed))]

    def _unknown_names(self) -> Iterator[str]:
        backends = [backend for key in self._probed for backend in self._reports[key].backends.values()]
        there = list({device.name: device for backend in backends for device in backend.devices}.values())
        for name in self.chosen if backends else ():
            if not any(is_named(device, name) for device in there):
                listed = ", ".join(f"{device.name} ({device.model})" for device in there) or "none"
                yield f"config.toml: devices names {name!r}, which no backend finds here (there are {listed})"


def _unjudged(reports: Iterable[EnvironmentReport]) -> Iterator[str]:
    for report in reports:
        if report.nvml:
            yield f"who else uses the GPUs is not known to {report.python}, so no timing is judged by it: {report.nvml}"


_UNKNOWN = replies.BackendReport("")


def _is_like(one: Device, other: Device) -> bool:
    """Return whether two devices may share a job's work and each other's winners."""
    return (one.model, one.target, one.fingerprint) == (other.model, other.target, other.fingerprint)


def _difference(here: EnvironmentReport | None, node: replies.ProbeReport) -> dict[str, str]:
    """Return how a node's interpreter differs from this machine's, by what is installed here; nothing if it does not.

    Other distributions that the node has besides are not imported by code that was inspected here.
    """
    if here is None:
        return {"node python": node.version}
    differs = {
        name: node.distributions.get(name, "absent")
        for name, version in here.distributions.items()
        if node.distributions.get(name) != version and name not in _INSTALLERS
    }
    found = {"node packages": fingerprint_digest(differs)} if differs else {}
    return found if node.version == here.version else {**found, "node python": node.version}


_INSTALLERS = frozenset({"pip", "setuptools", "wheel", "uv", "ray", "ktuned_ray"})
"""Distributions that no kernel runs with."""


@lru_cache(MAX_ENVIRONMENTS)
def _environment_key(environment: Environment) -> str:
    key: dict[str, Any] = {"python": environment.python, "env": dict(environment.env)}
    return canonical(key | {"node": environment.node} if environment.node else key)
