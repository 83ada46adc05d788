"""Trace of a kernel file's own code: the modules, data files and environment variables that it reads as it runs.

Inspection finds what is read when the file is imported. Its functions (``inputs``, ``reference``, ``space``, ...) may
read more when they run, in any later phase. These reads are reported with that phase's reply, so that the daemon learns
of every file on which a result depends.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path

from ktuned.dependencies import ACCESSES, OBSERVER
from ktuned.ipc import ABSENT, DIRECTORY, Places, is_directory_stamp, make_relative, requests, stamps_agree
from ktuned.model import ENVIRONMENT, UNOBSERVED, Observation, digest_variable
from ktuned.worker.trace import EXECUTED, SourceChanged, refresh_observation


class CodeTrace:
    """Collects what the loaded kernel file's code reads besides the files that its kernel names.

    With ``is_declared``, the file itself declares what it depends on, and unobserved reads are not reported.
    """

    def __init__(self, kernel: requests.KernelRef, places: Places, *, is_declared: bool) -> None:
        self._kernel = kernel
        self._root = str(places.locate_root(kernel.project))
        self._is_declared = is_declared
        self._reported: set[str] = set()
        self._extent = 0

    def take_new_observations(self, *, is_data: bool = False) -> tuple[Observation, ...]:
        """Return the entries that are new since the last call, marked with ``is_data`` if they decide a problem's data.

        Raises:
            SourceChanged: a file is not what the kernel was inspected with, or has changed since it was read.
            Untrusted: another user could have written a file.
        """
        ACCESSES.check_trust()
        extent = OBSERVER.extent + ACCESSES.extent
        if extent == self._extent:
            return ()
        self._extent = extent
        opened, imported = ACCESSES.files, OBSERVER.files
        executed = name_files_in_project({path: imported[path] for path in OBSERVER.executed_files}, self._root).keys()
        files = name_files_in_project({**opened, **imported}, self._root)
        for name in files.keys() & self._kernel.digests.keys():
            if not stamps_agree(self._kernel.digests[name], files[name]):
                raise SourceChanged(f"{name} changed after it was inspected")
        # The inspection identifies an executed file by its syntax. If the file was also opened, its text counts.
        texts = name_files_in_project(opened, self._root).keys() & executed
        unknown = {name: one for name, one in files.items() if name in texts or name not in self._kernel.digests}
        entries = make_observations(unknown, self._root, executed - texts, is_data=is_data)
        for entry in entries:
            if refresh_observation(entry, self._root).digest != entry.digest and not entry.name.startswith(ENVIRONMENT):
                raise SourceChanged(f"{entry.name} changed while it was read")
        if not self._is_declared:
            prefix = f"{UNOBSERVED}{self._kernel.version}:"
            entries += [Observation(f"{prefix}{reason}", ABSENT) for reason in ACCESSES.unobserved]
        new_entries = tuple(entry for entry in entries if entry.name not in self._reported)
        self._reported.update(entry.name for entry in new_entries)
        return new_entries


def name_files_in_project(files: Mapping[Path, str], root: str) -> dict[str, str]:
    """Return files by their names in the project. The name of a directory that only has to exist ends in a slash."""
    return {
        f"{make_relative(str(path), root)}/" if is_directory_stamp(digest) else make_relative(str(path), root): digest
        for path, digest in files.items()
        # Leave out directories above the project, which surely exist.
        if digest != DIRECTORY or not f"{root}/".startswith(f"{path}/")
    }


def make_observations(
    files: Mapping[str, str],
    root: str,
    executed: Container[str] = (),
    *,
    is_data: bool = False,
    is_source: bool = False,
) -> list[Observation]:
    """Return the entries of files, and of the environment variables that the kernel file's code has read.

    Args:
        files: the digests that the files were read with, by their names in the project.
        root: the project's directory.
        executed: the names of the files that count by their syntax.
        is_data: whether they were read to make a problem's data.
        is_source: whether they were read to make an artifact.
    """
    entries = []
    for name, digest in sorted(files.items()):
        meaning = EXECUTED if name in executed else ""
        entry = refresh_observation(Observation(name, ABSENT, meaning, is_source=is_source, is_data=is_data), root)
        entries.append(entry if entry.digest == digest else replace(entry, digest=digest, meaning=""))
    for name, value in sorted(ACCESSES.variables.items()):
        entries.append(Observation(ENVIRONMENT + name, digest_variable(value), is_source=is_source, is_data=is_data))
    return entries
