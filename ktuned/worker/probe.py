"""The interpreter's backends, their versions and their devices, and what these answers depend on."""

from __future__ import annotations

import gc
import os
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ktuned.backends import (
    Absent,
    Registry,
    absence_of_energy,
    cpu,
    cuda_devices,
    hold_only_context,
    nvml,
)
from ktuned.dependencies import read_installed_versions
from ktuned.ipc import replies, requests
from ktuned.model import BackendError, Device
from ktuned.worker import imports
from ktuned.worker.toolchain import Observation

ENVIRON = Path("/proc/self/environ")
"""The environment that the process was started with: plugins set variables of their own in ``os.environ``."""


def probe(registry: Registry, request: requests.Probe, environ: Path = ENVIRON) -> replies.ProbeReport:
    """Report every installed backend: one that cannot be imported or probed has an ``error`` and hides no other."""
    # Strategies take a while to import, and no other operation of this module needs them.
    from ktuned import search

    observation = Observation(_environment(environ), request.variables, cpu.limits())
    backends = {name: _probe(registry, name, observation) for name in registry.names}
    has_gpu = any(device.kind == "cuda" for report in backends.values() for device in report.devices)
    return replies.ProbeReport(
        sys.version.split()[0],
        backends,
        nvml.absence() if has_gpu else "",
        tuple(search.installed_strategies()),
        observation.report(),
        read_installed_versions(),
        sys.executable,
    )


def _environment(environ: Path) -> dict[str, str]:
    entries = os.fsdecode(environ.read_bytes()).split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _probe(registry: Registry, name: str, observation: Observation) -> replies.BackendReport:
    version = registry.version(name)
    required = observation.of_distribution(registry.distribution(name))
    try:
        backend = registry.load(name)
    except BackendError as raised:
        return replies.BackendReport(version, error=replies.Fault(raised.code, raised.message, raised.hint))
    absent: replies.Absence | None = None
    error: replies.Fault | None = None
    devices: tuple[Device, ...] = ()
    fingerprint: dict[str, str] = {}
    try:
        # Before the fingerprint: a change between the two shows in the next sight.
        contents = observation.of_files(backend.toolchain_files())
        found = backend.devices()
        if isinstance(found, Absent):
            absent = replies.Absence(str(found.reason), found.message, found.hint)
        else:
            variables = observation.variables(backend.measuring_variables)
            devices = tuple(
                replace(
                    device,
                    fingerprint={**device.fingerprint, **observation.on(device), **variables},
                    no_energy=absence_of_energy(backend, device),
                )
                for device in found
            )
        variables = observation.variables(backend.compiling_variables)
        fingerprint = {**required, **contents, **variables, **backend.fingerprint()}
    except BackendError as raised:
        error = replies.Fault(raised.code, raised.message, raised.hint)
    except ModuleNotFoundError as raised:
        error = _missing(raised, registry.plugin(name))
    except Exception as raised:
        error = replies.Fault("backend", f"{type(raised).__name__}: {raised}")
    return replies.BackendReport(
        version, fingerprint, backend.group_size, backend.lowers, backend.default_target, devices, absent, error
    )


def _missing(error: ModuleNotFoundError, plugin: str) -> replies.Fault:
    """Return the fault of a library that is not installed, which the error names: a distribution or a module."""
    from importlib.metadata import PackageNotFoundError

    wanted = str(error.name or error)
    # A module's distribution may have another name; pip installs what the plugin requires.
    needed = wanted if isinstance(error, PackageNotFoundError) else plugin
    hint = f"{sys.executable} -m pip install {needed}" if needed else f"install {wanted}"
    return replies.Fault("backend", f"{wanted} is not installed, which this backend needs", hint)


def prepare(registry: Registry, request: requests.Prepare) -> replies.Empty:
    """Import what a later request will need, so that a spare takes over without that wait."""
    with imports.without_collections():
        backends = [registry.load(name) for name in request.backends]
        if request.modules:
            is_for_gpus = any(backend.default_target.startswith("sm_") for backend in backends)
            holds_context = request.holds_context and is_for_gpus
            # The driver takes a quarter of a second for each, without the interpreter's lock.
            begin = hold_only_context if holds_context else cuda_devices
            threading.Thread(target=begin, daemon=True).start()
        for backend in backends:
            backend.prepare()
        for module in request.modules:
            # Where torch is not installed, NumPy's arrays take its place.
            with suppress(ModuleNotFoundError):
                __import__(module)
        if request.modules:
            # Torch's objects stay, and no user code has run yet: no search for garbage goes through them, nor the one
            # that comes as soon as it may.
            gc.freeze()
    return replies.Empty()
