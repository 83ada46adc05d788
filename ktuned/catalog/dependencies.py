"""Index of the files that kernel files depend on, updated by each inspection. No IO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Hashable, Iterable, Mapping
from posixpath import dirname

from ktuned.ipc import LISTING


class Dependents:
    """Inverted index of stamps: from files to the kernels and kernel files that depend on them.

    Looking a file up costs the same for a thousand kernel files as for ten; only a directory is searched for.
    """

    def __init__(self) -> None:
        self._stamps: dict[Hashable, tuple[str, Mapping[str, str]]] = {}
        self._files: dict[str, Counter[str]] = {}
        self._directories: Counter[str] = Counter()

    def set_dependencies(self, owner: Hashable, file: str, stamps: Mapping[str, str]) -> None:
        """Set the paths that an owner depends on; the owner belongs to a kernel file."""
        self.drop_dependencies(owner)
        self._stamps[owner] = (file, stamps)
        for path, held in stamps.items():
            self._files.setdefault(path, Counter())[file] += 1
            self._directories[_directory_to_watch(path, held)] += 1

    def drop_dependencies(self, owner: Hashable) -> None:
        """Forget an owner; harmless when there is none."""
        file, stamps = self._stamps.pop(owner, ("", {}))
        for path, held in stamps.items():
            users = self._files[path]
            users[file] -= 1
            if not users[file]:
                del users[file]
            if not users:
                del self._files[path]
            directory = _directory_to_watch(path, held)
            self._directories[directory] -= 1
            if not self._directories[directory]:
                del self._directories[directory]

    def find_dependents(self, paths: Iterable[str]) -> set[str]:
        """Return the kernel files that depend on any of these files, or on anything below these directories."""
        found: set[str] = set()
        for path in paths:
            found.update(self._files.get(path, ()))
            # A file that comes or goes changes its directory, whose names may count.
            found.update(self._files.get(dirname(path), ()))
            if path in self._directories or any(directory.startswith(f"{path}/") for directory in self._directories):
                below = f"{path}/"
                found.update(file for one, users in self._files.items() if one.startswith(below) for file in users)
        return found

    @property
    def directories(self) -> set[str]:
        """The directories that hold, or would hold, files that kernels depend on."""
        return set(self._directories)

    def list_recorded_stamps(self, files: Container[str] | None) -> set[tuple[str, str]]:
        """Return every path that kernel files (or only these) depend on, with its recorded stamp."""
        return {
            entry
            for file, stamps in self._stamps.values()
            if files is None or file in files
            for entry in stamps.items()
        }


def _directory_to_watch(path: str, held: str) -> str:
    """Return the directory to watch for changes of a path."""
    return path if held.startswith(LISTING) else dirname(path)
