"""The daemon's reader of the spool. Records are untrusted input: any file may lie there.

=====================================================  ================================================================
a file in the spool                                    is treated like this
=====================================================  ================================================================
a record                                               it is read, and removed after it was taken in
counts of launches                                     they are read, and the file is removed
a file that is being written                           it is left alone for an hour, then removed
texts of a call that is not recorded yet               they are left alone for thirty days, then removed
anything else, a file that cannot be read, or a        one notice, and it is removed
record that is too old
a file that cannot even be removed                     a warning in the log, and it is ignored from then on
=====================================================  ================================================================

Notifications report new files, but they may be lost or not be available. So the spool is also read every
:data:`SURVEY_S`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import time

import anyio.to_thread
import msgspec
import structlog

from ktuned.spool import (
    COUNTS_SUFFIX,
    MAX_RECORDS,
    RECORD_SUFFIX,
    STAGED_PREFIX,
    TEXTS_SUFFIX,
    CallRecord,
    InvalidRecord,
    LaunchCounts,
    RefusedFile,
    read_file,
)
from ktuned.watch import DirectoryGone, Notifications, WatchError

_log = structlog.get_logger()

MAX_AGE_S = 30 * 86400.0
"""A record that has waited this long comes from a program that nobody runs any more."""

SURVEY_S = 30.0
"""Interval at which the spool is read without a notification."""

STAGED_S = 3600.0
"""An unfinished file of this age was left by a process that was killed."""

MAX_NOTICES = 20
"""Most refused files in the notices; the log has all of them."""

_STEP_MS = 100


class SpoolReader(msgspec.Struct, eq=False):
    """Reads the files of the spool. A record is returned only once, unless it is put back.

    Attributes:
        directory: The spool's directory.
        notices: A line for each of the last refused files.
    """

    directory: Path
    notices: list[str] = []
    _under_way: set[str] = set()
    _stuck: set[str] = set()

    def make_directory(self) -> None:
        """Make the spool's directory, unless it exists, so that it can be watched."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)

    def read_files(self) -> tuple[list[tuple[str, CallRecord]], list[LaunchCounts]]:
        """Return the new records with their files' names, the oldest first, and the counts of launches."""
        records: list[tuple[str, CallRecord]] = []
        counts: list[LaunchCounts] = []
        for path in _list_oldest_first(self.directory):
            if path.name in self._under_way or path.name in self._stuck:
                continue
            if path.suffix == COUNTS_SUFFIX:
                counts += self._take_in_counts(path)
            elif path.suffix == RECORD_SUFFIX:
                record = self._read_record(path)
                if record is not None:
                    records.append((path.name, record))
            elif path.suffix != TEXTS_SUFFIX and not path.name.startswith(STAGED_PREFIX):
                self.refuse_file(path.name, "it is not a record")
            elif _measure_age_s(path) > (MAX_AGE_S if path.suffix == TEXTS_SUFFIX else STAGED_S):
                self.remove_file(path.name)
        self._under_way |= {name for name, _ in records}
        return records, counts

    def release_file(self, name: str) -> None:
        """Have a record returned again by the next :meth:`read_files`."""
        self._under_way.discard(name)

    def refuse_file(self, name: str, why: str) -> None:
        """Remove a file, with a notice."""
        path = self.directory / name
        line = f"a call that an application left in {path} is not tuned: {why}"
        _log.warning("record_refused", path=str(path), reason=why)
        self.notices = [*self.notices, line][-MAX_NOTICES:]
        self.remove_file(name)

    def remove_file(self, name: str) -> None:
        """Remove a file that is no longer needed."""
        path = self.directory / name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            # It may be a directory. It is ignored from now on.
            self._stuck.add(name)
            _log.warning("remove_record_failed", path=str(path), reason=error.strerror)
        self._under_way.discard(name)

    def _read_record(self, path: Path) -> CallRecord | None:
        try:
            age = _measure_age_s(path)
            record = CallRecord.from_bytes(read_file(path))
        except FileNotFoundError:
            return None
        except (RefusedFile, InvalidRecord) as error:
            self.refuse_file(path.name, str(error))
            return None
        if age > MAX_AGE_S:
            self.refuse_file(path.name, f"it has waited for {age / 86400:.0f} days")
            return None
        return record

    def _take_in_counts(self, path: Path) -> list[LaunchCounts]:
        try:
            counts = LaunchCounts.from_bytes(read_file(path))
        except FileNotFoundError:
            return []
        except (RefusedFile, InvalidRecord) as error:
            self.refuse_file(path.name, str(error))
            return []
        self.remove_file(path.name)
        return [] if path.name in self._stuck else [counts]

    async def watch_directory(self, on_change: Callable[[], None]) -> None:
        """Call ``on_change`` when something happens in the spool, until cancelled."""
        stop = threading.Event()
        try:
            while True:
                await anyio.to_thread.run_sync(self._await_spool_change, stop, abandon_on_cancel=True)
                on_change()
        finally:
            stop.set()

    def _await_spool_change(self, stop: threading.Event) -> None:
        try:
            with Notifications([str(self.directory)], stop) as notifications:
                notifications.wait_for_changes(SURVEY_S, _STEP_MS)
        except (DirectoryGone, WatchError):
            # The survey will find files that arrive meanwhile.
            stop.wait(SURVEY_S)


def _list_oldest_first(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            found = [(entry.stat(follow_symlinks=False).st_mtime_ns, entry.name) for entry in entries]
    except OSError:
        return []
    return [directory / name for _, name in sorted(found)[: 2 * MAX_RECORDS]]


def _measure_age_s(path: Path) -> float:
    try:
        return time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
