"""The store: everything that outlives a daemon, in one SQLite database.

- One thread writes (:mod:`ktuned.store.writer`). An ``async`` method returns when its transaction is on the disk, so
  that a crash can never undo anything that was published. Waiting writes are committed together.
- Reads run on the event loop: each is one indexed query that takes microseconds. Lists of trials and jobs have a
  limit.
- The database belongs to one daemon at a time. If the file at its path is replaced, nothing more is written, and
  ``lost`` says so. A damaged database is moved aside when it is opened.
- A row that cannot be decoded is left out and counted (``damaged``); it never makes a query fail.

:mod:`ktuned.store.queries` has all read queries, and :mod:`ktuned.store.writes` the writes of jobs, trials and winners.
Tables that only one part of the daemon uses are attributes (``anchors``, ``projects``, …).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.to_thread
import msgspec
from msgspec.structs import replace

from ktuned.model import (
    LATENCY,
    Bits,
    Config,
    KernelInfo,
    KeyProblem,
    Objective,
    Outcome,
    Peaks,
    Plan,
    Problem,
    StoreError,
    TrialResult,
    UsageError,
    WinnerKey,
    canonical,
)
from ktuned.protocol import ChannelInfo, Job, JobState, Root, StoreInfo
from ktuned.store import database_file, exchange, writes
from ktuned.store.contexts import Context
from ktuned.store.faults import explain_database_error
from ktuned.store.in_hand import InHand, locate_in_hand, take_last_in_hand
from ktuned.store.queries import Queries
from ktuned.store.reader import Reader
from ktuned.store.tables import Admissions, Anchors, LearnedNames, Projects
from ktuned.store.winners import Winner
from ktuned.store.writer import Writer
from ktuned.store.writes import Recovered

T = TypeVar("T")

STORE_NAME = "ktuned.sqlite"
"""The database's file in the state directory."""

MAX_LAUNCHED_KEYS = 10_000
"""Keys whose launches are counted, the most recently launched ones: as many as jobs may wait."""


class Store(Queries):
    """The store, open from :meth:`open` to :meth:`close` (or the end of ``async with``).

    ``async`` methods write, and return once the data is on the disk. The other methods read, on the event loop's
    thread, within microseconds. All raise :class:`~ktuned.model.StoreError` when the disk or the database fails; the
    store stays usable, and committed data stays readable.

    Attributes:
        path: The database's file.
        notice: A line for the user if opening found damage; else empty.
        recovered: Counts the trials and jobs that were under way when the last daemon died.
        in_hand: Records which trials workers have in hand.
        anchors: The chosen anchors.
        projects: The names of projects.
        admissions: Workers' verdicts on configs of constrained spaces.
        learned: The learned names.
    """

    def __init__(self, path: Path, *, vfs: str | None, patience_s: float) -> None:
        self.path = path
        self.recovered = Recovered(0, 0)
        connection, self.notice = database_file.open_for_writing(
            path, vfs=vfs, prepare=self._recover_interrupted, patience_s=patience_s
        )
        try:
            super().__init__(Reader(path, vfs=vfs))
        except sqlite3.Error as error:
            connection.close()
            raise explain_database_error(error, path) from error
        self.in_hand = InHand(locate_in_hand(path), self.list_suspect_ids())
        self.anchors = Anchors(self._reader, self._write_to_disk)
        self.projects = Projects(self._reader, self._write_to_disk)
        self.admissions = Admissions(self._reader, self._write_to_disk)
        self.learned = LearnedNames(self._reader, self._write_to_disk)
        self._identity = database_file.identify_file(path)
        self._writer = Writer(connection, partial(database_file.reopen_for_writing, path, vfs=vfs))
        self._writer.start_thread()

    @classmethod
    def open(cls, path: Path, *, vfs: str | None = None, patience_s: float = database_file.WRITER_PATIENCE_S) -> Self:
        """Open the database at ``path``; create it and its directory if needed. Move a damaged one aside (``notice``).

        Args:
            path: The database's file.
            vfs: One of SQLite's file layers (https://www.sqlite.org/vfs.html) instead of the default.
            patience_s: How long to wait while another process holds the database, in seconds.

        Raises:
            StoreError: no space, read-only, no locks, held by another process, another program's, a newer schema.
        """
        return cls(path, vfs=vfs, patience_s=patience_s)

    def close(self) -> None:
        """Commit waiting writes, merge the log into the database, and end the writer's thread; may be repeated."""
        self._writer.stop()
        self.in_hand.close()
        # The last connection to close removes the log, which only the writer's connection is allowed to do.
        self._reader.close()
        self._writer.connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.close)

    def describe_writer(self) -> ChannelInfo:
        """Return how many writes wait, and how many writes and commits there were."""
        return self._writer.describe_queue()

    def measure_store(self) -> StoreInfo:
        """Return the numbers of rows and their size on the disk; takes some 10 ms with a million trials."""
        ((trials, winners, jobs),) = self._reader.fetch_rows(
            "SELECT (SELECT count(*) FROM trials), (SELECT count(*) FROM winners), (SELECT count(*) FROM jobs)"
        )
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        size = sum(file.stat().st_size for file in files if file.exists())
        return StoreInfo(trials, winners, jobs, size, self.notice)

    async def add_root(self, root: Root) -> None:
        """Remember a watched root, or change the one at its path.

        Raises:
            UsageError: another root has its name.
        """
        await self._write_to_disk(lambda connection: _add_root(connection, root))

    async def remove_root(self, path: str) -> None:
        """Forget a watched root."""
        await self._write_to_disk(
            lambda connection: connection.execute("DELETE FROM roots WHERE path = ?", (path,)).rowcount
        )

    async def save_absences(self, since: Mapping[str, float]) -> None:
        """Store since when the directories of these roots are gone; the directories of all other roots exist."""

        def save(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE roots SET gone_since = NULL")
            connection.executemany(
                "UPDATE roots SET gone_since = ? WHERE path = ?", [(start, path) for path, start in since.items()]
            )

        await self._write_to_disk(save)

    async def save_kernels(self, infos: Sequence[KernelInfo], removed: Sequence[str] = ()) -> None:
        """Store kernels as they were last inspected; drop those whose full names are in ``removed``."""
        now = time.time()

        def save(connection: sqlite3.Connection) -> None:
            entries = [(info.name, json.dumps(msgspec.to_builtins(info)), now) for info in infos]
            parts = [(info.name, info.digest, json.dumps(info.parts)) for info in infos]
            connection.executemany("DELETE FROM kernels WHERE name = ?", [(name,) for name in removed])
            connection.executemany("INSERT OR REPLACE INTO kernels (name, info, updated) VALUES (?, ?, ?)", entries)
            connection.executemany("INSERT OR IGNORE INTO meanings (kernel, digest, parts) VALUES (?, ?, ?)", parts)
            for info in infos:
                writes.forget_unused_meanings(connection, info.name, info.digest)

        await self._write_to_disk(save)

    async def save_digest_parts(self, kernel: str, meanings: Mapping[str, Mapping[str, str]]) -> None:
        """Store the parts that digests of a kernel were made of, by the digests."""
        entries = [(kernel, digest, json.dumps(dict(parts))) for digest, parts in meanings.items()]
        await self._insert("INSERT OR IGNORE INTO meanings (kernel, digest, parts) VALUES (?, ?, ?)", *entries)

    async def save_versions(self, fingerprints: Mapping[str, Mapping[str, Any]]) -> None:
        """Store the versions that fingerprints stand for, by the fingerprints' digests."""
        entries = [
            (digest, json.dumps({name: str(version) for name, version in versions.items()}))
            for digest, versions in fingerprints.items()
        ]
        await self._insert("INSERT OR IGNORE INTO fingerprints (digest, versions) VALUES (?, ?)", *entries)

    async def save_peaks(self, found: Peaks) -> None:
        """Store the measured limits of a device model."""
        text = msgspec.json.encode(found).decode()
        await self._insert("INSERT OR REPLACE INTO peaks VALUES (?, ?)", (found.device, text))

    async def add_launches(self, counts: Mapping[WinnerKey, int], now: float) -> None:
        """Add to the counts of applications' launches; forget the least recently launched of too many keys."""
        entries = [(key.kernel, key.problem, key.device, count, now) for key, count in counts.items()]

        def add(connection: sqlite3.Connection) -> None:
            connection.executemany(
                """INSERT INTO launches (kernel, problem, device, count, updated) VALUES (?, ?, ?, ?, ?)
                ON CONFLICT DO UPDATE SET count = count + excluded.count, updated = excluded.updated""",
                entries,
            )
            connection.execute(
                """DELETE FROM launches WHERE (kernel, problem, device) IN (
                    SELECT kernel, problem, device FROM launches ORDER BY updated DESC LIMIT -1 OFFSET ?)""",
                (MAX_LAUNCHED_KEYS,),
            )

        await self._write_to_disk(add)

    async def save_probe(self, key: str, data: Mapping[str, Any]) -> None:
        """Store the backends and devices that a probe has found in an interpreter."""
        values = (key, json.dumps(dict(data)), time.time())
        await self._insert("INSERT OR REPLACE INTO probes (key, data, updated) VALUES (?, ?, ?)", values)

    async def check_writable(self) -> None:
        """Write one row and delete it again.

        Raises:
            StoreError: nothing can be written now.
        """

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO probes (key, data, updated) VALUES ('', '{}', 0)")
            connection.execute("DELETE FROM probes WHERE key = ''")

        await self._write_to_disk(write)

    async def create_job(
        self, key: WinnerKey, problem: Problem, *, priority: int, reason: str, plan: Plan, now: float
    ) -> Job:
        """Insert a queued job, which measures the whole ``problem`` for the winner of a key, and return it.

        The plan's objective is replaced by the key's.
        """
        job = Job(
            0,
            key.kernel,
            dict(problem),
            key.device,
            JobState.QUEUED,
            priority,
            reason,
            replace(plan, objective=key.objective),
            created=now,
            key_problem=key.problem,
        )
        number = await self._write_to_disk(lambda connection: writes.create_job(connection, job))
        return replace(job, id=number)

    async def save_pauses(self, devices: Collection[str]) -> None:
        """Store the paused device models, in place of those before."""
        await self._write_to_disk(lambda connection: writes.save_pauses(connection, devices))

    async def update_job(self, job: Job) -> None:
        """Store all fields of a job that may change (all but kernel, problem, device and created).

        Raises:
            NotFound: there is no such job.
        """
        await self._write_to_disk(lambda connection: writes.update_job(connection, job))

    async def begin_trial(self, context: Context, problem: Problem, job: int, config: Config) -> int:
        """Insert one trial as under way and return its id; see :meth:`begin_trials`."""
        (number,) = await self.begin_trials(context, problem, job, [config])
        return number

    async def begin_trials(self, context: Context, problem: Problem, job: int, configs: Sequence[Config]) -> list[int]:
        """Insert trials as under way and return their ids, in order.

        If a config was already tried in this very context, its row is reused for ``job``. The row of a measured trial
        stays unchanged until :meth:`finish_trial` replaces its figure.

        Raises:
            UsageError: ``context`` is not about ``problem`` (the specialised one).
        """
        if context.problem != canonical(problem):
            raise UsageError(f"{context.kernel}: {canonical(problem)} is not the context's problem {context.problem}")
        now = time.time()
        return await self._write_to_disk(lambda connection: writes.begin_trials(connection, context, job, configs, now))

    async def finish_trial(
        self, number: int, result: TrialResult, *, objective: Objective = LATENCY, keeps_winner: bool = False
    ) -> Winner | None:
        """Store a trial's result; return the winner by an objective if the result made or changed it.

        - A measured trial becomes the winner of its (kernel, problem, device) if it is better than the present winner,
          or if the present winner was measured in another context. While its job ``keeps_winner``, it does not.
        - If the winner itself was measured again, it stays the winner, with its new figure.
        - If the winner was tried again and ended otherwise, the best measured trial of its context replaces it, and is
          returned. If there is none, the key has no winner any more, and ``None`` is returned, as for "unchanged":
          :meth:`get_winner` tells the two apart.
        - A measured trial that is tried again and only stopped or disturbed keeps its figure.
        - Winners by other objectives stay, unless this trial was one and is not measured any more.

        Raises:
            NotFound: there is no such trial.
            UsageError: it is ``measured`` without a finite latency.
        """
        now = time.time()
        return await self._write_to_disk(
            lambda connection: writes.finish_trial(
                connection, number, result, now, objective=objective, keeps_winner=keeps_winner
            )
        )

    async def finish_trials(
        self, results: Sequence[tuple[int, TrialResult]], *, objective: Objective = LATENCY, keeps_winner: bool = False
    ) -> Winner | None:
        """Store several results in one transaction, each as :meth:`finish_trial`; return the final winner.

        ``None`` is returned if no result made or changed the winner.

        Raises:
            NotFound, UsageError: as :meth:`finish_trial`; then no result is stored.
        """
        now = time.time()
        winner = await self._write_to_disk(
            lambda connection: writes.finish_trials(
                connection, results, now, objective=objective, keeps_winner=keeps_winner
            )
        )
        self.in_hand.let_go([number for number, _ in results])
        return winner

    async def settle_final_round(
        self,
        results: Sequence[tuple[int, TrialResult]],
        best: int | None,
        *,
        objective: Objective = LATENCY,
        is_final: bool = True,
    ) -> Winner | None:
        """Store the finalists' results of a final round and make ``best`` the winner, in one transaction.

        ``is_final`` says that the round has measured the winner.

        If ``best`` is None, no finalist may win, and the results are stored as by :meth:`finish_trial`.

        Raises:
            NotFound: there is no such trial.
            UsageError: the best is not ``measured``.
        """
        now = time.time()
        return await self._write_to_disk(
            lambda connection: writes.settle_final_round(
                connection, results, best, now, objective=objective, is_final=is_final
            )
        )

    async def decide_winner(self, number: int, *, objective: Objective = LATENCY, is_final: bool = True) -> Winner:
        """Make a measured trial the winner by an objective, whatever figures other trials have.

        ``is_final`` marks the winner as decided by a final round.

        Raises:
            NotFound: there is no such trial.
            UsageError: it is not ``measured``.
        """
        now = time.time()
        return await self._write_to_disk(
            lambda connection: writes.make_winner(connection, number, now, objective=objective, is_final=is_final)
        )

    async def mark_same_bits(self, context: Context, anchor: Bits) -> None:
        """Mark a context's trials as having an anchor's bits or not; replace a winner by exact numerics without them.

        If ``anchor`` is empty, no trial is known to have its bits.
        """
        now = time.time()
        await self._write_to_disk(lambda connection: writes.mark_same_bits(connection, context, anchor, now))

    async def forget_trials(
        self, kernel: str, outcome: Outcome | None = None, problem: KeyProblem | None = None, *, digest: str = ""
    ) -> tuple[int, int]:
        """Delete a kernel's ended trials of one outcome, or all of them and its ended jobs; or only of one problem.

        With the kernel's ``digest``, the trials of equal checkouts are deleted, too, because they hold for it.

        Returns the numbers of trials and of winners among them.

        A deleted winner is replaced by the best remaining trial of its context, if there is one.
        """
        now = time.time()
        return await self._write_to_disk(
            lambda connection: writes.forget_trials(connection, kernel, digest, problem, outcome, now)
        )

    async def adopt_winners(self, kernel: str, device: str, offers: Sequence[Winner]) -> int:
        """Make each offer the winner of its problem, in place of any before; return the id of their job."""
        now = time.time()
        return await self._write_to_disk(
            lambda connection: exchange.adopt_winners(connection, kernel, device, offers, now)
        )

    def _recover_interrupted(self, connection: sqlite3.Connection) -> None:
        in_hand = take_last_in_hand(locate_in_hand(self.path))
        self.recovered = writes.recover_interrupted(connection, in_hand, time.time())

    @property
    def damaged(self) -> str:
        """Notice of rows left out because they cannot be read; ``""`` if none was."""
        return self._reader.damaged

    @property
    def lost(self) -> str:
        """Notice that nothing can be stored any more because the file was removed or replaced; else ``""``."""
        if database_file.identify_file(self.path) == self._identity:
            return ""
        return f"the store {self.path} was removed or replaced while it was in use"

    async def _insert(self, statement: str, *entries: tuple[Any, ...]) -> None:
        await self._write_to_disk(lambda connection: connection.executemany(statement, entries).rowcount)

    async def _write_to_disk(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        if lost := self.lost:
            # SQLite would keep writing to the removed file, which vanishes when it is closed.
            raise StoreError(lost, hint="restart ktuned, which makes a new store; or put the old store back first")
        try:
            return await self._writer.write(operation)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._reader.explain_fault(error) from error


def _add_root(connection: sqlite3.Connection, root: Root) -> None:
    other = connection.execute("SELECT path FROM roots WHERE name = ? AND path <> ?", (root.name, root.path)).fetchone()
    if other:
        raise UsageError(
            f"the name {root.name!r} of {root.path} is taken by {other[0]}", hint="give one of them another `name`"
        )
    connection.execute(
        "INSERT OR REPLACE INTO roots (path, name, python, env, asked_python) VALUES (?, ?, ?, ?, ?)",
        (root.path, root.name, root.python, json.dumps(dict(root.env)), root.asked.python),
    )
