"""Installed distributions: the ones that a package belongs to, and the identity of what they installed."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from ktuned.model import Record, record
from ktuned.spec.origin import Installed, installed_in

_BESIDES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
"""Files in a distribution's own directory that depend on its installer."""


@record
class Distribution(Record):
    """An installed distribution; ``record`` is the file that lists what it installed, or its metadata without one."""

    name: str
    version: str
    record: Path

    def identity(self) -> str:
        """Return a digest of the version and of all files that it installed: the same on any machine.

        Compiled bytecode, scripts and what its installer left are no part of it. Empty if it cannot be read.
        """
        try:
            content = self.record.read_bytes()
        except OSError:
            return ""
        return _identity(self.name, self.version, self.record.name == "RECORD", content)


def owners(place: Installed) -> tuple[Distribution, ...]:
    """Return the distributions that installed a package or module: several where they share a namespace."""
    try:
        changed = os.stat(place.site).st_mtime_ns
    except OSError:
        return ()
    return _owners(place.site, place.package, changed)


def is_bare(path: str) -> bool:
    """Return whether a file lies among installed packages and belongs to none."""
    place = installed_in(path)
    if place is None or "/__pycache__" in path or path == place.site:
        return False
    if place.top.endswith((".dist-info", ".egg-info")):
        return False
    if not os.path.lexists(f"{place.site}/{place.top}"):
        # A module that is looked for there, and would be a bare one.
        return path == f"{place.site}/{place.top}" and path.endswith((".py", *EXTENSION_SUFFIXES))
    return not owners(place) and os.path.isfile(path)


def distribution(site: str, name: str) -> Distribution | None:
    """Return the distribution of a name in a directory of packages, if it is installed there now."""
    try:
        changed = os.stat(site).st_mtime_ns
    except OSError:
        return None
    return next((found for found in _installed(site, changed) if found.name == name), None)


def installed_versions() -> dict[str, str]:
    """Return the version of every distribution that this interpreter finds, by its name as it compares."""
    found: dict[str, str] = {}
    for site in filter(None, sys.path):
        with suppress(OSError):
            for one in _installed(site, os.stat(site).st_mtime_ns):
                found.setdefault(one.name.lower().replace("-", "_").replace(".", "_"), one.version)
    return found


def siblings(place: Installed) -> frozenset[str]:
    """Return the other packages and modules that the distributions of one have installed."""
    return frozenset(top for owner in owners(place) for top in _tops(owner.record))


@cache
def _identity(name: str, version: str, is_record: bool, content: bytes) -> str:
    # Not every worker needs it.
    import csv

    total = hashlib.sha256(f"{name} {version}\n".encode())
    if is_record:
        for row in sorted(csv.reader(content.decode("utf-8", "replace").splitlines())):
            if len(row) > 1 and row[1] and not row[0].startswith("..") and not row[0].endswith(_BESIDES):
                total.update(f"{row[0]} {row[1]}\n".encode())
    else:
        total.update(content)
    return total.hexdigest()


@cache
def _owners(site: str, package: str, changed: int) -> tuple[Distribution, ...]:
    found = [owner for owner in _installed(site, changed) if _is_named(owner, package)]
    # Most packages have their distribution's name; to look into the others' lists takes a while.
    return tuple(found or [owner for owner in _installed(site, changed) if package in _tops(owner.record)])


def _is_named(owner: Distribution, package: str) -> bool:
    return owner.name.lower().replace("-", "_").replace(".", "_") == package.lower() and package in _tops(owner.record)


@cache
def _installed(site: str, changed: int) -> tuple[Distribution, ...]:
    return tuple(_distributions(site))


def _distributions(site: str) -> Iterator[Distribution]:
    for name in sorted(os.listdir(site)):
        stem, suffix = os.path.splitext(name)
        if suffix in (".dist-info", ".egg-info"):
            project, _, version = stem.partition("-")
            directory = Path(site, name)
            names = ("RECORD", "installed-files.txt", "METADATA", "PKG-INFO")
            record = next((directory / one for one in names if (directory / one).is_file()), directory)
            yield Distribution(project, version, record)


@cache
def _tops(record: Path) -> frozenset[str]:
    """Return the packages and modules that a distribution installed."""
    try:
        if record.name != "RECORD":
            return frozenset((record.parent / "top_level.txt").read_text().split())
        lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    firsts = {line.split(",", 1)[0].split("/", 1)[0].strip('"') for line in lines}
    return frozenset(first.partition(".")[0] for first in firsts if not first.endswith((".dist-info", "..")))
