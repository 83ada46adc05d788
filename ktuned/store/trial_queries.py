"""The questions that are asked about trials, as functions of a reader."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from ktuned.model import (
    LATENCY,
    RETRIED_BY_NEXT_JOB,
    Candidate,
    Config,
    Context,
    KnownConfig,
    Objective,
    Outcome,
    Trial,
    canonical,
)
from ktuned.store import rows
from ktuned.store.reader import Reader

MAX_TWINS = 8
"""Trials of one content that are looked at: each had read other data."""

Order = Literal["newest", "fastest"]

_OF_CONTEXT = f"WHERE ({rows.CONTEXT_COLUMNS}) = (?, ?, ?, ?, ?, ?, ?)"
_IN_CONTEXT = f"{rows.SELECT_TRIALS} {_OF_CONTEXT}"
# SQLite refuses the whole SELECT for one text that is no JSON.
_ROUNDS = "iif(json_valid(trials.detail), json_extract(trials.detail, '$.{}'), NULL)"


def by_id(reader: Reader, number: int) -> Trial | None:
    """Return a trial by its id."""
    return reader.fetch_value(rows.decode_trial, f"{rows.SELECT_TRIALS} WHERE trials.id = ?", number)


def of_config(reader: Reader, context: Context, config: Config) -> Trial | None:
    """Return the outcome of a config in this very context, if it was tried."""
    select = f"{_IN_CONTEXT} AND trials.config = ?"
    return reader.fetch_value(rows.decode_trial, select, *rows.context_values(context), canonical(config))


def find_best_trials(
    reader: Reader, context: Context, limit: int, objective: Objective, rounds: int, *, by_energy: bool
) -> list[Trial]:
    """Return the measured trials of a context that have an objective's figure, the best first.

    With ``rounds`` only finalists of so many, which are counted ``by_energy`` apart.
    """
    wanted = f"AND {_ROUNDS.format('energy_rounds' if by_energy else 'rounds')} >= {rounds:d}" if rounds else ""
    select = _best_first(rows.SELECT_TRIALS, objective, wanted)
    return reader.fetch_values(rows.decode_trial, select, *rows.context_values(context), Outcome.MEASURED, limit)


def find_measured_configs(reader: Reader, context: Context, limit: int, objective: Objective) -> list[KnownConfig]:
    """Return the measured configs of a context that have an objective's figure, the best first."""
    select = _best_first(rows.select_known(objective), objective)
    return reader.fetch_values(rows.decode_known_trial, select, *rows.context_values(context), Outcome.MEASURED, limit)


def find_candidates(reader: Reader, context: Context, limit: int, objective: Objective) -> list[Candidate]:
    """Return the measured configs of a context whose bits are known on all inputs, the best by an objective first."""
    detail = "iif(json_valid(trials.detail), json_extract(trials.detail, '$.{}'), NULL)"
    columns = f"trials.config, {rows.cost_sql(objective)}, {detail.format('bits')}, {detail.format('row_bits')}"
    is_known = (
        f"AND json_array_length({detail.format('bits')}) > 1 AND NOT ifnull({detail.format('nondeterministic')}, 0)"
    )
    select = _best_first(f"SELECT trials.id, {columns} {rows.FROM_TRIALS}", objective, is_known)
    return reader.fetch_values(rows.decode_candidate, select, *rows.context_values(context), Outcome.MEASURED, limit)


def _best_first(select: str, objective: Objective, wanted: str = "") -> str:
    """Return the SELECT of a context's trials of an outcome that have an objective's figure, so many of the best."""
    cost = rows.cost_sql(objective)
    return f"""{select} {_OF_CONTEXT} AND trials.outcome = ? AND {cost} IS NOT NULL {wanted}
        ORDER BY {cost}, trials.id LIMIT ?"""


def find_twins(reader: Reader, content: str) -> list[Trial]:
    """Return the newest trials of this content that say what a measurement would, measured ones first."""
    return reader.fetch_values(
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


def find_past_searches(
    reader: Reader, context: Context, contexts: int, limit: int, objective: Objective
) -> list[KnownConfig]:
    """Return what the latest contexts of a key have found, the context's own first, of each the best first.

    Of its own context only measured ones: :func:`find_failed_configs` returns the others.
    """
    return reader.fetch_values(
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


def find_failed_configs(
    reader: Reader, context: Context, limit: int, objective: Objective = LATENCY
) -> list[KnownConfig]:
    """Return the configs of a context that ended otherwise than measured, and are not tried again.

    One that was given up as slower may have a figure, from few samples.
    """
    retried = sorted({*RETRIED_BY_NEXT_JOB, Outcome.COMPILE_TIMEOUT})
    return reader.fetch_values(
        rows.decode_known_trial,
        f"""{rows.select_known(objective)} {_OF_CONTEXT}
            AND trials.outcome NOT IN ('measured', {", ".join("?" * len(retried))}) ORDER BY trials.id LIMIT ?""",
        *rows.context_values(context),
        *retried,
        limit,
    )


def select_trials(reader: Reader, conditions: Mapping[str, Any], limit: int, order: Order) -> list[Trial]:
    """Return the trials that meet every condition which has a value."""
    wanted, values = where_clause(conditions)
    if order == "newest":
        tail = "ORDER BY trials.id DESC"
    else:
        wanted += f" {'AND' if wanted else 'WHERE'} trials.latency_us IS NOT NULL"
        # The figure of one that was given up is an estimate.
        figure = "trials.outcome <> 'measured', trials.latency_us"
        tail = f"ORDER BY contexts.kernel, contexts.problem, contexts.device, {figure}, trials.id"
    # An index covers what chooses and orders; only the chosen rows are read whole, for sorting whole ones is slow.
    ids = f"SELECT trials.id {rows.FROM_TRIALS} {wanted} {tail} LIMIT ?"
    return reader.fetch_values(
        rows.decode_trial, f"{rows.SELECT_TRIALS} WHERE trials.id IN ({ids}) {tail}", *values, limit
    )


def count_trials(reader: Reader, conditions: Mapping[str, Any]) -> int:
    """Return how many trials meet every condition which has a value."""
    wanted, values = where_clause(conditions)
    ((number,),) = reader.fetch_rows(f"SELECT count(*) {rows.FROM_TRIALS} {wanted}", *values)
    return int(number)


def trial_conditions(
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


def where_clause(conditions: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """Return the WHERE clause of those conditions that have a value, and the values."""
    wanted = {condition: value for condition, value in conditions.items() if value is not None}
    return ("WHERE " + " AND ".join(wanted) if wanted else ""), tuple(wanted.values())
