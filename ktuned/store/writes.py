"""The writes of jobs, trials and winners, as functions of the writer's connection, called within a transaction."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Collection, Sequence, Set

from ktuned.model import (
    LATENCY,
    RETRIED_BY_NEXT_JOB,
    Bits,
    Config,
    FailureFacts,
    FrozenStruct,
    KeyProblem,
    NotFound,
    Objective,
    Outcome,
    TrialDetail,
    TrialResult,
    UsageError,
    canonical,
    have_same_bits,
    is_exact,
    name_unit,
)
from ktuned.protocol import Job, JobState
from ktuned.store import rows
from ktuned.store.contexts import Context
from ktuned.store.in_hand import MOST_DEATHS, MOST_DEATHS_OF_JOB
from ktuned.store.winner_rule import Effect, Standing, judge_result
from ktuned.store.winners import Winner

PROVISIONAL = "provisional: other programs used the device while it was measured"
"""The message of lookups that get a winner with a disturbed figure."""

NOISE = 1.05
"""Two figures whose ratio is at most this may differ by noise alone."""


class Recovered(FrozenStruct):
    """How many trials were under way, and how many jobs were running, when the last daemon died."""

    trials: int
    jobs: int


def recover_interrupted(connection: sqlite3.Connection, in_hand: Collection[int], now: float) -> Recovered:
    """Mark trials under way as interrupted and queue running jobs again; quarantine trials that killed daemons.

    ``in_hand`` has the trials that workers had in hand when the last daemon died, and the negative ids of jobs.
    """
    connection.execute("BEGIN IMMEDIATE")
    jobs_in_hand = {-number for number in in_hand}
    for trial_id in in_hand:
        row = connection.execute("SELECT deaths + 1, job_id FROM trials WHERE id = ?", (trial_id,)).fetchone()
        if row is not None and row[0] >= MOST_DEATHS:
            failure = FailureFacts(deaths=row[0])
            message = f"the daemon died {row[0]} times while a worker had this config"
            result = TrialResult(Outcome.CRASHED, message=message, detail=TrialDetail(failure=failure))
            finish_trial(connection, trial_id, result, now)
        if row is not None:
            jobs_in_hand.add(row[1])
            connection.execute("UPDATE trials SET deaths = ? WHERE id = ?", (row[0], trial_id))
    trials = connection.execute("UPDATE trials SET outcome = ? WHERE outcome IS NULL", (Outcome.INTERRUPTED,)).rowcount
    connection.executemany(
        "UPDATE jobs SET deaths = deaths + 1 WHERE id = ? AND state = ?",
        [(job, JobState.RUNNING) for job in jobs_in_hand],
    )
    deadly = "SELECT id, deaths FROM jobs WHERE state = ? AND deaths >= ?"
    for job, deaths in connection.execute(deadly, (JobState.RUNNING, MOST_DEATHS_OF_JOB)).fetchall():
        message = (
            f"the daemon died {deaths} times while a worker had this job; `ktuned jobs {job} --resume` tries again"
        )
        connection.execute("UPDATE jobs SET state = ?, message = ? WHERE id = ?", (JobState.PAUSED, message, job))
    jobs = connection.execute("UPDATE jobs SET state = ? WHERE state = ?", (JobState.QUEUED, JobState.RUNNING)).rowcount
    connection.execute("COMMIT")
    return Recovered(trials, jobs)


def create_job(connection: sqlite3.Connection, job: Job) -> int:
    """Insert a job, and return its id."""
    number = connection.execute(
        """INSERT INTO jobs (kernel, problem, key_problem, device, state, priority, reason, plan, created)
        VALUES (:kernel, :problem, :key_problem, :device, :state, :priority, :reason, :plan, :created)""",
        rows.encode_job(job),
    ).lastrowid
    return number or 0


def update_job(connection: sqlite3.Connection, job: Job) -> None:
    """Store all fields of a job that may change (all but kernel, problem, device and created).

    Raises:
        NotFound: there is no such job.
    """
    changed = connection.execute(
        """UPDATE jobs SET state = :state, priority = :priority, reason = :reason, plan = :plan, started = :started,
        finished = :finished, done = :done, total = :total, best_us = :best_us, best_spread_us = :best_spread_us,
        default_us = :default_us, default_spread_us = :default_spread_us, reference_us = :reference_us,
        reference_spread_us = :reference_spread_us, best_figure = :best_figure, default_figure = :default_figure,
        outcomes = :outcomes, message = :message, cost = :cost WHERE id = :id""",
        rows.encode_job(job),
    ).rowcount
    if not changed:
        raise NotFound(f"there is no job {job.id}")


def save_pauses(connection: sqlite3.Connection, devices: Collection[str]) -> None:
    """Store the paused device models, in place of those before."""
    connection.execute("DELETE FROM pauses")
    connection.executemany("INSERT INTO pauses (device) VALUES (?)", [(device,) for device in devices])


def _provide_context(connection: sqlite3.Connection, context: Context) -> int:
    """Return the id of a context's row, which is inserted if there is none."""
    values = rows.list_context_values(context)
    connection.execute(
        """INSERT INTO contexts (kernel, problem, device, digest, toolchain, device_fingerprint, measuring_version)
        VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING""",
        values,
    )
    (number,) = connection.execute(
        f"SELECT id FROM contexts WHERE ({rows.CONTEXT_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?)", values
    ).fetchone()
    if number is None:
        raise sqlite3.DatabaseError("a context has no id: the database's schema is damaged")
    return int(number)


def begin_trials(
    connection: sqlite3.Connection, context: Context, job: int, configs: Sequence[Config], now: float
) -> list[int]:
    """Insert trials as under way and return their ids, in order.

    An existing row is reused; a measured trial keeps its figure until :func:`finish_trial` replaces it.
    """
    context_id = _provide_context(connection, context)
    ids = []
    for text in map(canonical, configs):
        connection.execute(
            """INSERT INTO trials (context_id, job_id, config, updated) VALUES (?, ?, ?, ?)
            ON CONFLICT (context_id, config) DO UPDATE SET
                job_id = excluded.job_id, updated = excluded.updated, outcome = NULL, latency_us = NULL,
                spread_us = NULL, compile_s = 0, lane_s = 0, message = '', artifact = NULL, detail = '{}',
                content = NULL
            WHERE trials.outcome IS NOT ?""",
            (context_id, job, text, now, Outcome.MEASURED),
        )
        (number,) = connection.execute(
            "SELECT id FROM trials WHERE context_id = ? AND config = ?", (context_id, text)
        ).fetchone()
        ids.append(number)
    return ids


def finish_trial(
    connection: sqlite3.Connection,
    trial_id: int,
    result: TrialResult,
    now: float,
    *,
    objective: Objective = LATENCY,
    keeps_winner: bool = False,
) -> Winner | None:
    """Store a result; return the winner by an objective if the result changed it.

    Winners by other objectives change only if this trial was one and is not measured any more.

    Raises:
        NotFound: there is no such trial.
        UsageError: the result is ``measured`` without a latency.
    """
    if not _write_result(connection, trial_id, result, now):
        return None
    measured, incumbent = _load_standings(connection, trial_id, objective)
    effect = judge_result(measured, incumbent, keeps_winner=keeps_winner)
    if effect is Effect.TAKE:
        return _make_winner(connection, trial_id, objective, now)
    vacated = {objective} if effect is Effect.VACATE else set()
    return _remove_winner(connection, measured.context, trial_id, result, vacated, now).get(objective)


def finish_trials(
    connection: sqlite3.Connection,
    results: Sequence[tuple[int, TrialResult]],
    now: float,
    *,
    objective: Objective = LATENCY,
    keeps_winner: bool = False,
) -> Winner | None:
    """Store results in their order, each by :func:`finish_trial`; return the last winner that resulted."""
    winner = None
    for trial_id, result in results:
        winner = (
            finish_trial(connection, trial_id, result, now, objective=objective, keeps_winner=keeps_winner) or winner
        )
    return winner


def settle_final_round(
    connection: sqlite3.Connection,
    results: Sequence[tuple[int, TrialResult]],
    best: int | None,
    now: float,
    *,
    objective: Objective = LATENCY,
    is_final: bool = True,
) -> Winner | None:
    """Store a final round's results and make ``best`` the winner; if None, store them as :func:`finish_trial` does.

    ``is_final`` says that the round has measured the winner.

    All is stored in one transaction, because figures of two rounds must not be compared.
    """
    if best is None:
        return finish_trials(connection, results, now, objective=objective)
    recorded = [(trial_id, result) for trial_id, result in results if _write_result(connection, trial_id, result, now)]
    winner = make_winner(connection, best, now, objective=objective, is_final=is_final)
    for trial_id, result in recorded:
        measured, _ = _load_standings(connection, trial_id, objective)
        _remove_winner(connection, measured.context, trial_id, result, set(), now)
    return winner


def make_winner(
    connection: sqlite3.Connection,
    trial_id: int,
    now: float,
    *,
    objective: Objective = LATENCY,
    is_final: bool = False,
) -> Winner:
    """Make a measured trial the winner by an objective; ``is_final`` says that a final round decided it.

    Raises:
        NotFound: there is no such trial.
        UsageError: it is not ``measured``.
    """
    row = connection.execute("SELECT outcome FROM trials WHERE id = ?", (trial_id,)).fetchone()
    if row is None:
        raise NotFound(f"there is no trial {trial_id}")
    (outcome,) = row
    if outcome != Outcome.MEASURED:
        raise UsageError(f"trial {trial_id} cannot be the winner: it is {outcome or 'under way'}, not measured")
    return _make_winner(connection, trial_id, objective, now, is_final=is_final)


def forget_trials(
    connection: sqlite3.Connection,
    kernel: str,
    digest: str,
    problem: KeyProblem | None,
    outcome: Outcome | None,
    now: float,
) -> tuple[int, int]:
    """Delete a kernel's ended trials with winners and contexts; return the numbers of both.

    Trials of other checkouts are deleted, too, if they hold for the kernel with this ``digest``. ``problem`` and
    ``outcome`` choose some of the trials. A deleted winner is replaced by the best remaining trial of its context.
    Trials under way and open jobs stay.
    """
    short = f":{kernel.rpartition(':')[2]}"
    # COALESCE: without a problem, every problem is meant.
    meant = "(kernel = ? OR (digest = ? AND substr(kernel, ?) = ?)) AND problem = COALESCE(?, problem)"
    doomed = f"context_id IN (SELECT id FROM contexts WHERE {meant}) AND outcome IS NOT NULL"
    values: tuple[str | int | None, ...] = (kernel, digest, -len(short), short, problem)
    chosen = values if outcome is None else (*values, outcome)
    if outcome is not None:
        doomed += " AND outcome = ?"
    bereft = connection.execute(
        f"SELECT context_id, objective FROM winners JOIN trials ON trials.id = trial_id WHERE {doomed}", chosen
    ).fetchall()
    connection.execute(f"DELETE FROM winners WHERE trial_id IN (SELECT id FROM trials WHERE {doomed})", chosen)
    deleted = connection.execute(f"DELETE FROM trials WHERE {doomed}", chosen).rowcount
    for context, objective in bereft:
        _elect_winner(connection, context, Objective(objective), now)
    connection.execute(
        f"DELETE FROM contexts WHERE {meant} AND NOT EXISTS (SELECT 1 FROM trials WHERE context_id = contexts.id)",
        values,
    )
    if outcome is None:
        connection.execute(
            """DELETE FROM jobs WHERE kernel = ? AND key_problem = COALESCE(?, key_problem) AND state NOT IN (?, ?, ?)
            AND NOT EXISTS (SELECT 1 FROM trials WHERE job_id = jobs.id)""",
            (kernel, problem, JobState.QUEUED, JobState.PAUSED, JobState.RUNNING),
        )
    return deleted, len(bereft)


def mark_same_bits(connection: sqlite3.Connection, context: Context, anchor: Bits, now: float) -> None:
    """Mark all trials of a context with known bits as having an anchor's bits or not.

    A winner by exact numerics without the anchor's bits is replaced by the best trial that has them.
    """
    row = connection.execute(
        f"SELECT id FROM contexts WHERE ({rows.CONTEXT_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?)",
        rows.list_context_values(context),
    ).fetchone()
    if row is None:
        return
    known = connection.execute("SELECT id, detail FROM trials WHERE context_id = ? AND json_valid(detail)", row)
    for trial_id, text in known.fetchall():
        found = rows.decode_detail(text)[0].numerics
        if not found.bits:
            continue
        same = False if found.nondeterministic else have_same_bits(found.bits, anchor) if anchor else None
        if same is not found.same_bits:
            edited = "json_remove(detail, ?)" if same is None else f"json_set(detail, ?, json('{json.dumps(same)}'))"
            connection.execute(f"UPDATE trials SET detail = {edited} WHERE id = ?", ("$.numerics.same_bits", trial_id))
    won = connection.execute(
        f"""SELECT winners.objective, trials.id, {rows.build_detail_sql("numerics.same_bits")}
        FROM winners JOIN trials ON trials.id = winners.trial_id WHERE trials.context_id = ?""",
        row,
    ).fetchall()
    for objective, trial_id, same in won:
        if is_exact(objective) and not same:
            place = trial_id, objective
            connection.execute("DELETE FROM winners WHERE trial_id = ? AND objective = ?", place)
            _elect_winner(connection, row[0], Objective(objective), now)


def rename_contexts(connection: sqlite3.Connection, kernel: str, digest: str, named: str) -> None:
    """Change the digest of a kernel's contexts; if a context with the new digest exists, it takes over the trials."""
    if named == digest:
        return
    columns = "problem, device, toolchain, device_fingerprint, measuring_version"
    for number, *rest in connection.execute(
        f"SELECT id, {columns} FROM contexts WHERE kernel = ? AND digest = ?", (kernel, digest)
    ).fetchall():
        twin = connection.execute(
            f"SELECT id FROM contexts WHERE (kernel, digest, {columns}) = (?, ?, ?, ?, ?, ?, ?)",
            (kernel, named, *rest),
        ).fetchone()
        if twin is None:
            connection.execute("UPDATE contexts SET digest = ? WHERE id = ?", (named, number))
        else:
            merge_contexts(connection, number, twin[0])


def move_trial(connection: sqlite3.Connection, trial: int, context: Context) -> None:
    """Make a trial one of another context; a measured trial of its config there is the winner in its place."""
    number = _provide_context(connection, context)
    other = connection.execute(
        """SELECT others.id FROM trials JOIN trials AS others ON others.config = trials.config
        WHERE trials.id = ? AND others.context_id = ? AND others.outcome = ?""",
        (trial, number, Outcome.MEASURED),
    ).fetchone()
    if other is None:
        # A trial there that has failed says less; one that is under way will say more.
        connection.execute(
            """DELETE FROM trials WHERE context_id = ? AND outcome IS NOT NULL
            AND config = (SELECT config FROM trials WHERE id = ?)""",
            (number, trial),
        )
        connection.execute("UPDATE OR IGNORE trials SET context_id = ? WHERE id = ?", (number, trial))
    elif other != (trial,):
        connection.execute("UPDATE winners SET trial_id = ? WHERE trial_id = ?", (other[0], trial))


def merge_contexts(connection: sqlite3.Connection, context: int, twin: int) -> None:
    """Move a context's trials to its twin and remove the context. Of configs tried in both, the twin's trial stays."""
    connection.execute("UPDATE OR IGNORE trials SET context_id = ? WHERE context_id = ?", (twin, context))
    # A winner whose config was also measured in the twin gets the twin's figure.
    connection.execute(
        """UPDATE OR IGNORE winners SET trial_id = (
            SELECT twins.id FROM trials JOIN trials AS twins ON twins.config = trials.config
            WHERE trials.id = winners.trial_id AND twins.context_id = ? AND twins.outcome = ?)
        WHERE trial_id IN (
            SELECT trials.id FROM trials JOIN trials AS twins ON twins.config = trials.config
            WHERE trials.context_id = ? AND twins.context_id = ? AND twins.outcome = ?)""",
        (twin, Outcome.MEASURED, context, twin, Outcome.MEASURED),
    )
    connection.execute("DELETE FROM winners WHERE trial_id IN (SELECT id FROM trials WHERE context_id = ?)", (context,))
    connection.execute("DELETE FROM trials WHERE context_id = ?", (context,))
    connection.execute("DELETE FROM contexts WHERE id = ?", (context,))


def forget_unused_meanings(connection: sqlite3.Connection, kernel: str, newest: str) -> None:
    """Delete the meanings of a kernel's digests, except the newest digest and those with measurements."""
    connection.execute(
        """DELETE FROM meanings WHERE kernel = ? AND digest <> ? AND NOT EXISTS (
            SELECT 1 FROM contexts WHERE contexts.kernel = meanings.kernel AND contexts.digest = meanings.digest)""",
        (kernel, newest),
    )


def _write_result(connection: sqlite3.Connection, trial_id: int, result: TrialResult, now: float) -> bool:
    """Write a trial's result, unless it was measured before and is now only stopped or disturbed.

    Returns:
        Whether the result was written.

    Raises:
        UsageError: the result is ``measured`` without a latency.
    """
    is_measured = result.outcome is Outcome.MEASURED
    if is_measured and (result.latency_us is None or not 0 < result.latency_us < math.inf):
        raise UsageError(f"trial {trial_id} cannot be measured with a latency of {result.latency_us}")
    if result.outcome in RETRIED_BY_NEXT_JOB:
        row = connection.execute("SELECT outcome FROM trials WHERE id = ?", (trial_id,)).fetchone()
        if row == (Outcome.MEASURED,):
            return False
    connection.execute(
        """UPDATE trials SET outcome = ?, latency_us = ?, spread_us = ?, compile_s = ?, lane_s = ?, message = ?,
        artifact = ?, detail = ?, content = ?, updated = ?, deaths = iif(?, deaths, 0) WHERE id = ?""",
        (
            result.outcome,
            result.latency_us,
            result.spread_us,
            result.compile_s,
            result.lane_s,
            result.message,
            result.artifact,
            rows.encode_detail(result),
            result.detail.compiled.content or None,
            now,
            result.outcome in RETRIED_BY_NEXT_JOB,
            trial_id,
        ),
    )
    return True


def _remove_winner(
    connection: sqlite3.Connection,
    context: int,
    trial_id: int,
    result: TrialResult,
    objectives: Set[Objective],
    now: float,
) -> dict[Objective, Winner | None]:
    """Remove a trial as winner by these objectives, or by all if it is not measured; return the winners after it."""
    if result.outcome is not Outcome.MEASURED:
        won = connection.execute("SELECT objective FROM winners WHERE trial_id = ?", (trial_id,))
        objectives = {Objective(other) for (other,) in won}
    lost = f"the config that was served before ended as {result.outcome} when it was measured again"
    followed = {}
    for one in objectives:
        connection.execute("DELETE FROM winners WHERE trial_id = ? AND objective = ?", (trial_id, one))
        followed[one] = _elect_winner(connection, context, one, now, lost)
    return followed


def _load_standings(
    connection: sqlite3.Connection, trial_id: int, objective: Objective
) -> tuple[Standing, Standing | None]:
    """Return a trial's standing by an objective, and the standing of its key's present winner.

    Raises:
        NotFound: there is no such trial.
    """
    row = connection.execute(
        f"""SELECT trials.id, trials.context_id, trials.outcome, {rows.build_cost_sql(objective)},
            incumbent.id, incumbent.context_id, {rows.build_cost_sql(objective, "incumbent")}
        FROM trials JOIN contexts ON contexts.id = trials.context_id
        LEFT JOIN winners ON (winners.kernel, winners.problem, winners.device, winners.objective)
            = (contexts.kernel, contexts.problem, contexts.device, ?)
        LEFT JOIN trials AS incumbent ON incumbent.id = winners.trial_id
        WHERE trials.id = ?""",
        (objective, trial_id),
    ).fetchone()
    if row is None:
        raise NotFound(f"there is no trial {trial_id}")
    number, context, outcome, cost, *incumbent = row
    measured = Standing(number, context, cost if outcome == Outcome.MEASURED else None)
    return measured, None if incumbent[0] is None else Standing(*incumbent)


def _elect_winner(
    connection: sqlite3.Connection, context: int, objective: Objective, now: float, note: str = ""
) -> Winner | None:
    """Make the best measured trial of a context the winner, if there is one; its config must be readable."""
    row = connection.execute(
        f"""SELECT id FROM trials WHERE context_id = ? AND outcome = ? AND json_valid(config)
            AND {rows.build_cost_sql(objective)} IS NOT NULL
        ORDER BY {rows.build_cost_sql(objective)}, id LIMIT 1""",
        (context, Outcome.MEASURED),
    ).fetchone()
    return _make_winner(connection, row[0], objective, now, note=note) if row else None


def _explain_worse_winner(
    connection: sqlite3.Connection, trial_id: int, objective: Objective
) -> tuple[str, float | None]:
    """Return why a new winner is worse than the winner of the previous context, if it is, and the latter's cost.

    The sentence is made anew for each winner of a context, and always compares with the previous context. A note that
    the config served before failed is kept only as long as the same trial wins.
    """
    row = connection.execute(
        f"""SELECT trials.context_id, {rows.build_cost_sql(objective)},
            incumbent.context_id, {rows.build_cost_sql(objective, "incumbent")},
            winners.note, winners.before, winners.trial_id
        FROM trials JOIN contexts ON contexts.id = trials.context_id
        JOIN winners ON (winners.kernel, winners.problem, winners.device, winners.objective)
            = (contexts.kernel, contexts.problem, contexts.device, ?)
        JOIN trials AS incumbent ON incumbent.id = winners.trial_id WHERE trials.id = ?""",
        (objective, trial_id),
    ).fetchone()
    if row is None:
        return "", None
    context, cost, incumbent_context, incumbent_cost, note, before, incumbent_trial = row
    if context != incumbent_context:
        before = incumbent_cost
    elif before is None:
        return (str(note) if incumbent_trial == trial_id else ""), None
    if before is None or cost is None or cost <= before + (NOISE - 1) * abs(before):
        return "", before
    unit = name_unit(objective)
    sentence = f"{abs(cost):.4g} {unit}, after {abs(before):.4g} {unit} before its sources, toolchain or device changed"
    return sentence, before


def _make_winner(
    connection: sqlite3.Connection,
    trial_id: int,
    objective: Objective,
    now: float,
    *,
    is_final: bool = False,
    note: str = "",
) -> Winner:
    derived, before = _explain_worse_winner(connection, trial_id, objective)
    derived = "" if derived == PROVISIONAL else derived
    disturbed = f"SELECT {rows.build_detail_sql('timing.disturbed')} FROM trials WHERE id = ?"
    if not is_final and not derived and connection.execute(disturbed, (trial_id,)).fetchone() == (1,):
        derived = PROVISIONAL
    connection.execute(
        """INSERT INTO winners (kernel, problem, device, objective, trial_id, decided, final, note, before)
        SELECT kernel, problem, device, ?, trials.id, ?, ?, ?, ?
        FROM trials JOIN contexts ON contexts.id = trials.context_id WHERE trials.id = ?
        ON CONFLICT (kernel, problem, device, objective) DO UPDATE SET
            trial_id = excluded.trial_id, decided = excluded.decided, final = excluded.final, note = excluded.note,
            before = excluded.before""",
        (objective, now, is_final, note or derived, None if note else before, trial_id),
    )
    select = f"{rows.SELECT_WINNERS} WHERE trials.id = ? AND winners.objective = ?"
    return rows.decode_winner(connection.execute(select, (trial_id, objective)).fetchone())
