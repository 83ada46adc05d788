"""Observations of a request: what was read besides the files that its kernel names, and what was in it."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from time import time_ns

from ktuned.dependencies import ACCESSES, OBSERVER, digest_meaning, find_distribution, find_installed_place, find_owners
from ktuned.ipc import (
    ABSENT,
    LISTING,
    Places,
    is_directory_stamp,
    make_absolute,
    make_relative,
    normalize_path,
    requests,
    stamp,
    stamp_directory,
    stamp_files,
    stamps_agree,
    take_sight,
)
from ktuned.model import DISTRIBUTION, ENVIRONMENT, UNOBSERVED, Observation, UsageError, digest_variable

YOUNG_NS = 20_000_000
"""A file whose last change is not older than this when reading begins may have changed meanwhile: two ticks of the
coarsest clock by which Linux stamps files."""

EXECUTED = "executed"
"""As the meaning of an entry that is to be looked at: a file that was executed as Python, and counts by its syntax."""


class SourceChanged(UsageError):
    """A file is no longer what the daemon inspected; the save that changed it starts a new inspection.

    ``observed`` is what was found of names that the daemon does not know yet.
    """

    code = "source_changed"

    def __init__(self, message: str, observed: tuple[Observation, ...] = ()) -> None:
        super().__init__(message)
        self.observed = observed


def look(entry: Observation, root: str) -> Observation:
    """Return an entry with what its name holds now, for the project whose directory is ``root``.

    A file counts by its bytes, unless it had a ``meaning``, or is to get one.
    """
    if entry.name.startswith(ENVIRONMENT):
        # Not as the kernel file's own code has set it: that is code, which counts by itself.
        environment = os.environ if OBSERVER.kernel_file is None else OBSERVER.environ
        value = environment.get(entry.name.removeprefix(ENVIRONMENT))
        return replace(entry, digest=digest_variable(value))
    if entry.name.startswith(UNOBSERVED):
        return entry
    if entry.name.startswith(DISTRIBUTION):
        return _installed(entry, root)
    place = Path(make_absolute(entry.name, root))
    found = stamp_files([place])
    meaning = ""
    digest = found[str(place)]
    if entry.name.endswith("/"):
        digest = stamp_directory(place)
    elif entry.meaning and digest != ABSENT and not digest.startswith(LISTING):
        with ACCESSES.pause_recording():
            content = place.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        meaning = digest_meaning(place, content)
    places = tuple(make_relative(path, root) for path in found)
    return replace(entry, digest=digest, meaning=meaning, places=places)


def _installed(entry: Observation, root: str) -> Observation:
    """Return the entry of a distribution as it is installed now, where it was: another version has another record.

    One that was learned elsewhere is looked for where this interpreter would.
    """
    sites = [str(Path(make_absolute(place, root)).parent.parent) for place in entry.places[:1]] or sys.path
    name = entry.name.removeprefix(DISTRIBUTION)
    owner = next(filter(None, (find_distribution(site, name) for site in sites if site)), None)
    if owner is None:
        return replace(entry, digest=ABSENT, meaning="")
    place = make_relative(str(owner.record), root)
    return replace(entry, digest=stamp(owner.record), meaning=owner.digest_contents(), places=(place,))


class Trace:
    """The files that one request reads, from when this is made on.

    A name that the daemon knows is not looked at: its content is checked with all others of the kernel.
    """

    def __init__(self, kernel: requests.KernelRef, places: Places) -> None:
        self._root = str(places.locate_root(kernel.project))
        self._unobserved = f"{UNOBSERVED}{kernel.version}:"
        self._known = set(kernel.compiled)
        self._home = find_installed_place(str(places.locate_file(kernel.project, kernel.file)))
        self._began_ns = time_ns()
        self._seen: dict[Path, str] = {}
        # Python is compiled from the bytes that were digested; compilers read the others themselves.
        self._compiled = [
            str(places.locate_file(kernel.project, name)) for name in kernel.compiled if not name.endswith(".py")
        ]
        self._sights: dict[str, str] = {}

    def begin_reading(self) -> None:
        """Note how the files look that compilers are known to read: they are about to."""
        self._sights = {path: take_sight(path) for path in self._compiled}

    def is_steady(self, read: Iterable[Path]) -> bool:
        """Return whether these files, read since the beginning, or found absent, are now what they were then.

        One that was written lately is not known to be; after a second reading it is. Of the files that the daemon knows
        none may have been touched since reading began: an edit that was taken back leaves the same bytes behind.
        """
        # Each is looked at, also behind one that is not.
        verdicts = [self._is_steady(path) for path in self._unknown(read).values()]
        return all(verdicts) and all(take_sight(path) == seen for path, seen in self._sights.items())

    def _is_steady(self, path: Path) -> bool:
        now = stamp(path)
        before = self._seen.get(path)
        self._seen[path] = now
        if before is not None:
            return before == now
        try:
            return path.stat().st_ctime_ns < self._began_ns - YOUNG_NS
        except OSError:
            return True

    def fresh(
        self,
        read: Mapping[Path, str],
        variables: Mapping[str, str | None],
        unobserved: Iterable[str],
        executed: Container[Path] = (),
    ) -> tuple[Observation, ...]:
        """Return the entries of what compilers have read, or looked for, and that the daemon does not know.

        ``executed`` are those that were executed, and not read as texts.

        Raises:
            SourceChanged: one has changed since it was found steady.
        """
        found = []
        for name, path in sorted(self._unknown(read).items()):
            place = make_relative(str(path), self._root)
            if is_directory_stamp(read.get(path, ABSENT)):
                name = f"{name}/"
            meaning = EXECUTED if path in executed else ""
            found.append(look(Observation(name, ABSENT, meaning, places=(place,), is_source=True), self._root))
            if not stamps_agree(found[-1].digest, self._seen.get(path, found[-1].digest)):
                raise SourceChanged(f"{path} changed while it was compiled", tuple(found))
        for variable, value in sorted(variables.items()):
            found.append(Observation(ENVIRONMENT + variable, digest_variable(value), is_source=True))
        found += [Observation(f"{self._unobserved}{reason}", ABSENT) for reason in unobserved]
        return tuple(found)

    def _unknown(self, read: Iterable[Path]) -> dict[str, Path]:
        """Return the names that paths count by, each with the file that shows its change.

        What another distribution than the kernel's own has installed counts by that: a library may have thousands of
        headers.
        """
        names: dict[str, Path] = {}
        for path in map(normalize_path, read):
            place = find_installed_place(str(path))
            installed = find_owners(place) if place is not None and place != self._home else ()
            names |= {f"{DISTRIBUTION}{owner.name}": owner.record for owner in installed}
            name = make_relative(str(path), self._root)
            # The project lies in these directories: they are there.
            if not installed and set(name.split("/")) - {"..", "."}:
                names[name] = path
        return {name: path for name, path in names.items() if make_relative(str(path), self._root) not in self._known}
