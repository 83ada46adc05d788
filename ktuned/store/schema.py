"""The database's tables, as a list of migrations, and the rules for opening a database.

::

    jobs ◀── trials ──▶ contexts        (trials: one row per config tried in a context)
                ▲
             winners                    (derived: which trial is served for a kernel, problem, device, objective)

    pauses                              (devices on which nothing runs until they are resumed)

    anchors                             (configs whose bits exact numerics require, if not the default's)

    projects                            (the name of each root's project)

    roots   kernels   probes            (the last daemon's knowledge, so that the next one answers at once)

    admissions                          (whether a constrained space holds a config, as a worker found it)

    learned                             (names that only compiling or measuring a kernel has shown)

    peaks   launches                    (measured limits of device models; how often applications launched a key)

    meanings   fingerprints             (contents of the digests in contexts, to find what has changed since)
"""

from __future__ import annotations

import sqlite3

from ktuned.model import StoreError
from ktuned.store.faults import read_primary_code

APPLICATION_ID = 0x6B746E64
"""``ktnd`` in the file's header (https://www.sqlite.org/fileformat2.html#application_id): this database is ours."""

UNRELEASED_ID = 0x6B74756E
"""The same in databases from before the first release, which have other tables: they are moved aside."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        f"PRAGMA application_id = {APPLICATION_ID}",
        """CREATE TABLE roots (
            path TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, python TEXT NOT NULL, env TEXT NOT NULL,
            asked_python TEXT NOT NULL, gone_since REAL
        )""",
        "CREATE TABLE projects (path TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE) WITHOUT ROWID",
        "CREATE TABLE kernels (name TEXT PRIMARY KEY, info TEXT NOT NULL, updated REAL NOT NULL)",
        "CREATE TABLE probes (key TEXT PRIMARY KEY, data TEXT NOT NULL, updated REAL NOT NULL)",
        """CREATE TABLE jobs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            kernel TEXT NOT NULL, problem TEXT NOT NULL, key_problem TEXT NOT NULL, device TEXT NOT NULL,
            state TEXT NOT NULL, priority INTEGER NOT NULL, reason TEXT NOT NULL, plan TEXT NOT NULL,
            created REAL NOT NULL, started REAL, finished REAL,
            done INTEGER NOT NULL DEFAULT 0, total INTEGER,
            best_us REAL, best_spread_us REAL, default_us REAL, default_spread_us REAL,
            reference_us REAL, reference_spread_us REAL, best_figure REAL, default_figure REAL,
            outcomes TEXT NOT NULL DEFAULT '{}', message TEXT NOT NULL DEFAULT '', cost TEXT NOT NULL DEFAULT '{}',
            deaths INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX jobs_by_kernel ON jobs (kernel)",
        "CREATE INDEX jobs_by_state ON jobs (state)",
        """CREATE TABLE contexts (
            id INTEGER PRIMARY KEY,
            kernel TEXT NOT NULL, problem TEXT NOT NULL, device TEXT NOT NULL,
            digest TEXT NOT NULL, toolchain TEXT NOT NULL, device_fingerprint TEXT NOT NULL,
            measuring_version INTEGER NOT NULL,
            UNIQUE (kernel, problem, device, digest, toolchain, device_fingerprint, measuring_version)
        )""",
        "CREATE INDEX contexts_by_digest ON contexts (digest)",
        """CREATE TABLE trials (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            context_id INTEGER NOT NULL REFERENCES contexts (id),
            job_id INTEGER NOT NULL REFERENCES jobs (id),
            config TEXT NOT NULL,
            outcome TEXT,
            latency_us REAL, spread_us REAL,
            compile_s REAL NOT NULL DEFAULT 0, lane_s REAL NOT NULL DEFAULT 0,
            message TEXT NOT NULL DEFAULT '', artifact TEXT, detail TEXT NOT NULL DEFAULT '{}',
            content TEXT, updated REAL NOT NULL, deaths INTEGER NOT NULL DEFAULT 0,
            UNIQUE (context_id, config),
            CHECK (outcome <> 'measured' OR latency_us IS NOT NULL)
        )""",
        "CREATE INDEX trials_by_outcome ON trials (context_id, outcome, latency_us)",
        "CREATE INDEX trials_by_job ON trials (job_id)",
        "CREATE INDEX trials_under_way ON trials (id) WHERE outcome IS NULL",
        "CREATE INDEX trials_by_deaths ON trials (id) WHERE deaths > 0",
        "CREATE INDEX trials_by_content ON trials (content) WHERE content IS NOT NULL",
        """CREATE TABLE winners (
            kernel TEXT NOT NULL, problem TEXT NOT NULL, device TEXT NOT NULL, objective TEXT NOT NULL,
            trial_id INTEGER NOT NULL REFERENCES trials (id),
            decided REAL NOT NULL, final INTEGER NOT NULL DEFAULT 0, note TEXT NOT NULL DEFAULT '', before REAL,
            PRIMARY KEY (kernel, problem, device, objective)
        ) WITHOUT ROWID""",
        "CREATE INDEX winners_by_trial ON winners (trial_id)",
        """CREATE TABLE anchors (
            kernel TEXT NOT NULL, problem TEXT NOT NULL, device TEXT NOT NULL, config TEXT NOT NULL,
            PRIMARY KEY (kernel, problem, device)
        ) WITHOUT ROWID""",
        """CREATE TABLE admissions (
            kernel TEXT NOT NULL, space TEXT NOT NULL, problem TEXT NOT NULL, config TEXT NOT NULL,
            admitted INTEGER NOT NULL, read TEXT NOT NULL, PRIMARY KEY (kernel, space, problem, config)
        ) WITHOUT ROWID""",
        """CREATE TABLE learned (
            kernel TEXT NOT NULL, name TEXT NOT NULL, entry TEXT NOT NULL, PRIMARY KEY (kernel, name)
        ) WITHOUT ROWID""",
        """CREATE TABLE meanings (
            kernel TEXT NOT NULL, digest TEXT NOT NULL, parts TEXT NOT NULL, PRIMARY KEY (kernel, digest)
        ) WITHOUT ROWID""",
        "CREATE TABLE fingerprints (digest TEXT PRIMARY KEY, versions TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE pauses (device TEXT PRIMARY KEY) WITHOUT ROWID",
        "CREATE TABLE peaks (device TEXT PRIMARY KEY, figures TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE launches (
            kernel TEXT NOT NULL, problem TEXT NOT NULL, device TEXT NOT NULL,
            count INTEGER NOT NULL, updated REAL NOT NULL, PRIMARY KEY (kernel, problem, device)
        ) WITHOUT ROWID""",
    ),
)
"""Statements that lead from each version (the position) to the next. Released entries must never change."""

SCHEMA_VERSION = len(MIGRATIONS)


def check_ours(connection: sqlite3.Connection, path: str) -> None:
    """Refuse a database that another program or a newer ktuned made; call this before anything is written.

    Raises:
        StoreError: the database is not ours, or its schema is newer than :data:`SCHEMA_VERSION`.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application != APPLICATION_ID and (tables or version or application):
        raise StoreError(
            f"{path} is a database of another program", hint="move it away, or set KTUNED_HOME to another directory"
        )
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"the store {path} has schema {version}; this ktuned knows up to {SCHEMA_VERSION}",
            hint="upgrade ktuned, or set KTUNED_HOME to another directory",
        )


def is_unreleased(connection: sqlite3.Connection) -> bool:
    """Return whether a ktuned from before the first release made the database."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    return bool(application == UNRELEASED_ID)


def migrate_schema(connection: sqlite3.Connection) -> None:
    """Bring the database to :data:`SCHEMA_VERSION`, with one transaction per step, so that each step is atomic.

    Raises:
        StoreError: a step does not fit the existing schema. This does not count as damage, which would start a fresh
            database.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if read_primary_code(error) != sqlite3.SQLITE_ERROR:
                raise
            raise StoreError(
                f"the store cannot be brought from schema {number - 1} to {number} ({error})",
                hint="go back to the ktuned that made it, or set KTUNED_HOME to another directory",
            ) from error
