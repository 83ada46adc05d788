"""The trials that workers have in hand, in a file beside the database, which the next daemon reads.

A config's code can kill the daemon. An example: a job's sixteen configs are measured in one request, and the seventh
sends SIGKILL to the pid in the lock's file. The next daemon takes the job up again, and would be killed again.

1. Before a worker gets trials, their ids are in the file; once they have ended, they are not. A write that does not
   wait for the disk is enough, because it survives the death of the process: 10 µs, where a commit takes a millisecond.
2. The trials in the file when a daemon dies are *suspects*. A suspect is tried alone: it shares no request, and no
   other suspect is in hand at the same time.
3. So when a daemon dies a second time (:data:`MOST_DEATHS`) with the same trial in hand, that trial is to blame. It is
   quarantined as crashed, and the rest of its job goes on.
4. A job's inputs, reference and space are code, too, and run with or without a trial. While a worker opens them, the
   job itself is in hand. A job that has cost :data:`MOST_DEATHS_OF_JOB` daemons is paused.

A trial during which somebody else kills two daemons is quarantined, too; ``ktuned forget`` lifts that. When the machine
itself goes down, the file may be lost, and nothing is a suspect.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from ktuned.protocol import Trial
from ktuned.store.faults import explain_file_error

MOST_DEATHS = 2
"""Daemons that may die while a worker has the same trial in hand."""

MOST_DEATHS_OF_JOB = 2 * MOST_DEATHS
"""Daemons that may die while a worker has a job or its trials in hand: two configs are quarantined by then."""

PATIENCE_S = 60.0
"""A suspect waits this long for another one, and then is tried beside it."""


def describe_quarantine(trials: Iterable[Trial]) -> list[str]:
    """Return a sentence for each trial that is quarantined because daemons died."""
    return [
        f"{trial.kernel} {' '.join(f'{name}={value}' for name, value in trial.config.items())} is quarantined: "
        f"{trial.message}; `ktuned forget {trial.kernel} --outcome crashed` lifts that"
        for trial in trials
        if trial.detail.failure.deaths
    ]


def locate_in_hand(database: Path) -> Path:
    """Return the file for a database."""
    return database.with_name(f"{database.name}.in-hand")


def take_last_in_hand(path: Path) -> set[int]:
    """Return what workers had in hand when the last daemon died, and forget it: trials, and negative ids of jobs."""
    try:
        found = path.read_bytes()
        path.unlink()
        return set(array("q", found)) - {0}
    except (OSError, ValueError):
        # There was no daemon before, or the file is damaged: nothing is a suspect.
        return set()


class InHand:
    """Records which trials workers have in hand.

    Args:
        path: The file; ``None`` if nothing is recorded.
        suspects: The trials, and the negative ids of the jobs, that a worker had in hand when a daemon died.
    """

    def __init__(self, path: Path | None = None, suspects: Collection[int] = ()) -> None:
        self.suspects = frozenset(suspects)
        self._path = path
        self._file: int | None = None
        self._trials: list[int] = []
        self._length = 0
        self._suspect_lock = anyio.Lock()

    @asynccontextmanager
    async def hold_trials(self, job: int, trials: Collection[int] = ()) -> AsyncIterator[None]:
        """Record that a worker has a job's trials in hand, until the end; wait while it has another suspect.

        Without trials, or with the 0 that stands for a config without a trial, the worker has the job itself in hand.

        Raises:
            StoreError: This cannot be recorded.
        """
        held = [trial for trial in trials if trial] or [-job]
        is_alone = False
        try:
            if not self.suspects.isdisjoint(held):
                with anyio.move_on_after(PATIENCE_S):
                    await self._suspect_lock.acquire()
                    is_alone = True
            self._record([*self._trials, *held])
            try:
                yield
            finally:
                self.let_go(held)
        finally:
            if is_alone:
                self._suspect_lock.release()

    def let_go(self, trials: Collection[int]) -> None:
        """Record that trials have ended."""
        gone = set(trials)
        if not gone.isdisjoint(self._trials):
            self._record([trial for trial in self._trials if trial not in gone])

    def close(self) -> None:
        """Close the file; may be repeated."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _record(self, trials: list[int]) -> None:
        self._trials = trials
        if self._path is None:
            return
        # One write of ids of a fixed width: whenever SIGKILL comes, the file holds whole ids.
        self._length = max(self._length, len(trials))
        entries = array("q", trials + [0] * (self._length - len(trials)))
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.pwrite(self._file, entries, 0)
        except OSError as error:
            raise explain_file_error(error, f"{self._path} cannot be written") from error
