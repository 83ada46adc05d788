"""Every read query of a store. Each is one indexed query that takes microseconds, unless its docstring says otherwise.

They are methods of the daemon's :class:`~ktuned.store.database.Store`, and of an
:class:`~ktuned.store.overview.Overview` in another process. A row that cannot be decoded is left out
(:mod:`ktuned.store.reader`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from ktuned.model import (
    FAILURES,
    JUDGED,
    LATENCY,
    RETRIED_BY_NEXT_JOB,
    Config,
    DeviceModel,
    KernelInfo,
    KernelName,
    KeyProblem,
    Objective,
    Outcome,
    Peaks,
    Problem,
    ProjectName,
    WinnerKey,
    canonical,
    make_full_name,
)
from ktuned.protocol import Job, JobState, Root, Trial
from ktuned.store import rows
from ktuned.store.contexts import Context
from ktuned.store.reader import Reader
from ktuned.store.winners import KnownConfig, Winner

MAX_FAILED = 10_000
"""Most failed configs of a kernel that lookups know. If one more fails, a lookup may be answered with it."""

MAX_TWINS = 8
"""Most trials with equal content that are compared; they differ in the data they read."""

Order = Literal["newest", "fastest"]

_OF_CONTEXT = f"WHERE ({rows.CONTEXT_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?)"


class Queries:
    """The read queries of a store, by subject: the last daemon's knowledge, jobs, trials, winners.

    Raises:
        StoreError: the disk or the database fails; every query may raise it.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    # The last daemon's knowledge

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
        """Return the backends and devices that probes last found in interpreters, by key."""
        return dict(self._reader.fetch_values(rows.decode_record, "SELECT key, data FROM probes ORDER BY key"))

    def load_digest_parts(self, kernel: str, digest: str) -> dict[str, str] | None:
        """Return the parts that a kernel's digest was made of, by label; ``None`` if they are not stored."""
        select = "SELECT digest, parts FROM meanings WHERE kernel = ? AND digest = ?"
        found = self._reader.fetch_value(rows.decode_record, select, kernel, digest)
        return found and found[1]

    def load_fingerprint_versions(self, fingerprint: str) -> dict[str, str] | None:
        """Return the versions and flags that a fingerprint's digest stands for; ``None`` if they are not stored."""
        select = "SELECT digest, versions FROM fingerprints WHERE digest = ?"
        found = self._reader.fetch_value(rows.decode_record, select, fingerprint)
        return found and found[1]

    def load_peaks(self) -> dict[DeviceModel, Peaks]:
        """Return the measured limits of each device model."""
        found = self._reader.fetch_values(rows.decode_peaks, "SELECT device, figures FROM peaks ORDER BY device")
        return {peaks.device: peaks for peaks in found}

    def load_launches(self) -> dict[WinnerKey, int]:
        """Return how often applications launched each key, whatever the objective; most recently launched key last."""
        found = self._reader.fetch_rows("SELECT kernel, problem, device, count FROM launches ORDER BY updated")
        return {
            WinnerKey(KernelName(kernel), KeyProblem(problem), DeviceModel(device)): count
            for kernel, problem, device, count in found
        }

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

    def is_only_judged(self, project: ProjectName) -> bool:
        """Return whether configs of a project's kernels were judged, and none was ever tuned."""
        first = make_full_name(project, "")
        # The range is that of all names with this beginning; a kernel's short name has no colon.
        jobs = "SELECT 1 FROM jobs WHERE kernel >= ? AND kernel < ? AND instr(substr(kernel, ?), ':') = 0"
        judged = "iif(json_valid(plan), plan ->> '$.objective', '')"
        values = first, f"{first[:-1]};", len(first) + 1, JUDGED
        ((was_judged, was_tuned),) = self._reader.fetch_rows(
            f"SELECT EXISTS ({jobs} AND {judged} = ?), EXISTS ({jobs} AND {judged} <> ?)", *values, *values
        )
        return bool(was_judged and not was_tuned)

    # Trials

    def get_trial(self, number: int) -> Trial | None:
        """Return a trial by its id."""
        return self._reader.fetch_value(rows.decode_trial, f"{rows.SELECT_TRIALS} WHERE trials.id = ?", number)

    def find_trial(self, context: Context, config: Config) -> Trial | None:
        """Return the trial of a config in this very context, if there is one."""
        select = f"{rows.SELECT_TRIALS} {_OF_CONTEXT} AND trials.config = ?"
        return self._reader.fetch_value(
            rows.decode_trial, select, *rows.list_context_values(context), canonical(config)
        )

    def load_failed_configs(
        self, kernel: KernelName, digest: str, configs: Collection[str], objectives: int
    ) -> frozenset[tuple[Context, str]]:
        """Return which of some configs (as canonical text) are known to fail in a kernel's contexts with a digest.

        Contexts whose problem has a winner by each of so many objectives are left out: lookups get the winner there.
        """
        select = f"""SELECT {rows.CONTEXT_COLUMNS}, trials.config {rows.FROM_TRIALS}
            WHERE contexts.kernel = ? AND contexts.digest = ? AND trials.config IN (SELECT value FROM json_each(?))
            AND trials.outcome IN ({", ".join("?" * len(FAILURES))})
            AND (SELECT count(*) FROM winners WHERE (winners.kernel, winners.problem, winners.device)
                = (contexts.kernel, contexts.problem, contexts.device)) < ? LIMIT ?"""
        values = kernel, digest, json.dumps(list(configs)), *sorted(FAILURES), objectives, MAX_FAILED
        return frozenset((Context(*context), config) for *context, config in self._reader.fetch_rows(select, *values))

    def load_least_latencies(self, trials: Collection[int]) -> dict[int, float]:
        """Return the least latency of any config in each trial's context, by trial."""
        if not trials:
            return {}
        select = """SELECT mine.id, min(other.latency_us) FROM trials mine
            JOIN trials other ON other.context_id = mine.context_id AND other.outcome = ?
            WHERE mine.id IN (SELECT value FROM json_each(?)) GROUP BY mine.id"""
        return dict(self._reader.fetch_rows(select, Outcome.MEASURED, json.dumps(list(trials))))

    def load_job_problems(self, trials: Collection[int]) -> dict[int, Problem]:
        """Return the whole problem of each trial's job, of which the trial has only what enters the key."""
        select = """SELECT trials.id, jobs.problem FROM trials JOIN jobs ON jobs.id = trials.job_id
            WHERE trials.id IN (SELECT value FROM json_each(?))"""
        found = self._reader.fetch_rows(select, json.dumps(list(trials)))
        return {trial: json.loads(problem) for trial, problem in found}

    def list_best_trials(
        self,
        context: Context,
        limit: int,
        *,
        objective: Objective = LATENCY,
    ) -> list[Trial]:
        """Return the measured trials of a context that have an objective's figure, best first."""
        select = _select_best_trials(rows.SELECT_TRIALS, objective)
        return self._reader.fetch_values(
            rows.decode_trial, select, *rows.list_context_values(context), Outcome.MEASURED, limit
        )

    def list_measured_configs(self, context: Context, limit: int) -> list[KnownConfig]:
        """Return the measured configs of a context, the fastest first."""
        select = _select_best_trials(rows.build_known_trials_sql(LATENCY), LATENCY)
        return self._reader.fetch_values(
            rows.decode_known_trial, select, *rows.list_context_values(context), Outcome.MEASURED, limit
        )

    def find_twins(self, content: str) -> list[Trial]:
        """Return the newest trials with this ``content`` (a detail) whose outcome predicts that of a measurement.

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
        """Return the configs tried in the latest ``contexts`` with a context's kernel, problem and device.

        The context itself comes first, but only with its measured configs; :meth:`list_failed_configs` returns its
        others. Within each context, measured configs come first, best first by the objective.
        """
        cost = rows.build_cost_sql(objective)
        return self._reader.fetch_values(
            rows.decode_known_trial,
            f"""{rows.build_known_trials_sql(objective)} WHERE trials.outcome IS NOT NULL AND contexts.id IN (
                SELECT id FROM contexts WHERE (kernel, problem, device) = (?, ?, ?) AND {rows.TUNED}
                ORDER BY id DESC LIMIT ?)
                AND (trials.outcome = 'measured' OR ({rows.CONTEXT_COLUMNS}) <> (?, ?, ?, ?, ?, ?, ?))
            ORDER BY ({rows.CONTEXT_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?) DESC, contexts.id DESC,
                trials.outcome <> 'measured', {cost} IS NULL, {cost},
                trials.latency_us, trials.id LIMIT ?""",
            context.kernel,
            context.problem,
            context.device,
            contexts,
            *rows.list_context_values(context),
            *rows.list_context_values(context),
            limit,
        )

    def list_failed_configs(self, context: Context, limit: int) -> list[KnownConfig]:
        """Return the configs of a context that were not measured successfully and are not tried again.

        A config that was given up as slower may have a figure, from few samples.
        """
        retried = sorted({*RETRIED_BY_NEXT_JOB, Outcome.COMPILE_TIMEOUT})
        return self._reader.fetch_values(
            rows.decode_known_trial,
            f"""{rows.build_known_trials_sql(LATENCY)} {_OF_CONTEXT}
                AND trials.outcome NOT IN ('measured', {", ".join("?" * len(retried))}) ORDER BY trials.id LIMIT ?""",
            *rows.list_context_values(context),
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
        digest: str | None = None,
        judged: bool = False,
        before: int | None = None,
        limit: int = 1000,
        order: Order = "newest",
    ) -> list[Trial]:
        """Return trials. ``problem`` is a canonical text; ``digest`` is the kernel's.

        Judged trials are never in one list with others: they are listed if they are asked for (``judged``), or for
        their ``job``.

        With the order ``newest``, the trials inserted last come first (a retried trial keeps its place), beginning just
        before the trial ``before``. The order ``fastest`` leaves out trials without a latency, and sorts by kernel,
        problem and device, then fastest first, with fully measured trials before those that were given up.
        """
        conditions = _build_trial_conditions(kernel, problem, device, outcome, job, digest, judged=judged)
        where, values = _make_where({**conditions, "trials.id < ?": before})
        if order == "newest":
            tail = "ORDER BY trials.id DESC"
        else:
            where = _add_condition(where, "trials.latency_us IS NOT NULL")
            # The figure of a trial that was given up is an estimate.
            figure = "trials.outcome <> 'measured', trials.latency_us"
            tail = f"ORDER BY contexts.kernel, contexts.problem, contexts.device, {figure}, trials.id"
        # The inner query selects and sorts by indexed columns only, because sorting whole rows is slow.
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
        digest: str | None,
        *,
        judged: bool,
    ) -> int:
        """Return how many trials :meth:`list_trials` would return without a limit; takes some 30 ms for a million."""
        where, values = _make_where(
            _build_trial_conditions(kernel, problem, device, outcome, job, digest, judged=judged)
        )
        ((number,),) = self._reader.fetch_rows(f"SELECT count(*) {rows.FROM_TRIALS} {where}", *values)
        return int(number)

    def list_suspects(self, kernel: str | None = None) -> list[Trial]:
        """Return the trials, of a kernel or of all, that a worker had in hand when a daemon died, the newest first."""
        select = f"{rows.SELECT_TRIALS} WHERE trials.deaths > 0 AND contexts.kernel = coalesce(?, contexts.kernel)"
        return self._reader.fetch_values(rows.decode_trial, f"{select} ORDER BY trials.id DESC", kernel)

    def list_provisional_winners(self) -> list[Winner]:
        """Return the winners that were measured while other programs used the device. Reads all winners' trials."""
        disturbed = rows.build_detail_sql("timing.disturbed")
        return self._reader.fetch_values(rows.decode_winner, f"{rows.SELECT_WINNERS} WHERE NOT final AND {disturbed}")

    def list_suspect_ids(self) -> list[int]:
        """Return the ids of these trials, and the negative ids of the jobs that a worker had in hand then."""
        select = "SELECT id FROM trials WHERE deaths > 0 UNION ALL SELECT -id FROM jobs WHERE deaths > 0"
        return [number for (number,) in self._reader.fetch_rows(select)]

    # Winners

    def get_winner(self, key: WinnerKey) -> Winner | None:
        """Return the winner of a key."""
        columns = "winners.kernel, winners.problem, winners.device, winners.objective"
        return self._reader.fetch_value(
            rows.decode_winner, f"{rows.SELECT_WINNERS} WHERE ({columns}) = (?, ?, ?, ?)", *key
        )

    def list_winners(self, kernel: str | None = None, device: str | None = None) -> list[Winner]:
        """Return winners, of one kernel or device model if given, sorted by kernel, problem, device and objective."""
        where, values = _make_where({"winners.kernel = ?": kernel, "winners.device = ?": device})
        tail = "ORDER BY winners.kernel, winners.problem, winners.device, winners.objective"
        return self._reader.fetch_values(rows.decode_winner, f"{rows.SELECT_WINNERS} {where} {tail}", *values)

    def list_winners_elsewhere(self, kernel: KernelInfo) -> list[Winner]:
        """Return the winners of other projects' kernels with the same short name and digest."""
        short = f":{kernel.kernel}"
        equal = "digest = ? AND kernel <> ? AND substr(kernel, ?) = ?"
        keys = f"SELECT kernel, problem, device FROM contexts WHERE {equal}"
        # The plus sign keeps SQLite from using that index first, which would visit all trials of these contexts.
        where = f"WHERE (winners.kernel, winners.problem, winners.device) IN ({keys}) AND +contexts.digest = ?"
        values = kernel.digest, kernel.name, -len(short), short, kernel.digest
        return self._reader.fetch_values(rows.decode_winner, f"{rows.SELECT_WINNERS} {where}", *values)

    def find_job_of_winner(self, winner: Winner) -> Job | None:
        """Return the job that measured a winner. The job has the whole problem, the winner only the part in its key."""
        trial = self.get_trial(winner.trial)
        return None if trial is None else self.get_job(trial.job)


def _select_best_trials(select: str, objective: Objective) -> str:
    """Return the SELECT of a context's best trials by an objective; its values are context, outcome and limit."""
    cost = rows.build_cost_sql(objective)
    return f"""{select} {_OF_CONTEXT} AND trials.outcome = ? AND {cost} IS NOT NULL
        ORDER BY {cost}, trials.id LIMIT ?"""


def _build_trial_conditions(
    kernel: str | None,
    problem: str | None,
    device: str | None,
    outcome: Outcome | None,
    job: int | None,
    digest: str | None,
    *,
    judged: bool,
) -> dict[str, Any]:
    """Return conditions on trials with their values; a condition whose value is None is ignored."""
    return {
        "contexts.kernel = ?": kernel,
        "contexts.problem = ?": problem,
        "contexts.device = ?": device,
        "trials.outcome = ?": outcome,
        "trials.job_id = ?": job,
        "contexts.digest = ?": digest,
        f"({rows.TUNED}) = ?": None if job is not None else not judged,
    }


def _make_where(conditions: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """Return the WHERE clause of the conditions that have a value, and these values."""
    wanted = {condition: value for condition, value in conditions.items() if value is not None}
    return ("WHERE " + " AND ".join(wanted) if wanted else ""), tuple(wanted.values())


def _add_condition(where: str, condition: str) -> str:
    return f"{where} AND {condition}" if where else f"WHERE {condition}"
