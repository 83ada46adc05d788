"""Migrations: every older schema opens, a newer or a foreign one is refused untouched."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from ktuned.model.errors import StoreError
from ktuned.model.values import Outcome
from ktuned.store.database import Store
from ktuned.store.schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION
from tests.store.samples import CONTEXT, PROBLEM, measured

pytestmark = pytest.mark.anyio


def made_by(version: int, path: Path) -> None:
    """Make a database as the ktuned of that schema left it: a winner, and a trial that was under way."""
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statements in MIGRATIONS[:version]:
            for statement in statements:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version}")
        connection.execute(
            "INSERT INTO jobs (kernel, problem, device, state, priority, reason, plan, created) "
            "VALUES (?, ?, ?, 'running', 200, 'asked', '{}', 1.0)",
            (CONTEXT.kernel, CONTEXT.problem, CONTEXT.device),
        )
        connection.execute(
            "INSERT INTO contexts VALUES (1, ?, ?, ?, 'd1', 'gcc-12', 'linux-6', 1)",
            (CONTEXT.kernel, CONTEXT.problem, CONTEXT.device),
        )
        connection.execute(
            "INSERT INTO trials (context_id, job_id, config, outcome, latency_us, updated) "
            """VALUES (1, 1, '{"BM":1}', 'measured', 5.0, 1.0), (1, 1, '{"BM":2}', NULL, NULL, 1.0)"""
        )
        connection.execute(
            "INSERT INTO winners (kernel, problem, device, trial_id, decided) VALUES (?, ?, ?, 1, 1.0)",
            (CONTEXT.kernel, CONTEXT.problem, CONTEXT.device),
        )


def schema_of(path: Path) -> tuple[int, set[str]]:
    """Return the version and every statement that made the schema."""
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return version, {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION + 1))
async def test_an_older_database_keeps_what_it_holds(version: int, database: Path, tmp_path: Path) -> None:
    """Each older schema becomes today's, with its trials, winners and jobs, and goes on from there."""
    made_by(version, database)
    old = replace(CONTEXT, measuring_version=1)
    async with Store.open(database) as store:
        winner = store.get_winner(CONTEXT.key)
        assert winner is not None
        assert (winner.config, winner.latency_us, winner.context) == ({"BM": 1}, 5.0, old)
        assert (store.recovered.trials, store.recovered.jobs) == (1, 1)
        retried = await store.begin_trial(old, PROBLEM, 1, {"BM": 2})
        assert retried == 2
        assert await store.finish_trial(retried, measured(4.0)) is not None
    async with Store.open(tmp_path / "fresh.db"):
        pass
    assert schema_of(database) == schema_of(tmp_path / "fresh.db")


async def test_a_step_that_fails_leaves_the_older_schema(database: Path) -> None:
    """A migration is done or is not: one that cannot end changes nothing."""
    made_by(1, database)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE INDEX jobs_by_state ON jobs (kernel)")
    before = schema_of(database)
    with pytest.raises(StoreError, match="jobs_by_state already exists"):
        Store.open(database)
    assert schema_of(database) == before


async def test_a_newer_schema_is_refused(database: Path) -> None:
    """A database of a newer ktuned is left as it is, and the message says what to do."""
    made_by(SCHEMA_VERSION, database)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = database.read_bytes()
    with pytest.raises(StoreError, match=f"schema {SCHEMA_VERSION + 1}") as caught:
        Store.open(database)
    assert "upgrade" in caught.value.hint
    assert database.read_bytes() == before


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    """Someone else's tables are never touched."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE precious (thing TEXT)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store.open(path)
    assert path.read_bytes() == before


async def test_a_fresh_database_says_whose_it_is(store: Store) -> None:
    """The file's header carries ktuned's mark and the version."""
    with closing(sqlite3.connect(store.path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_only_known_outcomes_need_a_figure() -> None:
    """The schema spells ``measured`` as the model does."""
    assert f"outcome <> '{Outcome.MEASURED}'" in "".join(MIGRATIONS[0])
