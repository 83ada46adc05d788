"""Observation of a toolchain: what a probe's answer depends on, and which part of that enters fingerprints.

The same facts are used twice. A *fingerprint* is a part of artifacts' keys, so it only holds facts that decide what is
compiled or measured: versions, digests of files, values of variables. The *report* tells the daemon how to notice that
the answer may be out of date: by the sights of files, also of absent ones, and the patterns of variables' names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ktuned.backends import digest_own_variables, select_deciding_variables, select_finding_variables
from ktuned.ipc import ABSENT, read_sight_text, replies, stamp
from ktuned.model import Device

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_OURS = frozenset({"ktuned", "ktuned-client"})
"""Distributions whose versions are left out: they do not decide artifacts, and measuring has a version of its own."""

SHORT = 12
"""Hexadecimal digits of a digest in a fingerprint."""


class ToolchainObservation:
    """Collects the files, environment variables and limits that one probe depends on.

    Args:
        environment: the environment that the process was started with.
        project_variables: names of the variables that the project sets itself. All of them enter fingerprints.
        limits: the limits of the CPU, such as its quota of cores.
    """

    def __init__(
        self, environment: Mapping[str, str], project_variables: Iterable[str], limits: Mapping[str, str]
    ) -> None:
        self._environment = environment
        self._project_variables = digest_own_variables(
            {name: environment[name] for name in project_variables if name in environment}
        )
        self._limits = limits
        self._files: dict[str, str] = {}
        self._patterns: dict[str, None] = {}

    def observe_distribution(self, plugin: Distribution | None) -> dict[str, str]:
        """Return the versions of the installed distributions that a plugin requires, or uses optionally."""
        if plugin is None:
            return {}
        from importlib.metadata import PackageNotFoundError, distribution

        self._record_sight(_find_metadata_file(plugin))
        versions = {}
        for line in plugin.requires or ():
            name = _REQUIREMENT.match(line)
            if name is None or name[1] in _OURS:
                continue
            try:
                required = distribution(name[1])
            except PackageNotFoundError:
                continue
            self._record_sight(_find_metadata_file(required))
            versions[f"distribution {name[1]}"] = required.version
        return versions

    def observe_files(self, files: Iterable[Path]) -> dict[str, str]:
        """Return the digests of a toolchain's files by their names; absent files are only observed."""
        digests: dict[str, str] = {}
        for path in dict.fromkeys(files):
            self._record_sight(path)
            if self._files[str(path)] != ABSENT and not path.is_symlink():
                digests[f"content of {path.name}"] = stamp(path)[:SHORT]
        return digests

    def find_deciding_variables(self, patterns: Iterable[str]) -> dict[str, str]:
        """Return the variables that a backend's patterns match, and those of the project."""
        listed = tuple(patterns)
        self._patterns |= dict.fromkeys(listed)
        return {**select_deciding_variables(listed, self._environment), **self._project_variables}

    def find_cpu_limits(self, device: Device) -> dict[str, str]:
        """Return the limits that apply to a device; only CPUs have any."""
        return {f"cpu {name}": value for name, value in self._limits.items()} if device.kind == "cpu" else {}

    def report_dependencies(self) -> replies.ProbeDependencies:
        """Return the files, variables and limits that the daemon has to watch."""
        patterns = tuple(self._patterns)
        variables = select_deciding_variables(patterns, self._environment) | select_finding_variables(self._environment)
        return replies.ProbeDependencies(self._files, patterns, variables, self._limits)

    def _record_sight(self, path: Path | None) -> None:
        if path is not None:
            self._files.setdefault(str(path), read_sight_text(str(path)))


def _find_metadata_file(found: Distribution) -> Path | None:
    """Return the file that lists an installed distribution's files; without one, the file with its version."""
    place = getattr(found, "_path", None)
    if not isinstance(place, Path):
        return None
    return next((place / name for name in ("RECORD", "METADATA", "PKG-INFO") if (place / name).exists()), None)
