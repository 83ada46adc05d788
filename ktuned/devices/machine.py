"""The machine's devices and toolchains: which of them a job aims at, and the context of a measurement there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from ktuned.backends import Absence, install_hint
from ktuned.devices.environment_report import EnvironmentReport, fingerprint_digest
from ktuned.devices.environments import Environments
from ktuned.fleet import Environment
from ktuned.ipc import replies
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
    Target,
    add_captured,
    canonical,
)


def is_named(device: Device, name: str) -> bool:
    """Return whether a name of config.toml's ``devices`` means a device: its name, its host, its kind, or a part of its
    model.
    """
    return name in (device.name, device.kind, device.host or None) or name.casefold() in device.model.casefold()


class Aim(msgspec.Struct, frozen=True):
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


class Machine:
    """Chooses among the backends and devices of environments.

    ``captured`` returns the digest of the inputs that were captured for a kernel's problem, empty if none were.
    ``arch`` is what is compiled for where a backend has no device (the backend's own default if empty); ``chosen``
    names the devices that may be used (all if empty).
    """

    def __init__(
        self,
        environments: Environments,
        *,
        arch: str = "",
        chosen: Sequence[str] = (),
        captured: Callable[[str, str], str] = lambda kernel, problem: "",
    ) -> None:
        self.environments = environments
        self.arch = arch
        self.chosen = tuple(chosen)
        self._captured = captured

    def devices(self, environment: Environment, backend: str) -> list[Device]:
        """Return the devices that a backend may use, those of this machine first, then those known of other hosts.

        None when it has none, or has not been asked yet.
        """
        return [device for device in self._found(environment, backend) if self._is_chosen(device)]

    def _found(self, environment: Environment, backend: str) -> list[Device]:
        return [
            device
            for site in self.environments.known_sites(environment)
            for device in self._backend(site, backend).devices
        ]

    def _is_chosen(self, device: Device) -> bool:
        return not self.chosen or any(is_named(device, name) for name in self.chosen)

    def _is_there(self, device: Device) -> bool:
        return not device.host or device.host in self.environments.hosts

    def _backend(self, environment: Environment, backend: str) -> replies.BackendReport:
        """Return what is known of a backend; nothing of one that is unknown."""
        report = self.environments.report(environment)
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
            named = "or name what to compile for: `ktuned tune --compile-only --arch`"
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
        there = [device for device in devices if self._is_there(device)]
        meant = [device for device in there if wanted in (device.name, device.model)]
        first = meant[0] if meant else self.device(environment, backend, wanted)
        if not meant:
            return Aim(first.target, (), f"{first.host} is not there now")
        toolchain = self._toolchain(environment, backend, first)
        alike = [
            other
            for other in there
            if _is_like(other, first) and self._toolchain(environment, backend, other) == toolchain
        ]
        return Aim(first.target, tuple(alike))

    def _toolchain(self, environment: Environment, backend: str, device: Device) -> str:
        """Return the digest of the toolchain where a device is."""
        return fingerprint_digest(self._backend(environment.beside(device), backend).fingerprint)

    def compilers(self, environment: Environment, backend: str, toolchain: str) -> list[Environment]:
        """Return where there is a toolchain by its digest: here first, then on the hosts that are there."""
        return [
            site
            for site in self.environments.sites(environment)
            if fingerprint_digest(self._backend(site, backend).fingerprint) == toolchain
        ]

    def has_device(self, environment: Environment, backend: str, wanted: str | None) -> bool:
        """Return whether a device that is wanted (any, without a name or model) is there now."""
        return any(
            wanted in (None, device.name, device.model) and self._is_there(device)
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
        report = self.environments.report(environment)
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
        specialized = canonical(kernel.select_key_values(problem))
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
        return add_captured(kernel.digest, self._captured(kernel.name, specialized))

    def device_models(self, environment: Environment | None = None) -> dict[str, set[str]]:
        """Return the devices that are known, of one environment or of all: their models by their names.

        Two backends may know one device by two models.
        """
        reports = (
            self.environments.reports if environment is None else filter(None, [self.environments.report(environment)])
        )
        models: dict[str, set[str]] = {}
        for report in reports:
            for device in report.devices:
                models.setdefault(device.name, set()).add(device.model)
        return models

    @property
    def notices(self) -> list[str]:
        """Differences from config.toml and from the workers' ktuned, and reasons why figures are not judged."""
        return [*self._unknown_names(), *_unjudged(self.environments.probed), *self.environments.notices]

    def _unknown_names(self) -> Iterator[str]:
        backends = [backend for report in self.environments.probed for backend in report.backends.values()]
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
