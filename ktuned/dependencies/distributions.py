"""Installed distributions: those that a package belongs to, and a digest of their files.

Reinstalling or upgrading a distribution changes the directory of packages. So the findings in a directory are cached by
the time of its last change.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from ktuned.dependencies.origin import InstalledPlace, find_installed_place
from ktuned.ipc import stamps
from ktuned.model import FrozenStruct

_INSTALLER_FILES = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json")
"""Files in a distribution's own directory that depend on the installer."""


class Distribution(FrozenStruct):
    """An installed distribution; ``record`` is the file that lists what it installed, or else its metadata."""

    name: str
    version: str
    record: Path

    def digest_contents(self) -> str:
        """Return a digest of the version and of all files that it installed, which is the same on any machine.

        Bytecode, scripts and the installer's own files are left out. It is empty if the record cannot be read.
        """
        try:
            with stamps.pause_recording():
                content = self.record.read_bytes()
        except OSError:
            return ""
        return _digest_contents(self.name, self.version, self.record.name == "RECORD", content)


def find_owners(place: InstalledPlace) -> tuple[Distribution, ...]:
    """Return the distributions that installed a package or module: several if they share a namespace."""
    try:
        changed = os.stat(place.site).st_mtime_ns
    except OSError:
        return ()
    return _find_owners_at(place.site, place.package, changed)


def is_unowned(path: str) -> bool:
    """Return whether a file lies among installed packages but belongs to no distribution."""
    place = find_installed_place(path)
    if place is None or "/__pycache__" in path or path == place.site:
        return False
    if place.top.endswith((".dist-info", ".egg-info")):
        return False
    if not os.path.lexists(f"{place.site}/{place.top}"):
        # The module is absent. If it were put there by hand, it would have no owner.
        return path == f"{place.site}/{place.top}" and path.endswith((".py", *EXTENSION_SUFFIXES))
    return not find_owners(place) and os.path.isfile(path)


def find_record(path: str) -> Path | None:
    """Return the file that stands for a distribution, if a path lies in the directory of its metadata."""
    place = find_installed_place(path)
    if place is None or not place.top.endswith((".dist-info", ".egg-info")):
        return None
    directory = Path(place.site, place.top)
    names = ("RECORD", "installed-files.txt", "METADATA", "PKG-INFO")
    return next((directory / one for one in names if (directory / one).is_file()), directory)


def find_record_owner(path: str) -> Distribution | None:
    """Return the distribution that a file stands for (:func:`find_record`), or None."""
    place = find_installed_place(path)
    if place is None or not place.top.endswith((".dist-info", ".egg-info")):
        return None
    try:
        listed = _list_distributions(place.site, os.stat(place.site).st_mtime_ns)
    except OSError:
        return None
    return next((owner for owner in listed if str(owner.record) == path), None)


def find_distribution(site: str, name: str) -> Distribution | None:
    """Return the distribution with a name that is installed in a directory of packages now, or None."""
    try:
        changed = os.stat(site).st_mtime_ns
    except OSError:
        return None
    return next((found for found in _list_distributions(site, changed) if found.name == name), None)


def read_installed_versions() -> dict[str, str]:
    """Return the version of every distribution that this interpreter finds, by its normalized name."""
    found: dict[str, str] = {}
    for site in filter(None, sys.path):
        with suppress(OSError):
            for one in _list_distributions(site, os.stat(site).st_mtime_ns):
                found.setdefault(_normalize_name(one.name), one.version)
    return found


def find_siblings(place: InstalledPlace) -> frozenset[str]:
    """Return all packages and modules of the distributions to which a package or module belongs."""
    return frozenset(top for owner in find_owners(place) for top in _list_packages(owner.record))


@cache
def _digest_contents(name: str, version: str, is_record: bool, content: bytes) -> str:
    # Imported here, because few workers need it.
    import csv

    total = hashlib.sha256(f"{name} {version}\n".encode())
    if is_record:
        for row in sorted(csv.reader(content.decode("utf-8", "replace").splitlines())):
            if len(row) > 1 and row[1] and not row[0].startswith("..") and not row[0].endswith(_INSTALLER_FILES):
                total.update(f"{row[0]} {row[1]}\n".encode())
    else:
        total.update(content)
    return total.hexdigest()


@cache
def _find_owners_at(site: str, package: str, changed: int) -> tuple[Distribution, ...]:
    # Most packages have their distribution's name. Only the others need a look into every list.
    installed = _list_distributions(site, changed)
    namesakes = [owner for owner in installed if _normalize_name(owner.name) == package.lower()]
    found = [owner for owner in namesakes if package in _list_packages(owner.record)]
    return tuple(found or [owner for owner in installed if package in _list_packages(owner.record)])


def _normalize_name(name: str) -> str:
    return name.lower().replace("-", "_").replace(".", "_")


@cache
def _list_distributions(site: str, changed: int) -> tuple[Distribution, ...]:
    with stamps.pause_recording():
        return tuple(_scan_site(site))


def _scan_site(site: str) -> Iterator[Distribution]:
    for name in sorted(os.listdir(site)):
        stem, suffix = os.path.splitext(name)
        if suffix in (".dist-info", ".egg-info"):
            project, _, version = stem.partition("-")
            yield Distribution(project, version, find_record(f"{site}/{name}/x") or Path(site, name))


@cache
def _list_packages(record: Path) -> frozenset[str]:
    """Return the packages and modules that a distribution installed."""
    try:
        with stamps.pause_recording():
            if record.name != "RECORD":
                return frozenset((record.parent / "top_level.txt").read_text().split())
            lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    firsts = {line.split(",", 1)[0].split("/", 1)[0].strip('"') for line in lines}
    return frozenset(first.partition(".")[0] for first in firsts if not first.endswith((".dist-info", "..")))
