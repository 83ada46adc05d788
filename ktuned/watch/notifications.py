"""Notifications of the file system, by watchfiles: one inotify instance for all directories."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from time import monotonic, time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ktuned.model import FrozenStruct

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

STEP_AT_REST_MS = 100
"""Time between two looks for events: 0.1 % of a core, and a save is seen 100 to 200 ms after it."""

STEP_ACTIVE_MS = 20
"""Time between two looks during a session of edits: 0.4 % of a core, and a save is seen after 20 to 40 ms."""

DEBOUNCE_MS = 300
"""Checkouts touch many files: while new paths turn up in each step, a batch is held back for up to this long."""

STILL_S = 0.02
"""A file whose last write is this old is taken to be complete: there is no event for the end of writing."""

HOLD_S = 1.0
"""After this long, a file that is still written to is processed anyway."""

MAX_LOOKED_AT = 1_000
"""Most paths of a batch that are watched until they are still; a larger batch, as of a checkout, lasts long enough."""

_MODIFIED = 2


class Batch(FrozenStruct):
    """Paths with events; ``moved`` are the paths among them that came or went."""

    paths: frozenset[str] = frozenset()
    moved: frozenset[str] = frozenset()
    is_stopped: bool = False


class WatchError(Exception):
    """A watch could not be set, or has ended; ``reason`` is watchfiles' message."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class DirectoryGone(Exception):
    """A directory vanished before its watch was set, so the set of directories is outdated."""


class Notifications:
    """The watches on a fixed set of directories, which are not recursive; closed at the end of ``with``.

    All calls block. Another thread ends :meth:`wait_for_changes` by setting ``stop``.

    Raises:
        DirectoryGone: one of the directories does not exist.
        WatchError: a watch cannot be set.
    """

    def __init__(self, directories: Sequence[str], stop: threading.Event) -> None:
        self._stop = stop
        self._watches = _open_watches(directories)

    def wait_for_changes(self, timeout_s: float, step_ms: int) -> Batch:
        """Return the events since the last call: a complete batch, or an empty one after ``timeout_s``.

        Raises:
            WatchError: an event could not be read; the watches are dead.
        """
        end = monotonic() + timeout_s
        while True:
            batch = self._next_batch(end - monotonic(), step_ms)
            if batch.paths:
                return self._await_finished_writing(batch, step_ms)
            if batch.is_stopped or monotonic() >= end:
                return batch

    def close(self) -> None:
        """End the watches; their thread and descriptors are gone a moment later."""
        if self._watches is not None:
            self._watches.close()
            self._watches = None

    def _next_batch(self, timeout_s: float, step_ms: int) -> Batch:
        if self._watches is None:
            return Batch(is_stopped=self._stop.wait(max(0.0, timeout_s)))
        try:
            found = self._watches.watch(DEBOUNCE_MS, step_ms, max(1, int(timeout_s * 1000)), self._stop)
        except BaseException as error:
            # A panic of the library is no Exception, so catch everything. No signal is raised in this thread.
            raise WatchError(str(error)) from error
        if isinstance(found, str):
            return Batch(is_stopped=found == "stop")
        paths = frozenset(path for _, path in found)
        return Batch(paths, frozenset(path for change, path in found if change != _MODIFIED))

    def _await_finished_writing(self, batch: Batch, step_ms: int) -> Batch:
        end = monotonic() + HOLD_S
        while monotonic() < end and not batch.is_stopped and _is_written_to(batch):
            batch = _join_batches(batch, self._next_batch(step_ms / 1000, step_ms))
        return batch

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _open_watches(directories: Sequence[str]) -> RustNotify | None:
    # Imported here, in a thread, so that a starting daemon can already answer.
    from watchfiles._rust_notify import RustNotify

    if not directories:
        return None
    try:
        # Do not ignore denied permissions: that would ignore all errors, such as exhausted watches.
        return RustNotify(
            list(directories),
            debug=False,
            force_polling=False,
            poll_delay_ms=0,
            recursive=False,
            ignore_permission_denied=False,
        )
    except FileNotFoundError as error:
        raise DirectoryGone(str(error)) from error
    except BaseException as error:
        raise WatchError(str(error)) from error


def _join_batches(one: Batch, other: Batch) -> Batch:
    return Batch(one.paths | other.paths, one.moved | other.moved, one.is_stopped or other.is_stopped)


def _is_written_to(batch: Batch) -> bool:
    """Return whether a file of a batch changed so recently that its writer may not have finished."""
    if len(batch.paths) > MAX_LOOKED_AT:
        return False
    now = time()
    for path in batch.paths:
        try:
            found = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and now - found.st_ctime < STILL_S:
            return True
    return False
