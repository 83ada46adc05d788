"""The store: all that outlives a daemon, in one SQLite database.

- One thread writes (:mod:`ktuned.store.writer`). An ``async`` method returns when its transaction is on the disk, so
  that nothing is published that a crash could take back. Writes that wait are committed together.
- Reads run on the event loop: each is one query by an index, and takes microseconds. Lists of trials and jobs have a
  limit.
- The database belongs to one daemon at a time. If the file at its path is replaced, nothing is written any more, and
  ``lost`` says so; a damaged database is moved aside when it is opened.
- A row that cannot be decoded is left out and counted (``damaged``); it never makes a query fail.

Each table has a module of its own, with its statements as functions of a connection or a reader; this one gives them a
common face. Tables that only one part of the daemon uses are attributes (``pinned``, ``anchors``, …).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.to_thread
import msgspec

from ktuned.model import (
    FAILURES,
    LATENCY,
    Bits,
    Candidate,
    Config,
    Context,
    DeviceModel,
    Job,
    JobState,
    KernelInfo,
    KnownConfig,
    Objective,
    Outcome,
    Peaks,
    Plan,
    Problem,
    Root,
    StoreError,
    Trial,
    TrialResult,
    UsageError,
    Winner,
    WinnerKey,
    canonical,
)
from ktuned.protocol import ChannelInfo, StoreInfo
from ktuned.store import (
    database_file,
    digest_parts,
    exchange,
    job_writes,
    launches,
    peaks,
    portfolios,
    rows,
    trial_queries,
    trial_writes,
)
from ktuned.store.admissions import Admissions
from ktuned.store.anchors import Anchors
from ktuned.store.captures import CaptureTable
from ktuned.store.faults import database_fault
from ktuned.store.learned import LearnedNames
from ktuned.store.pins import PinnedAnswers
from ktuned.store.portfolios import StoredPortfolio
from ktuned.store.projects import Projects
from ktuned.store.reader import Reader
from ktuned.store.trial_writes import Recovered
from ktuned.store.writer import Writer

T = TypeVar("T")

STORE_NAME = "ktuned.sqlite"
"""The database's file in the state directory."""

_NEWEST_JOBS = "ORDER BY id DESC LIMIT ?"


class Store:
    """The store, open from :meth:`open` to :meth:`close` (or the end of ``async with``).

    ``async`` methods write and return once the disk has it; the others read, in microseconds by an index, from the
    thread of the event loop. Each raises :class:`~ktuned.model.StoreError` when the disk or the database fails; the
    store stays usable, and what was committed stays readable. ``notice`` is a line for the user when opening found
    damage (else ``""``), ``damaged`` one when rows were left out because they cannot be read; ``recovered`` counts what
    a daemon that died had left under way.
    """

    def __init__(self, path: Path, *, vfs: str | None, patience_s: float) -> None:
        self.path = path
        self.recovered = Recovered(0, 0)
        connection, self.notice = database_file.open_for_writing(
            path, vfs=vfs, prepare=self._recover_interrupted, patience_s=patience_s
        )
        try:
            self._reader = Reader(path, vfs=vfs)
        except sqlite3.Error as error:
            connection.close()
            raise database_fault(error, path) from error
        self.pinned = PinnedAnswers(self._reader, self._write_to_disk)
        self.captured = CaptureTable(self._reader, self._write_to_disk)
        self.anchors = Anchors(self._reader, self._write_to_disk)
        self.projects = Projects(self._reader, self._write_to_disk)
        self.admissions = Admissions(self._reader, self._write_to_disk)
        self.learned = LearnedNames(self._reader, self._write_to_disk)
        self._identity = database_file.file_identity(path)
        self._writer = Writer(connection, partial(database_file.reopen_for_writing, path, vfs=vfs))
        self._writer.start_thread()

    @classmethod
    def open(cls, path: Path, *, vfs: str | None = None, patience_s: float = database_file.WRITER_PATIENCE_S) -> Self:
        """Open the database at ``path``, making it and its directory if need be.

        A damaged one is moved aside (see ``notice``). ``vfs`` names one of SQLite's file layers
        (https://www.sqlite.org/vfs.html) instead of its default; ``patience_s`` is how long another
        process may hold it.

        Raises:
            StoreError: no space, read-only, no locks, held by another process, another program's, a newer schema.
        """
        return cls(path, vfs=vfs, patience_s=patience_s)

    def close(self) -> None:
        """Commit what waits, fold the log into the database and end the writer's thread; harmless when repeated."""
        self._writer.stop()
        # The last connection to close removes the log, and only the writer's may.
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
        """Return how much waits to be written and how well writes share their commits."""
        return self._writer.describe_queue()

    def measure_store(self) -> StoreInfo:
        """Return how many rows there are, and their size on the disk; it takes some 10 ms at a million trials."""
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

    def load_absences(self) -> dict[str, float]:
        """Return since when (Unix seconds) the directories of roots are gone, by path."""
        return dict(self._reader.fetch_rows("SELECT path, gone_since FROM roots WHERE gone_since IS NOT NULL"))

    async def save_absences(self, since: Mapping[str, float]) -> None:
        """Remember since when the directories of these roots are gone, and that all others are there."""

        def save(connection: sqlite3.Connection) -> None:
            connection.execute("UPDATE roots SET gone_since = NULL")
            connection.executemany(
                "UPDATE roots SET gone_since = ? WHERE path = ?", [(start, path) for path, start in since.items()]
            )

        await self._write_to_disk(save)

    def load_roots(self) -> list[Root]:
        """Return the watched roots, by path."""
        return self._reader.fetch_values(
            rows.decode_root, "SELECT path, name, python, env, asked_python FROM roots ORDER BY path"
        )

    async def save_kernels(self, infos: Sequence[KernelInfo], removed: Sequence[str] = ()) -> None:
        """Remember kernels as they were last inspected, and drop those whose full names are ``removed``."""
        now = time.time()

        def save(connection: sqlite3.Connection) -> None:
            entries = [(info.name, json.dumps(msgspec.to_builtins(info)), now) for info in infos]
            parts = [(info.name, info.digest, json.dumps(info.parts)) for info in infos]
            connection.executemany("DELETE FROM kernels WHERE name = ?", [(name,) for name in removed])
            connection.executemany("INSERT OR REPLACE INTO kernels (name, info, updated) VALUES (?, ?, ?)", entries)
            digest_parts.keep_digest_parts(connection, parts)

        await self._write_to_disk(save)

    def load_digest_parts(self, kernel: str, digest: str) -> dict[str, str] | None:
        """Return the parts that a kernel's digest was made of, by their labels; ``None`` if they were not kept."""
        return digest_parts.load_digest_parts(self._reader, kernel, digest)

    def load_fingerprint_versions(self, fingerprint: str) -> dict[str, str] | None:
        """Return the versions and flags that a fingerprint's digest stands for; ``None`` if they were not kept."""
        return digest_parts.load_fingerprint_versions(self._reader, fingerprint)

    async def save_versions(self, fingerprints: Mapping[str, Mapping[str, Any]]) -> None:
        """Remember what fingerprints stand for, by their digests."""
        await self._write_to_disk(lambda connection: digest_parts.keep_versions(connection, fingerprints))

    def load_peaks(self) -> dict[DeviceModel, Peaks]:
        """Return the measured limits of each device model."""
        return peaks.all_of(self._reader)

    async def save_peaks(self, found: Peaks) -> None:
        """Keep the limits of a device model."""
        await self._write_to_disk(lambda connection: peaks.save_peaks(connection, found))

    def load_launches(self) -> dict[WinnerKey, int]:
        """Return how often applications have launched each key, whatever the objective."""
        return launches.read_launches(self._reader)

    async def add_launches(self, counts: Mapping[WinnerKey, int], now: float) -> None:
        """Add applications' launches to those that are known."""
        await self._write_to_disk(lambda connection: launches.add_launches(connection, counts, now))

    def load_portfolios(self, kernel: str) -> list[StoredPortfolio]:
        """Return a kernel's portfolios on all devices, by all objectives."""
        return portfolios.load_portfolios(self._reader, kernel)

    async def save_portfolio(self, portfolio: StoredPortfolio) -> None:
        """Keep a portfolio in place of the one before."""
        await self._write_to_disk(lambda connection: portfolios.save_portfolio(connection, portfolio))

    def load_kernels(self) -> list[KernelInfo]:
        """Return all kernels as they were last inspected, by name."""
        return self._reader.fetch_values(rows.decode_kernel, "SELECT name, info FROM kernels ORDER BY name")

    async def save_probe(self, key: str, data: Mapping[str, Any]) -> None:
        """Remember what an interpreter's backends and devices were found to be."""
        values = (key, json.dumps(dict(data)), time.time())
        await self._write_to_disk(
            lambda connection: (
                connection.execute(
                    "INSERT OR REPLACE INTO probes (key, data, updated) VALUES (?, ?, ?)", values
                ).rowcount
            )
        )

    async def check_writable(self) -> None:
        """Write and take back one row.

        Raises:
            StoreError: nothing can be written now.
        """

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO probes (key, data, updated) VALUES ('', '{}', 0)")
            connection.execute("DELETE FROM probes WHERE key = ''")

        await self._write_to_disk(write)

    def load_probes(self) -> dict[str, dict[str, Any]]:
        """Return what was last found, by key."""
        return dict(self._reader.fetch_values(rows.decode_record, "SELECT key, data FROM probes ORDER BY key"))

    async def create_job(
        self, key: WinnerKey, problem: Problem, *, priority: int, reason: str, plan: Plan, now: float
    ) -> Job:
        """Enter a queued job, which measures the whole ``problem`` for the winner of a key, and return it.

        The key's objective is the plan's from then on.
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
        number = await self._write_to_disk(lambda connection: job_writes.create_job(connection, job))
        return replace(job, id=number)

    async def save_pauses(self, devices: Collection[str]) -> None:
        """Remember which device models are paused, and no others."""
        await self._write_to_disk(lambda connection: job_writes.save_pauses(connection, devices))

    def load_pauses(self) -> set[str]:
        """Return the device models that are paused."""
        return {device for (device,) in self._reader.fetch_rows("SELECT device FROM pauses")}

    async def update_job(self, job: Job) -> None:
        """Store all of a job but what it was created with (kernel, problem, device, created).

        Raises:
            NotFound: there is no such job.
        """
        await self._write_to_disk(lambda connection: job_writes.update_job(connection, job))

    def get_job(self, number: int) -> Job | None:
        """Return a job by its id."""
        return self._reader.fetch_value(rows.decode_job, f"{rows.SELECT_JOBS} WHERE id = ?", number)

    def list_jobs(
        self, *, kernel: str | None = None, states: Sequence[JobState] | None = None, limit: int = 200
    ) -> list[Job]:
        """Return jobs, the newest first."""
        where, values = trial_queries.where_clause({"kernel = ?": kernel})
        if states is not None:
            where += f" {'AND' if where else 'WHERE'} state IN ({', '.join('?' * len(states))})"
            values += tuple(states)
        return self._reader.fetch_values(rows.decode_job, f"{rows.SELECT_JOBS} {where} {_NEWEST_JOBS}", *values, limit)

    async def begin_trial(self, context: Context, problem: Problem, job: int, config: Config) -> int:
        """Enter one trial as under way and return its id; see :meth:`begin_trials`."""
        (number,) = await self.begin_trials(context, problem, job, [config])
        return number

    async def begin_trials(self, context: Context, problem: Problem, job: int, configs: Sequence[Config]) -> list[int]:
        """Enter trials as under way and return their ids, in order.

        A config that was tried on this very context has its row used again, under ``job``. A measured one is left
        as it is until :meth:`finish_trial` replaces its figure.

        Raises:
            UsageError: ``context`` is not about ``problem`` (the specialised one).
        """
        if context.problem != canonical(problem):
            raise UsageError(f"{context.kernel}: {canonical(problem)} is not the context's problem {context.problem}")
        now = time.time()
        return await self._write_to_disk(
            lambda connection: trial_writes.begin_trials(connection, context, job, configs, now)
        )

    async def finish_trial(
        self, number: int, result: TrialResult, *, objective: Objective = LATENCY, is_opening: bool = False
    ) -> Winner | None:
        """Store a trial's result; return the winner by an objective if that made or changed it.

        A measured trial wins when it is better than the present winner of its (kernel, problem, device), or that one
        was measured in another context. An incumbent that is measured again stays the winner, with its new figure; one
        with any other outcome is replaced by the best measured trial of its context, which is returned. With none left
        there is no winner any more, and ``None`` is returned: :meth:`get_winner` tells it from "unchanged".
        While its job ``is_opening`` no trial replaces a winner or becomes the first one. A measured trial that is only
        stopped or disturbed when it is measured again keeps its figure. Winners by other objectives stay, unless this
        trial was one and is not measured any more.

        Raises:
            NotFound: there is no such trial.
            UsageError: it is ``measured`` without a finite latency.
        """
        now = time.time()
        return await self._write_to_disk(
            lambda connection: trial_writes.finish_trial(
                connection, number, result, now, objective=objective, is_opening=is_opening
            )
        )

    async def finish_trials(
        self, results: Sequence[tuple[int, TrialResult]], *, objective: Objective = LATENCY, is_opening: bool = False
    ) -> Winner | None:
        """Store trials' results in one transaction, each as :meth:`finish_trial`; return the winner at the end.

        ``None`` is returned if none of them made or changed it.

        Raises:
            NotFound, UsageError: as :meth:`finish_trial`; then none is stored.
        """
        now = time.time()
        return await self._write_to_disk(
            lambda connection: trial_writes.finish_all(
                connection, results, now, objective=objective, is_opening=is_opening
            )
        )

    async def settle_final_round(
        self, results: Sequence[tuple[int, TrialResult]], best: int | None, *, objective: Objective = LATENCY
    ) -> Winner | None:
        """Store what a final round found of each finalist, and make the ``best`` the winner, in one transaction.

        Without a best none is left that may win: the winner is what :meth:`finish_trial` leaves.

        Raises:
            NotFound: there is no such trial.
            UsageError: the best is not ``measured``.
        """
        now = time.time()
        return await self._write_to_disk(
            lambda connection: trial_writes.settle_final_round(connection, results, best, now, objective=objective)
        )

    async def decide_winner(self, number: int, *, objective: Objective = LATENCY, is_final: bool = True) -> Winner:
        """Store a measured trial as the winner by an objective, whatever others have: finally if ``is_final``.

        Raises:
            NotFound: there is no such trial.
            UsageError: it is not ``measured``.
        """
        now = time.time()
        return await self._write_to_disk(
            lambda connection: trial_writes.make_winner(connection, number, now, objective=objective, is_final=is_final)
        )

    async def mark_same_bits(self, context: Context, anchor: Bits) -> None:
        """Note on a context's trials whether they have an anchor's bits; a winner that has not gives way.

        Without any bits none is known to have them.
        """
        now = time.time()
        await self._write_to_disk(lambda connection: trial_writes.mark_same_bits(connection, context, anchor, now))

    async def forget_trials(self, kernel: str, outcome: Outcome | None = None) -> int:
        """Delete a kernel's ended trials, of one outcome or all with its ended jobs; return how many trials.

        A winner among them is followed by the best that stays in its context, if any does.
        """
        now = time.time()
        return await self._write_to_disk(
            lambda connection: trial_writes.forget_trials(connection, kernel, outcome, now)
        )

    async def adopt_winners(self, kernel: str, device: str, offers: Sequence[Winner]) -> int:
        """Make each offer the winner of its problem, whatever there is; return the job that they are trials of."""
        now = time.time()
        return await self._write_to_disk(
            lambda connection: exchange.adopt_winners(connection, kernel, device, offers, now)
        )

    def get_trial(self, number: int) -> Trial | None:
        """Return a trial by its id."""
        return trial_queries.by_id(self._reader, number)

    def known_trial(self, context: Context, config: Config) -> Trial | None:
        """Return the outcome of a config in this very context, if it was tried."""
        return trial_queries.of_config(self._reader, context, config)

    def has_failed(self, context: Context, config: Config) -> bool:
        """Return whether a config is known not to work in this very context."""
        known = self.known_trial(context, config)
        return known is not None and known.outcome in FAILURES

    def best_trials(
        self,
        context: Context,
        limit: int,
        *,
        objective: Objective = LATENCY,
        rounds: int = 0,
        by_energy: bool = False,
    ) -> list[Trial]:
        """Return the measured trials of a context that have an objective's figure, the best first.

        With ``rounds`` only finalists of so many; those by energy are counted apart.
        """
        return trial_queries.find_best_trials(self._reader, context, limit, objective, rounds, by_energy=by_energy)

    def find_twins(self, content: str) -> list[Trial]:
        """Return the newest trials of this content (the detail ``content``) that say what a measurement would."""
        return trial_queries.find_twins(self._reader, content)

    def find_candidates(self, context: Context, limit: int, *, objective: Objective = LATENCY) -> list[Candidate]:
        """Return the measured configs of a context whose bits are known on all inputs, the best first."""
        return trial_queries.find_candidates(self._reader, context, limit, objective)

    def load_past_searches(
        self, context: Context, contexts: int, limit: int, *, objective: Objective = LATENCY
    ) -> list[KnownConfig]:
        """Return what the latest ``contexts`` of a context's kernel, problem and device have found, its own first.

        Of each context the measured configs come first, the best by the objective before the others.
        """
        return trial_queries.find_past_searches(self._reader, context, contexts, limit, objective)

    def measured_configs(self, context: Context, limit: int, *, objective: Objective = LATENCY) -> list[KnownConfig]:
        """Return the measured configs of a context that have an objective's figure, the best first."""
        return trial_queries.find_measured_configs(self._reader, context, limit, objective)

    def failed_configs(self, context: Context, limit: int, *, objective: Objective = LATENCY) -> list[KnownConfig]:
        """Return the configs of a context that ended otherwise than measured, and are not tried again."""
        return trial_queries.find_failed_configs(self._reader, context, limit, objective)

    def list_trials(
        self,
        *,
        kernel: str | None = None,
        problem: str | None = None,
        device: str | None = None,
        outcome: Outcome | None = None,
        job: int | None = None,
        digests: Iterable[str] | None = None,
        before: int | None = None,
        limit: int = 1000,
        order: trial_queries.Order = "newest",
    ) -> list[Trial]:
        """Return trials; ``problem`` is a canonical text, ``digests`` what the kernel may have meant.

        ``newest`` begins with the latest entered (a retried one keeps its place), of those entered ``before`` a trial.
        ``fastest`` leaves out trials without a latency and goes by kernel, problem and device, the fastest of each
        first, and those that were measured to the end before those that were given up.
        """
        wanted = trial_queries.trial_conditions(kernel, problem, device, outcome, job, digests)
        return trial_queries.select_trials(self._reader, {**wanted, "trials.id < ?": before}, limit, order)

    def count_trials(
        self,
        kernel: str,
        problem: str | None,
        device: str | None,
        outcome: Outcome | None,
        job: int | None,
        digests: Iterable[str] | None,
    ) -> int:
        """Return how many trials :meth:`list_trials` would return without a limit; some 30 ms for a million."""
        wanted = trial_queries.trial_conditions(kernel, problem, device, outcome, job, digests)
        return trial_queries.count_trials(self._reader, wanted)

    def list_problems(self, kernel: str) -> list[str]:
        """Return the canonical texts of the problems that a kernel was tried on."""
        found = self._reader.fetch_rows("SELECT DISTINCT problem FROM contexts WHERE kernel = ?", kernel)
        return [problem for (problem,) in found]

    def get_winner(self, key: WinnerKey) -> Winner | None:
        """Return the winner of a key."""
        columns = "winners.kernel, winners.problem, winners.device, winners.objective"
        return self._reader.fetch_value(
            rows.decode_winner, f"{rows.SELECT_WINNERS} WHERE ({columns}) = (?, ?, ?, ?)", *key
        )

    def list_winners(self, kernel: str | None = None) -> list[Winner]:
        """Return all winners, of one kernel or of all, by kernel, problem, device and objective."""
        where, values = trial_queries.where_clause({"winners.kernel = ?": kernel})
        tail = "ORDER BY winners.kernel, winners.problem, winners.device, winners.objective"
        return self._reader.fetch_values(rows.decode_winner, f"{rows.SELECT_WINNERS} {where} {tail}", *values)

    def find_job_of_winner(self, winner: Winner) -> Job | None:
        """Return the job that measured a winner; its problem is the whole one, and the winner's what enters its key."""
        trial = self.get_trial(winner.trial)
        return None if trial is None else self.get_job(trial.job)

    def list_winners_elsewhere(self, kernel: KernelInfo) -> list[Winner]:
        """Return the winners of a kernel's equals: of its short name and its digest, in any other project."""
        short = f":{kernel.kernel}"
        equal = "digest = ? AND kernel <> ? AND substr(kernel, ?) = ?"
        keys = f"SELECT kernel, problem, device FROM contexts WHERE {equal}"
        # The plus keeps SQLite from beginning with all trials of these contexts.
        where = f"WHERE (winners.kernel, winners.problem, winners.device) IN ({keys}) AND +contexts.digest = ?"
        values = kernel.digest, kernel.name, -len(short), short, kernel.digest
        return self._reader.fetch_values(rows.decode_winner, f"{rows.SELECT_WINNERS} {where}", *values)

    def _recover_interrupted(self, connection: sqlite3.Connection) -> None:
        self.recovered = trial_writes.recover_interrupted(connection)

    @property
    def damaged(self) -> str:
        """Notice of rows left out because they cannot be read; ``""`` if none was."""
        return self._reader.damaged

    @property
    def lost(self) -> str:
        """Notice that nothing is stored any more, because the file at the path is another one; else ``""``."""
        if database_file.file_identity(self.path) == self._identity:
            return ""
        return f"the store {self.path} was removed or replaced while it was in use"

    async def _write_to_disk(self, operation: Callable[[sqlite3.Connection], T]) -> T:
        if lost := self.lost:
            # SQLite would go on in a file without a name, which vanishes when it is closed.
            raise StoreError(lost, hint="restart ktuned: it makes a new one, or put it back first")
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
