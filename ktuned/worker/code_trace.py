"""Observations of a kernel file's own code: modules, data files and variables that it reached in a phase."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path

from ktuned.dependencies import ACCESSES, OBSERVER
from ktuned.ipc import ABSENT, DIRECTORY, Places, is_directory_stamp, make_relative, requests, stamps_agree
from ktuned.model import ENVIRONMENT, UNOBSERVED, Observation, digest_variable
from ktuned.worker.trace import EXECUTED, SourceChanged, look


class CodeTrace:
    """Trace of what the loaded kernel file's code reaches besides the files that its kernel names, phase by phase."""

    def __init__(self, kernel: requests.KernelRef, places: Places, *, is_declared: bool) -> None:
        self._kernel = kernel
        self._root = str(places.locate_root(kernel.project))
        self._is_declared = is_declared
        self._reported: set[str] = set()
        self._extent = 0

    def fresh(self, *, is_data: bool = False) -> tuple[Observation, ...]:
        """Return the entries that are new since the last call; ``is_data`` if they decide a problem's data.

        Raises:
            SourceChanged: a file is not what the kernel was inspected with, or has changed since it was read.
            Untrusted: another user could have written one.
        """
        ACCESSES.check_trust()
        extent = OBSERVER.extent + ACCESSES.extent
        if extent == self._extent:
            return ()
        self._extent = extent
        opened, imported = ACCESSES.files, OBSERVER.files
        executed = names_of({path: imported[path] for path in OBSERVER.executed_files}, self._root).keys()
        files = names_of({**opened, **imported}, self._root)
        for name in files.keys() & self._kernel.digests.keys():
            if not stamps_agree(self._kernel.digests[name], files[name]):
                raise SourceChanged(f"{name} changed after it was inspected")
        # Of what was executed, the inspection knows the syntax alone: one that was opened is read as a text.
        texts = names_of(opened, self._root).keys() & executed
        unknown = {name: one for name, one in files.items() if name in texts or name not in self._kernel.digests}
        found = entries(unknown, self._root, executed - texts, is_data=is_data)
        for entry in found:
            if look(entry, self._root).digest != entry.digest and not entry.name.startswith(ENVIRONMENT):
                raise SourceChanged(f"{entry.name} changed while it was read")
        if not self._is_declared:
            prefix = f"{UNOBSERVED}{self._kernel.version}:"
            found += [Observation(f"{prefix}{reason}", ABSENT) for reason in ACCESSES.unobserved]
        news = tuple(entry for entry in found if entry.name not in self._reported)
        self._reported.update(entry.name for entry in news)
        return news


def names_of(files: Mapping[Path, str], root: str) -> dict[str, str]:
    """Return files by their names in the project; a directory that only has to be there ends in a slash."""
    return {
        f"{make_relative(str(path), root)}/" if is_directory_stamp(digest) else make_relative(str(path), root): digest
        for path, digest in files.items()
        # The project lies in the others, which are there.
        if digest != DIRECTORY or not f"{root}/".startswith(f"{path}/")
    }


def entries(
    files: Mapping[str, str],
    root: str,
    executed: Container[str] = (),
    *,
    is_data: bool = False,
    is_source: bool = False,
) -> list[Observation]:
    """Return a trace's entries of files, by their names in the project, and of the variables that its code has read.

    ``executed`` are those that count by their syntax. The digests are those that the files were read with; what they
    hold now may be something else.
    """
    found = []
    for name, digest in sorted(files.items()):
        meaning = EXECUTED if name in executed else ""
        entry = look(Observation(name, ABSENT, meaning, is_source=is_source, is_data=is_data), root)
        found.append(entry if entry.digest == digest else replace(entry, digest=digest, meaning=""))
    for name, value in sorted(ACCESSES.variables.items()):
        found.append(Observation(ENVIRONMENT + name, digest_variable(value), is_source=is_source, is_data=is_data))
    return found
