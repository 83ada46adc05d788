"""What this interpreter can do: its backends, their versions, their devices."""

from __future__ import annotations

import sys
from typing import Any

from ktuned import search
from ktuned.backends import Absent, Registry, nvml
from ktuned.model import BackendError


def probe(registry: Registry) -> dict[str, Any]:
    """Return ``version``, and per installed backend its ``version``, ``fingerprint``, ``devices`` or why it has none.

    A backend that cannot be imported or asked is reported with ``error``; it never hides the others. ``nvml`` says why
    it cannot be told who else uses the GPUs; empty if it can, or if there are none.
    """
    backends = {name: _probe(registry, name) for name in registry.names}
    has_gpu = any(device["name"].startswith("cuda:") for report in backends.values() for device in report["devices"])
    return {
        "version": sys.version.split()[0],
        "strategies": search.installed(),
        "backends": backends,
        "nvml": nvml.absence() if has_gpu else "",
    }


def _probe(registry: Registry, name: str) -> dict[str, Any]:
    report: dict[str, Any] = {
        "version": registry.version(name),
        "fingerprint": {},
        "group_size": 1,
        "target": "",
        "devices": [],
        "absent": None,
        "error": None,
    }
    try:
        backend = registry.load(name)
        report["group_size"] = backend.group_size
        report["target"] = backend.default_target
        found = backend.devices()
        if isinstance(found, Absent):
            report["absent"] = {"reason": str(found.reason), "message": found.message, "hint": found.hint}
        else:
            report["devices"] = [device.to_wire() for device in found]
        report["fingerprint"] = dict(backend.fingerprint())
    except BackendError as error:
        report["error"] = error.to_wire()
    except Exception as error:
        report["error"] = {"code": "backend", "message": f"{type(error).__name__}: {error}", "hint": ""}
    return report


def prepare(registry: Registry, request: dict[str, Any]) -> dict[str, Any]:
    """Import what a later request will need, so that a spare takes over without that wait."""
    for name in request["backends"]:
        registry.load(name)
    for module in request["modules"]:
        __import__(module)
    return {}
