"""Trace of a compile: the files and variables that compilers have read, and whether they held still meanwhile.

If a file changes while a compiler reads it, the compiler may have read either state. So a file only counts as known if
its last change is older than the reading, or if a second reading finds the same stamp
(:meth:`CompilerTrace.are_files_steady`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from time import time_ns

from ktuned.dependencies import find_installed_place, find_owners, find_record_owner
from ktuned.ipc import (
    ABSENT,
    Places,
    is_directory_stamp,
    make_relative,
    normalize_path,
    read_sight_text,
    requests,
    stamp,
    stamps_agree,
)
from ktuned.model import ATTRIBUTES, DISTRIBUTION, ENVIRONMENT, UNOBSERVED, Observation, digest_variable
from ktuned.worker.names import name_file
from ktuned.worker.observations import EXECUTED, SourceChanged, refresh_observation

YOUNG_NS = 20_000_000
"""A file that was changed this shortly before reading began may have changed during the reading, too: the coarsest
clock by which Linux stamps files has ticks of half this length."""


class CompilerTrace:
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

    def record_input_states(self) -> None:
        """Record the sights of the files that compilers are known to read, just before they are read."""
        self._sights = {path: read_sight_text(path) for path in self._compiled}

    def are_files_steady(self, read: Iterable[Path]) -> bool:
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
        """Return observations for the names that compilers have read or looked for and that the daemon does not know.

        Args:
            read: the files with the digests that they were read with, where known.
            variables: the environment variables that were read.
            unobserved: reasons why something may have been read that was not seen.
            executed: files that were executed as Python, and not read as text.

        Raises:
            SourceChanged: a file has changed since it was found steady.
        """
        observations = []
        for name, path in sorted(self._find_unknown_files(read).items()):
            place = make_relative(str(path), self._root)
            if is_directory_stamp(read.get(path, ABSENT)):
                name = f"{name}/"
            meaning = EXECUTED if path in executed else ""
            observations.append(
                refresh_observation(Observation(name, ABSENT, meaning, places=(place,), is_source=True), self._root)
            )
            if not stamps_agree(observations[-1].digest, self._seen.get(path, observations[-1].digest)):
                raise SourceChanged(f"{path} changed while it was compiled", tuple(observations))
            if bar := read.get(path, ABSENT).partition("|")[1]:
                observations.append(
                    refresh_observation(
                        Observation(f"{name}{ATTRIBUTES}", read[path].partition(bar)[2], is_source=True), self._root
                    )
                )
        for variable, value in sorted(variables.items()):
            digest = digest_variable(value)
            if self._known_variables.get(variable) != digest:
                observations.append(Observation(ENVIRONMENT + variable, digest, is_source=True))
        observations += [Observation(f"{self._unobserved}{reason}", ABSENT) for reason in unobserved]
        return tuple(observations)

    def _find_unknown_files(self, read: Iterable[Path]) -> dict[str, Path]:
        """Return the names of paths that the daemon does not know, each with the file to watch for its change.

        A file of an installed distribution goes by that distribution's record, unless it is one of the kernel's own.
        """
        names: dict[str, Path] = {}
        for path in map(normalize_path, read):
            place = find_installed_place(str(path))
            installed = find_owners(place) if place is not None and place != self._home else ()
            if (listed := find_record_owner(str(path))) is not None:
                installed = (listed,)
            names |= {f"{DISTRIBUTION}{owner.name}": owner.record for owner in installed}
            # Leave out directories above the project, which surely exist.
            if not installed and not f"{self._root}/".startswith(f"{path}/"):
                names[name_file(str(path), self._root)] = path
        return {name: path for name, path in names.items() if make_relative(str(path), self._root) not in self._known}
