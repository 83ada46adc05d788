"""Trace of a request: the files that were read besides those that its kernel names, and what they contained.

Each entry (:class:`~ktuned.model.Observation`) has a name and a digest. The daemon stores them with the result, and can
look again later: if a name has another digest then, the result no longer applies. Names are relative to the project.
Files of an installed distribution are represented by the distribution's record, because a library may have thousands of
headers.

If a file changes while a compiler reads it, the compiler may have read either state. So a file only counts as known if
its last change is older than the reading, or if a second reading finds the same stamp (:meth:`Trace.is_steady`).
"""

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
    read_sight_text,
    requests,
    stamp,
    stamp_directory,
    stamp_files,
    stamps_agree,
)
from ktuned.model import DISTRIBUTION, ENVIRONMENT, UNOBSERVED, Observation, UsageError, digest_variable

YOUNG_NS = 20_000_000
"""A file that was changed this shortly before reading began may have changed during the reading, too: the coarsest
clock by which Linux stamps files has ticks of half this length."""

EXECUTED = "executed"
"""Meaning of an entry before it is looked at: the file was executed as Python, and counts by its syntax."""


class SourceChanged(UsageError):
    """A file has changed since the daemon inspected it. That change starts a new inspection.

    ``observed`` are entries for names that the daemon does not know yet.
    """

    code = "source_changed"

    def __init__(self, message: str, observed: tuple[Observation, ...] = ()) -> None:
        super().__init__(message)
        self.observed = observed


def look_again(entry: Observation, root: str) -> Observation:
    """Return an entry with the present digest of its name, in the project whose directory is ``root``.

    A file counts by its bytes. If the entry has a ``meaning``, the file counts by its syntax if it is Python.
    """
    if entry.name.startswith(ENVIRONMENT):
        # Without changes by the kernel file's own code, because that code is in the digests already.
        environment = os.environ if OBSERVER.kernel_file is None else OBSERVER.environ
        value = environment.get(entry.name.removeprefix(ENVIRONMENT))
        return replace(entry, digest=digest_variable(value))
    if entry.name.startswith(UNOBSERVED):
        return entry
    if entry.name.startswith(DISTRIBUTION):
        return _look_for_distribution(entry, root)
    place = Path(make_absolute(entry.name, root))
    place_stamps = stamp_files([place])
    meaning = ""
    digest = place_stamps[str(place)]
    if entry.name.endswith("/"):
        digest = stamp_directory(place)
    elif entry.meaning and digest != ABSENT and not digest.startswith(LISTING):
        with ACCESSES.pause_recording():
            content = place.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        meaning = digest_meaning(place, content)
    places = tuple(make_relative(path, root) for path in place_stamps)
    return replace(entry, digest=digest, meaning=meaning, places=places)


def _look_for_distribution(entry: Observation, root: str) -> Observation:
    """Return a distribution's entry as it is installed now, in the directory where it was found before.

    If that directory is not known, the distribution is looked for where this interpreter imports from.
    """
    sites = [str(Path(make_absolute(place, root)).parent.parent) for place in entry.places[:1]] or sys.path
    name = entry.name.removeprefix(DISTRIBUTION)
    owner = next(filter(None, (find_distribution(site, name) for site in sites if site)), None)
    if owner is None:
        return replace(entry, digest=ABSENT, meaning="")
    place = make_relative(str(owner.record), root)
    return replace(entry, digest=stamp(owner.record), meaning=owner.digest_contents(), places=(place,))


class Trace:
    """The files that one request reads, from the construction of this object on.

    Names that the daemon knows are left out, because their content is checked with the kernel's other files.
    """

    def __init__(self, kernel: requests.KernelRef, places: Places) -> None:
        self._root = str(places.locate_root(kernel.project))
        self._unobserved = f"{UNOBSERVED}{kernel.version}:"
        self._known = set(kernel.compiled)
        self._known_variables = kernel.variables
        self._home = find_installed_place(str(places.locate_file(kernel.project, kernel.file)))
        self._began_ns = time_ns()
        self._seen: dict[Path, str] = {}
        # Only files that compilers read themselves. Python is compiled from the same bytes that were digested.
        self._compiled = [
            str(places.locate_file(kernel.project, name)) for name in kernel.compiled if not name.endswith(".py")
        ]
        self._sights: dict[str, str] = {}

    def begin_reading(self) -> None:
        """Record the sights of the files that compilers are known to read, just before they are read."""
        self._sights = {path: read_sight_text(path) for path in self._compiled}

    def is_steady(self, read: Iterable[Path]) -> bool:
        """Return whether these files, read or found absent, were surely the same while they were read.

        A file that was written just before is doubtful at first; a second reading settles it. Files that the daemon
        knows must not have been touched at all since reading began, because an edit that was undone leaves equal bytes.
        """
        # Do not stop at the first doubtful file: each has to be stamped now, for the second reading.
        verdicts = [self._is_file_steady(path) for path in self._find_unknown_files(read).values()]
        return all(verdicts) and all(read_sight_text(path) == seen for path, seen in self._sights.items())

    def _is_file_steady(self, path: Path) -> bool:
        now = stamp(path)
        before = self._seen.get(path)
        self._seen[path] = now
        if before is not None:
            return before == now
        try:
            return path.stat().st_ctime_ns < self._began_ns - YOUNG_NS
        except OSError:
            return True

    def list_observations(
        self,
        read: Mapping[Path, str],
        variables: Mapping[str, str | None],
        unobserved: Iterable[str],
        executed: Container[Path] = (),
    ) -> tuple[Observation, ...]:
        """Return entries for the names that compilers have read or looked for and that the daemon does not know.

        Args:
            read: the files with the digests that they were read with, where known.
            variables: the environment variables that were read.
            unobserved: reasons why something may have been read that was not seen.
            executed: files that were executed as Python, and not read as text.

        Raises:
            SourceChanged: a file has changed since it was found steady.
        """
        entries = []
        for name, path in sorted(self._find_unknown_files(read).items()):
            place = make_relative(str(path), self._root)
            if is_directory_stamp(read.get(path, ABSENT)):
                name = f"{name}/"
            meaning = EXECUTED if path in executed else ""
            entries.append(look_again(Observation(name, ABSENT, meaning, places=(place,), is_source=True), self._root))
            if not stamps_agree(entries[-1].digest, self._seen.get(path, entries[-1].digest)):
                raise SourceChanged(f"{path} changed while it was compiled", tuple(entries))
        for variable, value in sorted(variables.items()):
            digest = digest_variable(value)
            if self._known_variables.get(variable) != digest:
                entries.append(Observation(ENVIRONMENT + variable, digest, is_source=True))
        entries += [Observation(f"{self._unobserved}{reason}", ABSENT) for reason in unobserved]
        return tuple(entries)

    def _find_unknown_files(self, read: Iterable[Path]) -> dict[str, Path]:
        """Return the names of paths that the daemon does not know, each with the file to watch for its change.

        A file of an installed distribution goes by that distribution's record, unless it is one of the kernel's own.
        """
        names: dict[str, Path] = {}
        for path in map(normalize_path, read):
            place = find_installed_place(str(path))
            installed = find_owners(place) if place is not None and place != self._home else ()
            names |= {f"{DISTRIBUTION}{owner.name}": owner.record for owner in installed}
            name = make_relative(str(path), self._root)
            # Leave out directories above the project, which surely exist.
            if not installed and set(name.split("/")) - {"..", "."}:
                names[name] = path
        return {name: path for name, path in names.items() if make_relative(str(path), self._root) not in self._known}
