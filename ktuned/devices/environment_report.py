"""The last known report of one interpreter: its backends, or why they cannot be probed, and whether it still holds.

The store keeps it; ``status`` and ``backends`` show most of its fields.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from ktuned.backends import select_deciding_variables, select_finding_variables
from ktuned.ipc import find_changed_file, replies
from ktuned.model import ENVIRONMENT, Device, canonical
from ktuned.protocol import EnvironmentInfo


class EnvironmentReport(EnvironmentInfo, omit_defaults=True):
    """What is known of an interpreter, with what the report depends on and the distributions installed there."""

    observed: replies.ProbeDependencies | None = None
    distributions: Mapping[str, str] = {}

    @property
    def devices(self) -> Iterator[Device]:
        """All devices of all backends. Two backends may have different models for the same device."""
        return (device for backend in self.backends.values() for device in backend.devices)


def find_difference(
    observed: replies.ProbeDependencies | None, variables: Mapping[str, str], limits: Mapping[str, str]
) -> str:
    """Return the first change in what a report depends on, as a line; empty while the report holds.

    Takes some 2 µs for each file.

    Args:
        observed: What the report depends on.
        variables: The environment that a worker would have now.
        limits: The limits of CPUs that a worker would have now.
    """
    if observed is None:
        return "its toolchain was never probed"
    if changed := find_changed_file(observed.files):
        return f"{changed} changed"
    present = select_deciding_variables(observed.patterns, variables) | select_finding_variables(variables)
    for name in sorted({*present, *observed.variables}):
        if present.get(name) != observed.variables.get(name):
            return f"the environment variable {name.removeprefix(ENVIRONMENT)} changed"
    if limits != observed.limits:
        # Name both sides, so that another difference later does not look like the same one.
        before, now = _describe_limits(observed.limits), _describe_limits(limits)
        return f"the CPUs that it may use changed from {before} to {now}"
    return ""


def _describe_limits(limits: Mapping[str, str]) -> str:
    return " and ".join(f"{name} {value}" for name, value in sorted(limits.items())) or "all"


def fingerprint_digest(fingerprint: Mapping[str, Any]) -> str:
    """Return the digest of a fingerprint, which is used in keys."""
    return hashlib.sha256(canonical(fingerprint).encode()).hexdigest()[:16]


def find_host_difference(here: EnvironmentReport | None, there: replies.ProbeReport) -> dict[str, str]:
    """Return how a host's installed distributions differ from this machine's; empty if they do not.

    Distributions that only the host has do not count, because code that was inspected here does not import them.
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
"""Distributions that no kernel imports."""
