"""The known latency of what is served, in one context: random sequences of trials and final rounds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from time import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktuned.model.plan import Plan
from ktuned.model.trial import TrialResult
from ktuned.model.values import Outcome
from ktuned.protocol.jobs import Job, JobState, Priority
from ktuned.store import schema, writes
from ktuned.tuning.finalists import elect_winner
from tests.store.samples import CONTEXT, failed, measured

KNOBS = range(5)
FINALISTS = 2


@dataclass(frozen=True)
class Tried:
    """A config's first figure here; ``None`` if it fails."""

    knob: int
    latency_us: float | None


@dataclass(frozen=True)
class Round:
    """A final round: the figure of each config in it, ``None`` where it was disturbed, 0 where it fails."""

    latencies_us: tuple[float | None, ...]


LATENCIES = st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
EVENTS = st.lists(
    st.builds(Tried, st.sampled_from(KNOBS), st.none() | LATENCIES)
    | st.builds(
        Round, st.lists(st.none() | st.just(0.0) | LATENCIES, min_size=len(KNOBS), max_size=len(KNOBS)).map(tuple)
    ),
    max_size=12,
)


class Served:
    """A store's rows of one context, and what lookups get of them."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        job = Job(
            0, CONTEXT.kernel, {}, CONTEXT.device, JobState.RUNNING, Priority.SAVED, "saved", Plan(), created=time()
        )
        self._job = writes.create_job(connection, job)

    def winner(self) -> tuple[int, float] | None:
        """Return the trial that is served, and its known latency."""
        row = self._connection.execute(
            "SELECT trials.id, latency_us FROM winners JOIN trials ON trials.id = trial_id"
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def known(self) -> dict[int, float]:
        """Return the figures of all measured trials, the fastest first."""
        rows = self._connection.execute(
            "SELECT id, latency_us FROM trials WHERE outcome = 'measured' ORDER BY latency_us, id"
        )
        return dict(rows.fetchall())

    def knobs(self) -> dict[int, int]:
        """Return the config of each measured trial."""
        rows = self._connection.execute("SELECT id, json_extract(config, '$.B') FROM trials WHERE outcome = 'measured'")
        return dict(rows.fetchall())

    def try_out(self, event: Tried) -> None:
        """Enter a config's result; one that was measured here is not measured again."""
        if event.knob in self.knobs().values():
            return
        (trial,) = writes.begin_trials(self._connection, CONTEXT, self._job, [{"B": event.knob}], time())
        writes.finish_trial(self._connection, trial, _result(event.latency_us), time())

    def decide(self, event: Round) -> dict[int, TrialResult]:
        """Hold a final round, as :class:`~ktuned.tuning.final_round.FinalRound` does; return what it has timed."""
        known, seated, knobs = self.known(), self.winner(), self.knobs()
        incumbent = None if seated is None else seated[0]
        finalists = list(dict.fromkeys([*list(known)[:FINALISTS], *([] if incumbent is None else [incumbent])]))
        timed = {
            trial: _result(latency_us or None)
            for trial in finalists
            if (latency_us := event.latencies_us[knobs[trial]]) is not None
        }
        results = {trial: timed.get(trial, measured(known[trial])) for trial in finalists}
        still = {trial: one.latency_us for trial, one in results.items() if one.latency_us is not None}
        writes.settle_final_round(
            self._connection, list(results.items()), elect_winner(still, timed, incumbent), time()
        )
        return timed


def _result(latency_us: float | None) -> TrialResult:
    return failed(Outcome.MISMATCH) if latency_us is None else measured(latency_us)


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    """Open a database in memory."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        schema.migrate_schema(opened)
        yield opened


@settings(max_examples=600)
@given(events=EVENTS)
def test_it_rises_only_by_a_failure_or_within_one_round(connection: sqlite3.Connection, events: list[object]) -> None:
    """A final round may correct figures; what it elects is no slower in that round than what was served before."""
    connection.execute("BEGIN")
    try:
        served = Served(connection)
        for event in events:
            before = served.winner()
            timed: dict[int, TrialResult] = {}
            if isinstance(event, Tried):
                served.try_out(event)
            elif isinstance(event, Round) and served.known():
                timed = served.decide(event)
            after = served.winner()
            if before is None or before[0] not in served.known():
                continue
            assert after is not None
            again = timed.get(before[0])
            if again is None or again.latency_us is None:
                assert after[1] <= before[1]
            else:
                assert after[0] in timed
                assert after[1] <= again.latency_us
    finally:
        connection.execute("ROLLBACK")
