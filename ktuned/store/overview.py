"""A whole store as another process reads it: contexts with their sums, and the trials of a context as short rows.

It never writes, and may be used while a daemon runs: in WAL mode readers do not wait for writers.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from ktuned.model import FrozenStruct, Outcome, StoreError
from ktuned.store import database_file, rows
from ktuned.store.bit_classes import BitClasses
from ktuned.store.contexts import Context
from ktuned.store.faults import explain_database_error
from ktuned.store.queries import Queries
from ktuned.store.reader import Reader, Row
from ktuned.store.schema import SCHEMA_VERSION, check_ours
from ktuned.store.winners import KnownConfig

MESSAGE_LENGTH = 2_000
"""Characters of a trial's message that are read: only its first line is needed, but some begin with long paths."""

_CONTEXTS = f"""SELECT contexts.id, {rows.CONTEXT_COLUMNS}, sums.trials, sums.measured, sums.first, sums.last,
        best.config, best.latency_us
    FROM contexts JOIN (
        SELECT context_id, count(*) AS trials, sum(outcome = 'measured') AS measured, min(updated) AS first,
            max(updated) AS last FROM trials GROUP BY context_id
    ) AS sums ON sums.context_id = contexts.id
    LEFT JOIN trials AS best ON best.id = (
        SELECT id FROM trials WHERE context_id = contexts.id AND outcome = 'measured' ORDER BY latency_us LIMIT 1)
    WHERE {rows.TUNED}
    ORDER BY sums.last"""

_TRIALS = f"""SELECT id, job_id, config, outcome, latency_us, spread_us, compile_s, lane_s,
        substr(message, 1, {MESSAGE_LENGTH}), updated,
        iif(json_valid(detail), detail -> '$.compiled.facts', NULL),
        iif(json_valid(detail), detail -> '$.metrics', NULL),
        iif(json_valid(detail), detail -> '$.profile.spans', NULL)
    FROM trials WHERE context_id = ? AND outcome IS NOT NULL ORDER BY id"""


# NVRTC has no command line: its options are what a compiler is told.
_BUILDS = """SELECT id, coalesce(detail -> '$.compiled.facts.command', detail -> '$.compiled.facts.options'), artifact
    FROM trials WHERE json_valid(detail) AND id IN (SELECT value FROM json_each(?))"""


class ContextSums(FrozenStruct):
    """A context with the numbers of its trials and of measured ones, when the first and last ended, and its fastest."""

    id: int
    context: Context
    trials: int
    measured: int
    first: float
    last: float
    best: KnownConfig | None


class TrialRow(NamedTuple):
    """An ended trial, with its config as text; ``facts`` has only the numbers among the backend's facts.

    A page may have 100,000 of these rows, and reading whole trials would take ten times as long.
    """

    id: int
    job: int
    config: str
    outcome: str
    latency_us: float | None
    spread_us: float | None
    compile_s: float
    lane_s: float
    message: str
    updated: float
    facts: Mapping[str, float]
    metrics: Mapping[str, float]
    spans: Sequence[tuple[str, str, float]]


class TrialBuild(NamedTuple):
    """How a trial was compiled: its id, the compiler's command lines or options, and its artifact's key."""

    trial: int
    command: Sequence[str]
    artifact: str | None


class Overview(Queries):
    """The store at ``path``, open for reading until :meth:`close`, or the end of ``with``.

    Raises:
        StoreError: there is no store, another program made it, or its version is different.
    """

    def __init__(self, path: Path) -> None:
        try:
            # This connection only checks whose file it is, and is closed at once.
            with closing(database_file.open_for_reading(path, vfs=None)) as connection:
                check_ours(connection, str(path))
                (version,) = connection.execute("PRAGMA user_version").fetchone()
            super().__init__(Reader(path))
        except sqlite3.Error as error:
            raise explain_database_error(error, path) from error
        if version < SCHEMA_VERSION:
            self._reader.close()
            raise StoreError(
                f"the store {path} has schema {version}; this ktuned reads {SCHEMA_VERSION}",
                hint="`ktuned stop`, then any command that starts a daemon, brings it up to date",
            )

    def close(self) -> None:
        """Close the database."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def load_contexts(self) -> list[ContextSums]:
        """Return every context that has trials, the one with the newest trial last."""
        return self._reader.fetch_values(_decode_context_sums, _CONTEXTS)

    def load_trials(self, context: int) -> Sequence[TrialRow]:
        """Return the ended trials of a context, in the order of their ids."""
        return self._reader.fetch_values(_trial_row, _TRIALS, context)

    def load_builds(self, trials: Collection[int]) -> Sequence[TrialBuild]:
        """Return how some trials were compiled."""
        return self._reader.fetch_values(_decode_build, _BUILDS, json.dumps(list(trials)))

    def load_bit_classes(self, context: int) -> BitClasses:
        """Return the classes of equal bits among a context's trials, as far as bits were compared."""
        compared = f"{rows.build_detail_sql('numerics.bits')} IS NOT NULL"
        select = f"{rows.SELECT_TRIALS} WHERE trials.context_id = ? AND trials.outcome = 'measured' AND {compared}"
        return BitClasses.from_trials(self._reader.fetch_values(rows.decode_trial, select, context))


def _decode_context_sums(row: Row) -> ContextSums:
    number, *context, trials, measured, first, last, config, latency_us = row
    best = None if config is None else KnownConfig(config, json.loads(config), Outcome.MEASURED, latency_us)
    return ContextSums(number, Context(*context), trials, measured, first, last, best)


def _decode_build(row: Row) -> TrialBuild:
    trial, command, artifact = row
    return TrialBuild(trial, [str(line) for line in msgspec.json.decode(command or "[]")], artifact)


def _trial_row(row: Row) -> TrialRow:
    *values, facts, metrics, spans = row
    maps = _decode_numbers(facts), _decode_numbers(metrics), msgspec.json.decode(spans or "[]")
    return TrialRow._make((*values, *maps))


def _decode_numbers(text: str | None) -> dict[str, float]:
    """Return the numbers in a map of facts or metrics; texts and lists cannot be drawn on an axis."""
    found = msgspec.json.decode(text) if text else None
    if not isinstance(found, dict):
        return {}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}
