"""The schema: a newer or a foreign one is refused untouched, and a migration is all or nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from ktuned.model.errors import StoreError
from ktuned.model.values import Outcome
from ktuned.store.database import Store
from ktuned.store.schema import APPLICATION_ID, MIGRATIONS, SCHEMA_VERSION

pytestmark = pytest.mark.anyio


def read_schema(path: Path) -> tuple[int, set[str]]:
    """Return the version, and all statements of the schema."""
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        return version, {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}


async def test_a_failed_migration_changes_nothing(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Store.open(database):
        pass
    before = read_schema(database)
    step = ("CREATE TABLE extra (thing TEXT)", "CREATE INDEX jobs_by_state ON jobs (kernel)")
    monkeypatch.setattr("ktuned.store.schema.MIGRATIONS", (*MIGRATIONS, step))
    monkeypatch.setattr("ktuned.store.schema.SCHEMA_VERSION", SCHEMA_VERSION + 1)
    with pytest.raises(StoreError, match="jobs_by_state already exists"):
        Store.open(database)
    assert read_schema(database) == before


async def test_a_newer_schema_is_refused(database: Path) -> None:
    """The message has the remedy."""
    async with Store.open(database):
        pass
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    before = database.read_bytes()
    with pytest.raises(StoreError, match=f"schema {SCHEMA_VERSION + 1}") as caught:
        Store.open(database)
    assert "upgrade" in caught.value.hint
    assert database.read_bytes() == before


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE precious (thing TEXT)")
    before = path.read_bytes()
    with pytest.raises(StoreError, match="another program"):
        Store.open(path)
    assert path.read_bytes() == before


async def test_a_fresh_database_has_ktuned_s_mark_and_version(store: Store) -> None:
    with closing(sqlite3.connect(store.path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


def test_the_schema_needs_a_latency_for_measured_alone() -> None:
    assert f"outcome <> '{Outcome.MEASURED}'" in "".join(MIGRATIONS[0])
