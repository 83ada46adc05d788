"""All that is asked of a store: each question is one query by an index, and takes microseconds unless it says more.

The daemon's :class:`~ktuned.store.database.Store` answers them, and an :class:`~ktuned.store.overview.Overview` in
another process. A row that cannot be decoded is left out (:mod:`ktuned.store.reader`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ktuned.model import (
    FAILURES,
    LATENCY,
    RETRIED_BY_NEXT_JOB,
    Candidate,
    Config,
    Context,
    DeviceModel,
    Job,
    JobState,
    KernelInfo,
    KernelName,
    KeyProblem,
    KnownConfig,
    Objective,
    Outcome,
    Peaks,
    Root,
    Trial,
    Winner,
    WinnerKey,
    canonical,
)
from ktuned.store import rows
from ktuned.store.reader import Reader
from ktuned.store.rows import StoredPortfolio

MAX_TWINS = 8
"""Trials of one content that are looked at: each had read other data."""

Order = Literal["newest", "fastest"]

_OF_CONTEXT = f"WHERE ({rows.CONTEXT_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?)"


class Queries:
    """The questions to a store, by their subjects: what the last daemon knew, jobs, trials, winners.

    Raises:
        StoreError: the disk or the database fails; each question may.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    # What the last daemon knew

    def load_roots(self) -> list[Root]:
        """Return the watched roots, by path."""
        return self._reader.fetch_values(
            rows.decode_root, "SELECT path, name, python, env, asked_python FROM roots ORDER BY path"
        )

    def load_absences(self) -> dict[str, float]:
        """Return since when (Unix seconds) the directories of roots are gone, by path."""
        return dict(self._reader.fetch_rows("SELECT path, gone_since FROM roots WHERE gone_since IS NOT NULL"))

    def load_kernels(self) -> list[KernelInfo]:
        """Return all kernels as they were last inspected, by name."""
        return self._reader.fetch_values(rows.decode_kernel, "SELECT name, info FROM kernels ORDER BY name")

    def load_probes(self) -> dict[str, dict[str, Any]]:
        """Return what interpreters' backends and devices were last found to be, by key."""
        return dict(self._reader.fetch_values(rows.decode_record, "SELECT key, data FROM probes ORDER BY key"))

    def load_digest_parts(self, kernel: str, digest: str) -> dict[str, str] | None:
        """Return the parts that a kernel's digest was made of, by their labels; ``None`` if they were not kept."""
        select = "SELECT digest, parts FROM meanings WHERE kernel = ? AND digest = ?"
        found = self._reader.fetch_value(rows.decode_record, select, kernel, digest)
        return found and found[1]

    def load_fingerprint_versions(self, fingerprint: str) -> dict[str, str] | None:
        """Return the versions and flags that a fingerprint's digest stands for; ``None`` if they were not kept."""
        select = "SELECT digest, versions FROM fingerprints WHERE digest = ?"
        found = self._reader.fetch_value(rows.decode_record, select, fingerprint)
        return found and found[1]

    def load_peaks(self) -> dict[DeviceModel, Peaks]:
        """Return the measured limits of each device model."""
        found = self._reader.fetch_values(rows.decode_peaks, "SELECT device, figures FROM peaks ORDER BY device")
        return {peaks.device: peaks for peaks in found}

    def load_launches(self) -> dict[WinnerKey, int]:
        """Return how often applications have launched each key, whatever the objective; the latest at the end."""
        found = self._reader.fetch_rows("SELECT kernel, problem, device, count FROM launches ORDER BY updated")
        return {
            WinnerKey(KernelName(kernel), KeyProblem(problem), DeviceModel(device)): count
            for kernel, problem, device, count in found
        }

    def load_portfolios(self, kernel: str | None = None) -> list[StoredPortfolio]:
        """Return the portfolios of a kernel, or of all, on all devices, by all objectives."""
        where, values = _make_where({"kernel = ?": kernel})
        return self._reader.fetch_values(
            rows.decode_portfolio, f"SELECT * FROM portfolios {where} ORDER BY kernel, device, objective", *values
        )

    # Jobs

    def load_pauses(self) -> set[str]:
        """Return the device models that are paused."""
        return {device for (device,) in self._reader.fetch_rows("SELECT device FROM pauses")}

    def get_job(self, number: int) -> Job | None:
        """Return a job by its id."""
        return self._reader.fetch_value(rows.decode_job, f"{rows.SELECT_JOBS} WHERE id = ?", number)

    def list_jobs(
        self, *, kernel: str | None = None, states: Sequence[JobState] | None = None, limit: int = 200
    ) -> list[Job]:
        """Return jobs, the newest first."""
        where, values = _make_where({"kernel = ?": kernel})
        if states is not None:
            where = _add_condition(where, f"state IN ({', '.join('?' * len(states))})")
            values += tuple(states)
        select = f"{rows.SELECT_JOBS} {where} ORDER BY id DESC LIMIT ?"
        return self._reader.fetch_values(rows.decode_job, select, *values, limit)

    # Trials

    def get_trial(self, number: int) -> Trial | None:
        """Return a trial by its id."""
        return self._reader.fetch_value(rows.decode_trial, f"{rows.SELECT_TRIALS} WHERE trials.id = ?", number)

    def find_trial(self, context: Context, config: Config) -> Trial | None:
        """Return the outcome of a config in this very context, if it was tried."""
        select = f"{rows.SELECT_TRIALS} {_OF_CONTEXT} AND trials.config = ?"
        return self._reader.fetch_value(rows.decode_trial, select, *rows.context_values(context), canonical(config))

    def has_failed(self, context: Context, config: Config) -> bool:
        """Return whether a config is known not to work in this very context."""
        known = self.find_trial(context, config)
        return known is not None and known.outcome in FAILURES

    def list_best_trials(
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
        name = "energy_rounds" if by_energy else "rounds"
        wanted = f"AND {rows.detail_sql(name)} >= {rounds:d}" if rounds else ""
        select = _best_first(rows.SELECT_TRIALS, objective, wanted)
        return self._reader.fetch_values(
            rows.decode_trial, select, *rows.context_values(context), Outcome.MEASURED, limit
        )

    def list_measured_configs(
        self, context: Context, limit: int, *, objective: Objective = LATENCY
    ) -> list[KnownConfig]:
        """Return the measured configs of a context that have an objective's figure, the best first."""
        select = _best_first(rows.select_known(objective), objective)
        return self._reader.fetch_values(
            rows.decode_known_trial, select, *rows.context_values(context), Outcome.MEASURED, limit
        )

    def find_candidates(self, context: Context, limit: int, *, objective: Objective = LATENCY) -> list[Candidate]:
        """Return the measured configs of a context whose bits are known on all inputs, the best first."""
        bits, row_bits = rows.detail_sql("bits"), rows.detail_sql("row_bits")
        columns = f"trials.config, {rows.cost_sql(objective)}, {bits}, {row_bits}"
        is_known = f"AND json_array_length({bits}) > 1 AND NOT ifnull({rows.detail_sql('nondeterministic')}, 0)"
        select = _best_first(f"SELECT trials.id, {columns} {rows.FROM_TRIALS}", objective, is_known)
        return self._reader.fetch_values(
            rows.decode_candidate, select, *rows.context_values(context), Outcome.MEASURED, limit
        )

    def find_twins(self, content: str) -> list[Trial]:
        """Return the newest trials of this content (the detail ``content``) that say what a measurement would.

        Measured ones come first.
        """
        return self._reader.fetch_values(
            rows.decode_trial,
            f"""{rows.SELECT_TRIALS} WHERE trials.content = ? AND trials.outcome IN (?, ?, ?)
            ORDER BY trials.outcome = ? DESC, trials.id DESC LIMIT ?""",
            content,
            Outcome.MEASURED,
            Outcome.SLOWER,
            Outcome.MISMATCH,
            Outcome.MEASURED,
            MAX_TWINS,
        )

    def load_past_searches(
        self, context: Context, contexts: int, limit: int, *, objective: Objective = LATENCY
    ) -> list[KnownConfig]:
        """Return what the latest ``contexts`` of a context's kernel, problem and device have found, its own first.

        Of each context the measured configs come first, the best by the objective before the others. Of its own context
        only measured ones: :meth:`list_failed_configs` returns the others.
        """
        return self._reader.fetch_values(
            rows.decode_known_trial,
            f"""{rows.select_known(objective)} WHERE trials.outcome IS NOT NULL AND contexts.id IN (
                SELECT id FROM contexts WHERE (kernel, problem, device) = (?, ?, ?) ORDER BY id DESC LIMIT ?)
                AND (trials.outcome = 'measured' OR ({rows.CONTEXT_COLUMNS}) <> (?, ?, ?, ?, ?, ?, ?))
            ORDER BY ({rows.CONTEXT_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?) DESC, contexts.id DESC,
                trials.outcome <> 'measured', {rows.cost_sql(objective)} IS NULL, {rows.cost_sql(objective)},
                trials.latency_us, trials.id LIMIT ?""",
            context.kernel,
            context.problem,
            context.device,
            contexts,
            *rows.context_values(context),
            *rows.context_values(context),
            limit,
        )

    def list_failed_configs(self, context: Context, limit: int, *, objective: Objective = LATENCY) -> list[KnownConfig]:
        """Return the configs of a context that ended otherwise than measured, and are not tried again.

        One that was given up as slower may have a figure, from few samples.
        """
        retried = sorted({*RETRIED_BY_NEXT_JOB, Outcome.COMPILE_TIMEOUT})
        return self._reader.fetch_values(
            rows.decode_known_trial,
            f"""{rows.select_known(objective)} {_OF_CONTEXT}
                AND trials.outcome NOT IN ('measured', {", ".join("?" * len(retried))}) ORDER BY trials.id LIMIT ?""",
            *rows.context_values(context),
            *retried,
            limit,
        )

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
        order: Order = "newest",
    ) -> list[Trial]:
        """Return trials; ``problem`` is a canonical text, ``digests`` what the kernel may have meant.

        ``newest`` begins with the latest entered (a retried one keeps its place), of those entered ``before`` a trial.
        ``fastest`` leaves out trials without a latency and goes by kernel, problem and device, the fastest of each
        first, and those that were measured to the end before those that were given up.
        """
        conditions = _trial_conditions(kernel, problem, device, outcome, job, digests)
        where, values = _make_where({**conditions, "trials.id < ?": before})
        if order == "newest":
            tail = "ORDER BY trials.id DESC"
        else:
            where = _add_condition(where, "trials.latency_us IS NOT NULL")
            # The figure of one that was given up is an estimate.
            figure = "trials.outcome <> 'measured', trials.latency_us"
            tail = f"ORDER BY contexts.kernel, contexts.problem, contexts.device, {figure}, trials.id"
        # An index covers what chooses and orders; only the chosen rows are read whole, for sorting whole ones is slow.
        ids = f"SELECT trials.id {rows.FROM_TRIALS} {where} {tail} LIMIT ?"
        return self._reader.fetch_values(
            rows.decode_trial, f"{rows.SELECT_TRIALS} WHERE trials.id IN ({ids}) {tail}", *values, limit
        )

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
        where, values = _make_where(_trial_conditions(kernel, problem, device, outcome, job, digests))
        ((number,),) = self._reader.fetch_rows(f"SELECT count(*) {rows.FROM_TRIALS} {where}", *values)
        return int(number)

    def list_problems(self, kernel: str) -> list[str]:
        """Return the canonical texts of the problems that a kernel was tried on."""
        found = self._reader.fetch_rows("SELECT DISTINCT problem FROM contexts WHERE kernel = ?", kernel)
        return [problem for (problem,) in found]

    # Winners

    def get_winner(self, key: WinnerKey) -> Winner | None:
        """Return the winner of a key."""
        columns = "winners.kernel, winners.problem, winners.device, winners.objective"
        return self._reader.fetch_value(
            rows.decode_winner, f"{rows.SELECT_WINNERS} WHERE ({columns}) = (?, ?, ?, ?)", *key
        )

    def list_winners(self, kernel: str | None = None, device: str | None = None) -> list[Winner]:
        """Return the winners of a kernel, on a device model, or all, by kernel, problem, device and objective."""
        where, values = _make_where({"winners.kernel = ?": kernel, "winners.device = ?": device})
        tail = "ORDER BY winners.kernel, winners.problem, winners.device, winners.objective"
        return self._reader.fetch_values(rows.decode_winner, f"{rows.SELECT_WINNERS} {where} {tail}", *values)

    def list_winners_elsewhere(self, kernel: KernelInfo) -> list[Winner]:
        """Return the winners of a kernel's equals: of its short name and its digest, in any other project."""
        short = f":{kernel.kernel}"
        equal = "digest = ? AND kernel <> ? AND substr(kernel, ?) = ?"
        keys = f"SELECT kernel, problem, device FROM contexts WHERE {equal}"
        # The plus keeps SQLite from beginning with all trials of these contexts.
        where = f"WHERE (winners.kernel, winners.problem, winners.device) IN ({keys}) AND +contexts.digest = ?"
        values = kernel.digest, kernel.name, -len(short), short, kernel.digest
        return self._reader.fetch_values(rows.decode_winner, f"{rows.SELECT_WINNERS} {where}", *values)

    def find_job_of_winner(self, winner: Winner) -> Job | None:
        """Return the job that measured a winner; its problem is the whole one, and the winner's what enters its key."""
        trial = self.get_trial(winner.trial)
        return None if trial is None else self.get_job(trial.job)


def _best_first(select: str, objective: Objective, wanted: str = "") -> str:
    """Return the SELECT of a context's trials of an outcome that have an objective's figure, so many of the best."""
    cost = rows.cost_sql(objective)
    return f"""{select} {_OF_CONTEXT} AND trials.outcome = ? AND {cost} IS NOT NULL {wanted}
        ORDER BY {cost}, trials.id LIMIT ?"""


def _trial_conditions(
    kernel: str | None,
    problem: str | None,
    device: str | None,
    outcome: Outcome | None,
    job: int | None,
    digests: Iterable[str] | None,
) -> dict[str, Any]:
    """Return conditions on trials with their values; one without a value does not count."""
    return {
        "contexts.kernel = ?": kernel,
        "contexts.problem = ?": problem,
        "contexts.device = ?": device,
        "trials.outcome = ?": outcome,
        "trials.job_id = ?": job,
        "contexts.digest IN (SELECT value FROM json_each(?))": None if digests is None else json.dumps([*digests]),
    }


def _make_where(conditions: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """Return the WHERE clause of those conditions that have a value, and the values."""
    wanted = {condition: value for condition, value in conditions.items() if value is not None}
    return ("WHERE " + " AND ".join(wanted) if wanted else ""), tuple(wanted.values())


def _add_condition(where: str, condition: str) -> str:
    return f"{where} AND {condition}" if where else f"WHERE {condition}"
