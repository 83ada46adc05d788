"""Observation of a toolchain: what a probe's answer depends on, and what of it enters the fingerprints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ktuned.backends import deciding, finding, private
from ktuned.ipc import ABSENT, replies, stamp, take_sight
from ktuned.model import Device

if TYPE_CHECKING:
    from importlib.metadata import Distribution

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_OURS = frozenset({"ktuned", "ktuned-client"})
"""Distributions whose versions say nothing of what is compiled: the way of measuring has a number of its own."""

SHORT = 12
"""Hexadecimal digits of a digest in a fingerprint."""


class Observation:
    """Notes the files, environment variables and limits that one probe depends on.

    ``environment`` is the process's; ``own`` names the variables that the project sets itself, all of which decide.
    """

    def __init__(self, environment: Mapping[str, str], own: Iterable[str], limits: Mapping[str, str]) -> None:
        self._environment = environment
        self._own = private({name: environment[name] for name in own if name in environment})
        self._limits = limits
        self._files: dict[str, str] = {}
        self._patterns: dict[str, None] = {}

    def of_distribution(self, plugin: Distribution | None) -> dict[str, str]:
        """Return the versions of what a plugin requires, or may require and finds; note their records."""
        if plugin is None:
            return {}
        from importlib.metadata import PackageNotFoundError, distribution

        self._note(_record(plugin))
        found = {}
        for line in plugin.requires or ():
            name = _REQUIREMENT.match(line)
            if name is None or name[1] in _OURS:
                continue
            try:
                required = distribution(name[1])
            except PackageNotFoundError:
                continue
            self._note(_record(required))
            found[f"distribution {name[1]}"] = required.version
        return found

    def of_files(self, files: Iterable[Path]) -> dict[str, str]:
        """Return the digests of a toolchain's files, by their names; note them, and those that are absent."""
        found: dict[str, str] = {}
        for path in dict.fromkeys(files):
            self._note(path)
            if self._files[str(path)] != ABSENT and not path.is_symlink():
                found[f"content of {path.name}"] = stamp(path)[:SHORT]
        return found

    def variables(self, patterns: Iterable[str]) -> dict[str, str]:
        """Return the variables that decide: those that a backend's patterns name, and the project's own."""
        listed = tuple(patterns)
        self._patterns |= dict.fromkeys(listed)
        return {**deciding(listed, self._environment), **self._own}

    def on(self, device: Device) -> dict[str, str]:
        """Return the limits that apply to a device: a CPU's cores."""
        return {f"cpu {name}": value for name, value in self._limits.items()} if device.kind == "cpu" else {}

    def report(self) -> replies.ProbeDependencies:
        """Return what was noted."""
        patterns = tuple(self._patterns)
        variables = deciding(patterns, self._environment) | finding(self._environment)
        return replies.ProbeDependencies(self._files, patterns, variables, self._limits)

    def _note(self, path: Path | None) -> None:
        if path is not None:
            self._files.setdefault(str(path), take_sight(str(path)))


def _record(found: Distribution) -> Path | None:
    """Return the file that lists an installed distribution's files, or else the one with its version."""
    place = getattr(found, "_path", None)
    if not isinstance(place, Path):
        return None
    return next((place / name for name in ("RECORD", "METADATA", "PKG-INFO") if (place / name).exists()), None)
