"""Questions about an interpreter and its machine.

A *probe* reports the interpreter's backends, their versions and devices, and the files and variables that decide these.

A backend that cannot be imported or probed is reported with its error, and the others are still reported. Devices
belong to a backend. So do two kinds of fingerprints: of everything that decides its artifacts, and for each device, of
everything that decides its measurements.

For the idle policy, the processes that use each GPU are counted.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ktuned.backends import (
    Absent,
    Registry,
    cpu,
    cuda_devices,
    explain_missing_energy,
    gpu_uuids,
    hold_only_context,
    nvml,
)
from ktuned.dependencies import read_installed_versions
from ktuned.ipc import replies, requests
from ktuned.model import Absence, BackendError, BackendReport, Device, Fault
from ktuned.worker import imports
from ktuned.worker.toolchain import ToolchainObservation

ENVIRON = Path("/proc/self/environ")
"""The environment that the process was started with. Plugins change ``os.environ``."""


def probe_interpreter(registry: Registry, request: requests.Probe, environ: Path = ENVIRON) -> replies.ProbeReport:
    """Report every installed backend, search strategy and distribution of this interpreter."""
    # Strategies take a while to import, and nothing else here needs them.
    from ktuned import search

    observation = ToolchainObservation(_read_environment(environ), request.variables, cpu.limits())
    backends = {name: _probe_backend(registry, name, observation) for name in registry.names}
    has_gpu = any(device.kind == "cuda" for report in backends.values() for device in report.devices)
    return replies.ProbeReport(
        sys.version.split()[0],
        backends,
        nvml.explain_absence() if has_gpu else "",
        tuple(search.installed_strategies()),
        observation.report_dependencies(),
        read_installed_versions(),
        sys.executable,
    )


def _read_environment(environ: Path) -> dict[str, str]:
    entries = os.fsdecode(environ.read_bytes()).split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _probe_backend(registry: Registry, name: str, observation: ToolchainObservation) -> BackendReport:
    version = registry.read_version(name)
    required = observation.observe_distribution(registry.find_distribution(name))
    try:
        backend = registry.load(name)
    except BackendError as raised:
        return BackendReport(version, error=Fault(raised.code, raised.message, raised.hint))
    absent: Absence | None = None
    error: Fault | None = None
    devices: tuple[Device, ...] = ()
    fingerprint: dict[str, str] = {}
    try:
        # Observe files before asking for the fingerprint, so that the daemon's next look notices a change in between.
        contents = observation.observe_files(backend.toolchain_files())
        devices_found = backend.devices()
        if isinstance(devices_found, Absent):
            absent = Absence(str(devices_found.reason), devices_found.message, devices_found.hint)
        else:
            variables = observation.find_deciding_variables(backend.measuring_variables)
            devices = tuple(
                replace(
                    device,
                    fingerprint={**device.fingerprint, **observation.find_cpu_limits(device), **variables},
                    no_energy=explain_missing_energy(backend, device),
                )
                for device in devices_found
            )
        variables = observation.find_deciding_variables(backend.compiling_variables)
        fingerprint = {**required, **contents, **variables, **backend.fingerprint()}
    except BackendError as raised:
        error = Fault(raised.code, raised.message, raised.hint)
    except ModuleNotFoundError as raised:
        error = _describe_missing_library(raised, registry.find_plugin_name(name))
    except Exception as raised:
        error = Fault("backend", f"{type(raised).__name__}: {raised}")
    return BackendReport(
        version, fingerprint, backend.group_size, backend.lowers, backend.default_target, devices, absent, error
    )


def _describe_missing_library(error: ModuleNotFoundError, plugin: str) -> Fault:
    """Return the fault of a library that is not installed; the error names a distribution or a module."""
    from importlib.metadata import PackageNotFoundError

    wanted = str(error.name or error)
    # A module's name may not be its distribution's: installing the plugin brings what it requires.
    needed = wanted if isinstance(error, PackageNotFoundError) else plugin
    hint = f"{sys.executable} -m pip install {needed}" if needed else f"install {wanted}"
    return Fault("backend", f"{wanted} is not installed, which this backend needs", hint)


def import_modules_ahead(registry: Registry, request: requests.Prepare) -> replies.Empty:
    """Import the modules that later requests will need, so that a spare can take over without that wait."""
    with imports.pause_garbage_collection():
        backends = [registry.load(name) for name in request.backends]
        if request.modules:
            is_for_gpus = any(backend.default_target.startswith("sm_") for backend in backends)
            holds_context = request.holds_context and is_for_gpus
            # In a thread: the driver takes a quarter of a second, and does not hold the interpreter's lock meanwhile.
            begin = hold_only_context if holds_context else cuda_devices
            threading.Thread(target=begin, daemon=True).start()
        for backend in backends:
            backend.prepare()
        for module in request.modules:
            # torch may not be installed. Then NumPy takes its place.
            with suppress(ModuleNotFoundError):
                __import__(module)
        if request.modules:
            # torch's objects stay for good, and no user code has run yet: exclude them from garbage collections.
            gc.freeze()
    return replies.Empty()


RECENT_US = 5_000_000
"""Age in µs up to which GPU work counts as current; NVML keeps some seconds of samples."""


def count_gpu_users(ours: Iterable[int]) -> replies.GpuUsers:
    """Count the processes, other than ``ours``, that worked on each GPU lately, by the GPU's name.

    Processes of another PID namespace are not counted: they may be ours.
    """
    own_pids = set(ours)
    since_us = time.time_ns() // 1000 - RECENT_US
    try:
        users = {name: len(_find_working_pids(uuid, since_us) - own_pids) for name, uuid in gpu_uuids().items()}
    except nvml.Unavailable as error:
        return replies.GpuUsers({}, str(error))
    # Without GPUs, NVML has not been asked yet, so ask why.
    return replies.GpuUsers(users, "" if users else nvml.explain_absence())


def _find_working_pids(uuid: str, since_us: int) -> set[int]:
    try:
        with nvml.Gpu(uuid) as gpu:
            samples = gpu.read_samples(since_us)
    except nvml.Unsupported:
        # A partition of a GPU does not report its processes.
        return set()
    pids = {sample.pid for sample in samples if sample.percent > 0 and sample.at_us > since_us}
    return {pid for pid in pids if os.path.exists(f"/proc/{pid}")}
