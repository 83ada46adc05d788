"""The machine's devices and toolchains: the devices for a job, and the context of a measurement on them.

All answers are computed from the reports of :class:`~ktuned.devices.environments.Environments`; nothing here starts a
worker. Devices are *alike* if their models, targets, fingerprints and their machines' toolchains are equal. Devices
that are alike share a job's work and each other's winners.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from ktuned.backends import Absence, cpu, install_hint
from ktuned.devices.environment_report import EnvironmentReport, fingerprint_digest
from ktuned.devices.environments import Environments
from ktuned.fleet import Environment
from ktuned.model import (
    ARCHITECTURES,
    BackendError,
    BackendReport,
    Device,
    DeviceModel,
    DeviceName,
    FrozenStruct,
    KernelInfo,
    KeyProblem,
    NotFound,
    Objective,
    Problem,
    Target,
    UsageError,
    is_architecture,
    listed,
    needs_own_launches,
)
from ktuned.store import Context

_SCHEMES = (cpu.TARGET_PREFIX, "sm_")
"""Prefixes of the targets of CPUs and of NVIDIA's GPUs."""


def is_device_named(device: Device, name: str) -> bool:
    """Return whether a name in config.toml's ``devices`` means a device: its name, host, kind, or part of its model."""
    return name in (device.name, device.kind, device.host or None) or name.casefold() in device.model.casefold()


class JobDevices(FrozenStruct):
    """A job's target, and the devices that measure its configs; ``absence`` says why there are none."""

    target: str
    devices: tuple[Device, ...] = ()
    absence: str = ""

    @property
    def representative(self) -> Device:
        """A device that represents all; without devices, a device whose model is the target."""
        return (
            self.devices[0] if self.devices else Device(DeviceName(""), DeviceModel(self.target), Target(self.target))
        )


class Machine:
    """Chooses among the backends and devices of environments.

    Args:
        environments: Their reports.
        arch: The target for backends without a device; empty for the backend's own default.
        chosen: Names of the devices that may be used; all if empty.
    """

    def __init__(
        self,
        environments: Environments,
        *,
        arch: str = "",
        chosen: Sequence[str] = (),
    ) -> None:
        self.environments = environments
        self.arch = arch
        self.chosen = tuple(chosen)

    def list_devices(self, environment: Environment, backend: str) -> list[Device]:
        """Return the devices that a backend may use: this machine's first, then known devices of hosts.

        It is empty if the backend has none, or was not probed yet.
        """
        return [device for device in self._list_found_devices(environment, backend) if self._is_chosen(device)]

    def _list_found_devices(self, environment: Environment, backend: str) -> list[Device]:
        return [
            device
            for site in self.environments.list_known_sites(environment)
            for device in self._get_backend_report(site, backend).devices
        ]

    def _is_chosen(self, device: Device) -> bool:
        return not self.chosen or any(is_device_named(device, name) for name in self.chosen)

    def _is_connected(self, device: Device) -> bool:
        return not device.host or device.host in self.environments.hosts

    def _get_backend_report(self, environment: Environment, backend: str) -> BackendReport:
        """Return the report of a backend; an empty report if nothing is known."""
        report = self.environments.get_report(environment)
        return _UNKNOWN if report is None else report.backends.get(backend, _UNKNOWN)

    def get_group_size(self, environment: Environment, backend: str) -> int:
        """Return the best number of units of a backend for one compile request."""
        return self._get_backend_report(environment, backend).group_size

    def lowers_functions(self, environment: Environment, backend: str) -> bool:
        """Return whether a backend's functions are translated before they are compiled."""
        return self._get_backend_report(environment, backend).lowers

    def choose_target(self, environment: Environment, backend: str) -> str:
        """Return a backend's target here: its first device's target, else ``arch``, else its own default.

        Raises:
            BackendError: it cannot compile here, or there is neither a device nor a target.
        """
        found = self.list_devices(environment, backend) or self._list_found_devices(environment, backend)
        if found:
            return found[0].target
        absence = self._explain_absence(environment, backend)
        known = self._get_backend_report(environment, backend)
        if known.absent is None or known.error is not None or known.absent.reason == Absence.NO_COMPILER:
            raise absence
        if not known.target:
            named = "or name what to compile for: `ktuned tune --compile-only --arch`"
            raise BackendError(absence.message, hint="; ".join(filter(None, (absence.hint, named))))
        return self.arch or known.target

    def check_target(self, environment: Environment, backend: str, wanted: str) -> None:
        """Check a target's prefix, if the prefix of the backend's own targets is a known one.

        Raises:
            UsageError: the target is not for the kind of device, CPU or GPU, that the backend compiles for.
        """
        known: set[str] = {device.target for device in self._list_found_devices(environment, backend)}
        known |= {self._get_backend_report(environment, backend).target} - {""}
        schemes = {scheme for scheme in _SCHEMES for target in known if target.startswith(scheme)}
        if not known or not all(target.startswith(_SCHEMES) for target in known):
            return
        if not wanted.startswith(tuple(schemes)):
            such = ", ".join(sorted(known))
            raise UsageError(f"{backend} compiles for {such}, not for {wanted!r}", hint="leave --arch out")
        if not wanted.startswith(cpu.TARGET_PREFIX) and not is_architecture(wanted):
            raise UsageError(f"there is no GPU architecture {wanted!r} {listed(ARCHITECTURES, near=wanted)}")

    def find_job_devices(
        self, environment: Environment, backend: str, wanted: str, *, compile_only: bool = False
    ) -> JobDevices:
        """Return a job's target, and all devices that may measure its configs.

        Args:
            environment: The job's environment.
            backend: The backend's name.
            wanted: The device's name or model; with ``compile_only`` the target.
            compile_only: Whether nothing is to be measured.

        Raises:
            BackendError: the backend has no device here and cannot compile without one.
            NotFound: it has devices, but not that one.
        """
        if compile_only:
            return JobDevices(wanted)
        devices = self.list_devices(environment, backend)
        if not devices:
            absence = self._explain_absence(environment, backend)
            return JobDevices(self.choose_target(environment, backend), (), absence.message)
        there = [device for device in devices if self._is_connected(device)]
        meant = [device for device in there if wanted in (device.name, device.model)]
        first = meant[0] if meant else self.find_device(environment, backend, wanted)
        if not meant:
            return JobDevices(first.target, (), f"{first.host} is not connected now")
        toolchain = self._digest_toolchain(environment, backend, first)
        alike = [
            other
            for other in there
            if _are_alike(other, first) and self._digest_toolchain(environment, backend, other) == toolchain
        ]
        return JobDevices(first.target, tuple(alike))

    def _digest_toolchain(self, environment: Environment, backend: str, device: Device) -> str:
        """Return the digest of the toolchain on a device's machine."""
        return fingerprint_digest(self._get_backend_report(environment.with_host_of(device), backend).fingerprint)

    def list_compilers(self, environment: Environment, backend: str, toolchain: str) -> list[Environment]:
        """Return the environments whose toolchain has a digest: on this machine first, then on connected hosts."""
        return [
            site
            for site in self.environments.list_sites(environment)
            if fingerprint_digest(self._get_backend_report(site, backend).fingerprint) == toolchain
        ]

    def has_device(self, environment: Environment, backend: str, wanted: str | None) -> bool:
        """Return whether a device with a name or model (None: any device) exists now."""
        return any(
            wanted in (None, device.name, device.model) and self._is_connected(device)
            for device in self.list_devices(environment, backend)
        )

    def find_device(self, environment: Environment, backend: str, wanted: str | None) -> Device:
        """Return the device that a request means: by name (``cpu:0``), by model, or the backend's first.

        Raises:
            BackendError: the backend is missing, or has no device here; the message says why and what to do.
            NotFound: it has devices, but not that one.
        """
        devices = self.list_devices(environment, backend)
        if not devices:
            raise self._explain_absence(environment, backend)
        for device in devices:
            if wanted in (None, device.name, device.model):
                return device
        known = ", ".join(f"{device.name} ({device.model})" for device in devices)
        raise NotFound(f"backend {backend!r} has no device {wanted!r} here", hint=f"it has {known}")

    def _explain_absence(self, environment: Environment, backend: str) -> BackendError:
        report = self.environments.get_report(environment)
        if report is None:
            return BackendError(f"{environment.python}: its backends have not been probed yet")
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
            there = ", ".join(
                f"{device.name} ({device.model})" for device in self._list_found_devices(environment, backend)
            )
            return BackendError(
                f"`devices` in config.toml leaves out all devices of the backend {backend!r}: {there or 'it has none'}",
                hint="name one of them there, or delete `devices`",
            )
        return BackendError(f"backend {backend!r} cannot run here: {reason.message}", hint=reason.hint)

    def build_base_context(self, kernel: KernelInfo, environment: Environment, device: Device) -> Context:
        """Return the context of a measurement that is made now, without the problem."""
        return Context(
            kernel=kernel.name,
            problem=KeyProblem(""),
            device=device.model,
            digest=kernel.digest,
            toolchain=self._digest_toolchain(environment, kernel.backend, device),
            device_fingerprint=fingerprint_digest(device.fingerprint),
        )

    def build_context(self, kernel: KernelInfo, environment: Environment, problem: Problem, device: Device) -> Context:
        """Return the context of a measurement that is made now."""
        base = self.build_base_context(kernel, environment, device)
        return msgspec.structs.replace(base, problem=kernel.make_key_problem(problem))

    def is_outdated(self, environment: Environment, backend: str, context: Context) -> bool:
        """Return whether a context's toolchain, or the driver of its device, differs from the present one."""
        alike = [device for device in self._list_found_devices(environment, backend) if device.model == context.device]
        if not alike:
            return context.toolchain != fingerprint_digest(self._get_backend_report(environment, backend).fingerprint)
        return not any(
            context.toolchain == self._digest_toolchain(environment, backend, device)
            and context.device_fingerprint == fingerprint_digest(device.fingerprint)
            for device in alike
        )

    def list_device_models(self, environment: Environment | None = None) -> dict[str, set[str]]:
        """Return the models of all known devices, of one environment or of all, by the devices' names.

        Two backends may have different models for the same device.
        """
        reports = (
            self.environments.reports
            if environment is None
            else filter(None, [self.environments.get_report(environment)])
        )
        models: dict[str, set[str]] = {}
        for report in reports:
            for device in report.devices:
                models.setdefault(device.name, set()).add(device.model)
        return models

    @property
    def notices(self) -> list[str]:
        """Lines about contradictions to config.toml or the workers' ktuned, and about why timings are not judged."""
        return [
            *self._note_unknown_names(),
            *_note_unjudged_timings(self.environments.probed_reports),
            *self.environments.notices,
        ]

    def _note_unknown_names(self) -> Iterator[str]:
        backends = [backend for report in self.environments.probed_reports for backend in report.backends.values()]
        there = list({device.name: device for backend in backends for device in backend.devices}.values())
        for name in self.chosen if backends else ():
            if not any(is_device_named(device, name) for device in there):
                listed = ", ".join(f"{device.name} ({device.model})" for device in there) or "none"
                yield f"config.toml: devices names {name!r}, which no backend finds here (there are {listed})"


def _note_unjudged_timings(reports: Iterable[EnvironmentReport]) -> Iterator[str]:
    for report in reports:
        if report.nvml:
            yield f"{report.python} cannot see other GPU users, so contention is not detected: {report.nvml}"


_UNKNOWN = BackendReport("")


def _are_alike(one: Device, other: Device) -> bool:
    """Return whether two devices may share a job's work and each other's winners."""
    return (one.model, one.target, one.fingerprint) == (other.model, other.target, other.fingerprint)


def explain_unmeasurable(objective: Objective, device: Device) -> str:
    """Return why a device cannot measure an objective's metric; empty if it can."""
    if not device.no_energy or not needs_own_launches(objective):
        return ""
    return f"unsupported: the objective {objective!r} on {device.name} ({device.model}): {device.no_energy}"
