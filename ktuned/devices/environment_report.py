"""The last known report of one interpreter: its backends, or why they cannot be probed, and whether it still holds.

It is kept in the store, and shown by ``status`` and ``backends`` as a map with most of its fields.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from ktuned.backends import deciding, finding
from ktuned.ipc import InvalidMessage, find_changed_file, from_plain, replies, to_plain
from ktuned.model import ENVIRONMENT, Device, Record, canonical, record


@record
class EnvironmentReport(Record):
    """An interpreter and its backends; ``error`` says why the last probe failed, the backends are then older.

    ``version`` is Python's. ``nvml`` says why NVML cannot list the programs on the GPUs, empty if it can;
    ``strategies`` are the installed ones' names, ``observed`` is what the report depends on. ``host`` is where the
    interpreter is, empty for this machine; ``distributions`` are those installed there, by version.
    """

    python: str
    backends: Mapping[str, replies.BackendReport] = dataclasses.field(default_factory=dict)
    error: replies.Fault | None = None
    version: str | None = None
    nvml: str | None = None
    strategies: tuple[str, ...] | None = None
    observed: replies.ProbeDependencies | None = None
    host: str = ""
    distributions: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def devices(self) -> Iterator[Device]:
        """All devices of all backends; two backends may know one device by two models."""
        return (device for backend in self.backends.values() for device in backend.devices)

    def to_json(self) -> dict[str, Any]:
        """Return the map of the store; before the first probe it has no version."""
        report = to_plain(self)
        for name in ("version", "nvml", "strategies", "observed"):
            if report[name] is None:
                del report[name]
        if not self.host:
            del report["host"]
        return report

    def to_wire(self) -> dict[str, Any]:
        """Return the protocol's map: without the hundreds of files that only this machine can compare."""
        report = self.to_json()
        report.pop("observed", None)
        report.pop("distributions", None)
        return report

    @classmethod
    def from_json(cls, report: object) -> EnvironmentReport | None:
        """Rebuild from what the store holds; ``None`` if it cannot be understood, and the next probe replaces it."""
        try:
            return from_plain(cls, report)
        except InvalidMessage:
            return None


def difference(
    observed: replies.ProbeDependencies | None, variables: Mapping[str, str], limits: Mapping[str, str]
) -> str:
    """Return the first thing that a report depends on and that is another one now; nothing while it holds.

    ``variables`` and ``limits`` are those that a worker would have now. Takes some 2 µs for each file.
    """
    if observed is None:
        return "its toolchain was never looked at"
    if changed := find_changed_file(observed.files):
        return f"{changed} changed"
    present = deciding(observed.patterns, variables) | finding(variables)
    for name in sorted({*present, *observed.variables}):
        if present.get(name) != observed.variables.get(name):
            return f"the environment variable {name.removeprefix(ENVIRONMENT)} changed"
    if limits != observed.limits:
        return "the CPUs that it may use changed"
    return ""


def fingerprint_digest(fingerprint: Mapping[str, Any]) -> str:
    """Return the short text that stands for a fingerprint in keys."""
    return hashlib.sha256(canonical(fingerprint).encode()).hexdigest()[:16]


def difference_of_host(here: EnvironmentReport | None, there: replies.ProbeReport) -> dict[str, str]:
    """Return how a host's interpreter differs from this machine's, by what is installed here; nothing if it does not.

    Other distributions that the host has besides are not imported by code that was inspected here.
    """
    if here is None:
        return {"host python": there.version}
    differs = {
        name: there.distributions.get(name, "absent")
        for name, version in here.distributions.items()
        if there.distributions.get(name) != version and name not in _INSTALLERS
    }
    found = {"host packages": fingerprint_digest(differs)} if differs else {}
    return found if there.version == here.version else {**found, "host python": there.version}


_INSTALLERS = frozenset({"pip", "setuptools", "wheel", "uv"})
"""Distributions that no kernel runs with."""
