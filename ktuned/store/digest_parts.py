"""Contents of digests: the parts of a kernel's, the versions of a fingerprint's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from ktuned.store import rows
from ktuned.store.reader import Reader


def keep_digest_parts(connection: sqlite3.Connection, meanings: Sequence[tuple[str, str, str]]) -> None:
    """Keep kernels' newest meanings (name, digest, parts as JSON), and of the older ones those that were measured."""
    connection.executemany("INSERT OR IGNORE INTO meanings (kernel, digest, parts) VALUES (?, ?, ?)", meanings)
    for kernel, digest, _ in meanings:
        drop_unused(connection, kernel, digest)


def drop_unused(connection: sqlite3.Connection, kernel: str, newest: str) -> None:
    """Forget the meanings of a kernel that are neither its newest nor were measured."""
    connection.execute(
        """DELETE FROM meanings WHERE kernel = ? AND digest <> ? AND NOT EXISTS (
            SELECT 1 FROM contexts WHERE contexts.kernel = meanings.kernel AND contexts.digest = meanings.digest)""",
        (kernel, newest),
    )


def load_digest_parts(reader: Reader, kernel: str, digest: str) -> dict[str, str] | None:
    """Return the parts of one digest."""
    select = "SELECT digest, parts FROM meanings WHERE kernel = ? AND digest = ?"
    found = reader.fetch_value(rows.decode_record, select, kernel, digest)
    return found and found[1]


def keep_versions(connection: sqlite3.Connection, fingerprints: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep what fingerprints stand for."""
    entries = [
        (digest, json.dumps({name: str(version) for name, version in said.items()}))
        for digest, said in fingerprints.items()
    ]
    connection.executemany("INSERT OR IGNORE INTO fingerprints (digest, versions) VALUES (?, ?)", entries)


def load_fingerprint_versions(reader: Reader, fingerprint: str) -> dict[str, str] | None:
    """Return what one fingerprint stands for."""
    found = reader.fetch_value(
        rows.decode_record, "SELECT digest, versions FROM fingerprints WHERE digest = ?", fingerprint
    )
    return found and found[1]
