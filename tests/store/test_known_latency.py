"""The known latency of the served winner in one context, through random trials and final rounds."""

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
from tests.store.samples import CONTEXT, make_failed_result, make_measured_result

KNOBS = range(5)
FINALISTS = 2


@dataclass(frozen=True)
class FirstResult:
    """The first result of a config; a latency of ``None`` is a failure."""

    knob: int
    latency_us: float | None


@dataclass(frozen=True)
class FinalRoundEvent:
    """A final round: the latency of each config, ``None`` if it was disturbed, 0 if it failed."""

    latencies_us: tuple[float | None, ...]


LATENCIES = st.sampled_from([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
EVENTS = st.lists(
    st.builds(FirstResult, st.sampled_from(KNOBS), st.none() | LATENCIES)
    | st.builds(
        FinalRoundEvent,
        st.lists(st.none() | st.just(0.0) | LATENCIES, min_size=len(KNOBS), max_size=len(KNOBS)).map(tuple),
    ),
    max_size=12,
)


class ServedContext:
    """The rows of one context, and what lookups get."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        job = Job(
            0, CONTEXT.kernel, {}, CONTEXT.device, JobState.RUNNING, Priority.SAVED, "saved", Plan(), created=time()
        )
        self._job = writes.create_job(connection, job)

    def get_winner(self) -> tuple[int, float] | None:
        """Return the winner's trial and its latency."""
        row = self._connection.execute(
            "SELECT trials.id, latency_us FROM winners JOIN trials ON trials.id = trial_id"
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def list_latencies(self) -> dict[int, float]:
        """Return the latencies of all measured trials, fastest first."""
        rows = self._connection.execute(
            "SELECT id, latency_us FROM trials WHERE outcome = 'measured' ORDER BY latency_us, id"
        )
        return dict(rows.fetchall())

    def list_knobs(self) -> dict[int, int]:
        """Return the config of each measured trial."""
        rows = self._connection.execute("SELECT id, json_extract(config, '$.B') FROM trials WHERE outcome = 'measured'")
        return dict(rows.fetchall())

    def record_first_result(self, event: FirstResult) -> None:
        """Store the first result of a config; later ones are ignored."""
        if event.knob in self.list_knobs().values():
            return
        (trial,) = writes.begin_trials(self._connection, CONTEXT, self._job, [{"B": event.knob}], time())
        writes.finish_trial(self._connection, trial, make_result(event.latency_us), time())

    def hold_final_round(self, event: FinalRoundEvent) -> dict[int, TrialResult]:
        """Hold a final round as :class:`~ktuned.tuning.final_round.FinalRound` does, and return its results."""
        latencies, seated, knobs = self.list_latencies(), self.get_winner(), self.list_knobs()
        incumbent = None if seated is None else seated[0]
        finalists = list(dict.fromkeys([*list(latencies)[:FINALISTS], *([] if incumbent is None else [incumbent])]))
        timed = {
            trial: make_result(latency_us or None)
            for trial in finalists
            if (latency_us := event.latencies_us[knobs[trial]]) is not None
        }
        results = {trial: timed.get(trial, make_measured_result(latencies[trial])) for trial in finalists}
        remaining = {trial: result.latency_us for trial, result in results.items() if result.latency_us is not None}
        writes.settle_final_round(
            self._connection, list(results.items()), elect_winner(remaining, timed, incumbent), time()
        )
        return timed


def make_result(latency_us: float | None) -> TrialResult:
    return make_failed_result(Outcome.MISMATCH) if latency_us is None else make_measured_result(latency_us)


@pytest.fixture(scope="module")
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as opened:
        schema.migrate_schema(opened)
        yield opened


@settings(max_examples=200)
@given(events=EVENTS)
def test_the_winner_s_latency_rises_only_by_a_failure_or_in_a_final_round(
    connection: sqlite3.Connection, events: list[object]
) -> None:
    """In that round the new winner is no slower than the old one."""
    connection.execute("BEGIN")
    try:
        context = ServedContext(connection)
        for event in events:
            before = context.get_winner()
            timed: dict[int, TrialResult] = {}
            if isinstance(event, FirstResult):
                context.record_first_result(event)
            elif isinstance(event, FinalRoundEvent) and context.list_latencies():
                timed = context.hold_final_round(event)
            after = context.get_winner()
            if before is None or before[0] not in context.list_latencies():
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
