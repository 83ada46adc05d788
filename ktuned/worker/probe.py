"""The interpreter's backends, their versions and their devices."""

from __future__ import annotations

import sys

from ktuned.backends import Absent, Registry, nvml
from ktuned.ipc import replies, requests
from ktuned.model import BackendError, Device
from ktuned.worker import bytecode


def probe(registry: Registry) -> replies.ProbeReport:
    """Report every installed backend: one that cannot be imported or probed has an ``error`` and hides no other."""
    # Strategies take a while to import, and no other operation of this module needs them.
    from ktuned import search

    backends = {name: _probe(registry, name) for name in registry.names}
    has_gpu = any(device.kind == "cuda" for report in backends.values() for device in report.devices)
    return replies.ProbeReport(
        sys.version.split()[0], backends, nvml.absence() if has_gpu else "", tuple(search.installed())
    )


def _probe(registry: Registry, name: str) -> replies.BackendReport:
    version = registry.version(name)
    try:
        backend = registry.load(name)
    except BackendError as raised:
        return replies.BackendReport(version, error=replies.Fault(raised.code, raised.message, raised.hint))
    absent: replies.Absence | None = None
    error: replies.Fault | None = None
    devices: tuple[Device, ...] = ()
    fingerprint: dict[str, str] = {}
    try:
        found = backend.devices()
        if isinstance(found, Absent):
            absent = replies.Absence(str(found.reason), found.message, found.hint)
        else:
            devices = tuple(found)
        fingerprint = dict(backend.fingerprint())
    except BackendError as raised:
        error = replies.Fault(raised.code, raised.message, raised.hint)
    except Exception as raised:
        error = replies.Fault("backend", f"{type(raised).__name__}: {raised}")
    return replies.BackendReport(
        version, fingerprint, backend.group_size, backend.default_target, devices, absent, error
    )


def prepare(registry: Registry, request: requests.Prepare) -> replies.Empty:
    """Import what a later request will need, so that a spare takes over without that wait."""
    with bytecode.written():
        for name in request.backends:
            registry.load(name)
        for module in request.modules:
            __import__(module)
    return replies.Empty()
