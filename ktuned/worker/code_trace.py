"""Trace of a kernel file's own code: the modules, data files and environment variables that it reads as it runs.

Inspection finds what is read when the file is imported. Its functions (``inputs``, ``reference``, ``space``, ...) may
read more when they run, in any later phase. These reads are reported with that phase's reply, so that the daemon learns
of every file on which a result depends.
"""

from __future__ import annotations

from msgspec.structs import replace

from ktuned.dependencies import ACCESSES, OBSERVER
from ktuned.ipc import ABSENT, Places, make_relative, requests, stamps_agree
from ktuned.model import ATTRIBUTES, ENVIRONMENT, UNOBSERVED, Observation
from ktuned.worker.names import locate_file
from ktuned.worker.observations import (
    SourceChanged,
    make_observations,
    name_files_in_project,
    refresh_observation,
)


class CodeTrace:
    """Collects what the loaded kernel file's code reads besides the files that its kernel names.

    With ``is_declared``, the file itself declares what it depends on, and unobserved reads are not reported.
    """

    def __init__(self, kernel: requests.KernelRef, places: Places, *, is_declared: bool) -> None:
        self._kernel = kernel
        self._root = str(places.locate_root(kernel.project))
        self._is_declared = is_declared
        self._reported: set[str] = set()
        self._extent = -1
        self._is_run = False

    def _find_known_stamp(self, name: str) -> str | None:
        """Return the stamp with which a name was inspected, or None if the kernel does not depend on it."""
        path = make_relative(locate_file(name.removesuffix(ATTRIBUTES), self._root), self._root)
        held = self._kernel.digests.get(path)
        return None if name.endswith(ATTRIBUTES) and "|" not in (held or "") else held

    def begin_run(self) -> None:
        """Mark what is read from now on as read by the reference, by checks or launches; known names are reported, too.

        Call this after :meth:`take_new_observations`.
        """
        ACCESSES.begin_run()
        self._is_run = True
        self._extent = -1
        self._reported.clear()

    def take_new_observations(self, *, is_data: bool = False) -> tuple[Observation, ...]:
        """Return what is new since the last call, marked with ``is_data`` if it decides a problem's data.

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
        known = {name: self._find_known_stamp(name) for name in files}
        for name, held in known.items():
            if held is not None and not stamps_agree(held, files[name]):
                raise SourceChanged(f"{name} changed after it was inspected")
        # The inspection identifies an executed file by its syntax. If the file was also opened, its text counts.
        texts = name_files_in_project(opened, self._root).keys() & executed
        unknown = {name: one for name, one in files.items() if name in texts or known[name] is None}
        observations = make_observations(unknown, self._root, executed - texts, is_data=is_data)
        if self._is_run:
            again = name_files_in_project(opened, self._root).keys() - unknown.keys() - executed
            observations = [replace(one, is_run=True) for one in observations]
            observations += [Observation(name, files[name], is_run=True) for name in again]
        for observation in observations:
            if refresh_observation(
                observation, self._root
            ).digest != observation.digest and not observation.name.startswith(ENVIRONMENT):
                raise SourceChanged(f"{observation.name} changed while it was read")
        if not self._is_declared:
            prefix = f"{UNOBSERVED}{self._kernel.version}:"
            observations += [Observation(f"{prefix}{reason}", ABSENT) for reason in ACCESSES.unobserved]
        new_entries = tuple(observation for observation in observations if observation.name not in self._reported)
        self._reported.update(observation.name for observation in new_entries)
        return new_entries
