"""What digests were made of: the parts of a kernel's, the versions of a fingerprint's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ktuned.store.rows import Row

Read = Callable[..., list[Row]]


def keep(connection: sqlite3.Connection, meanings: Sequence[tuple[str, str, str]]) -> None:
    """Keep kernels' newest meanings (name, digest, parts as JSON), and of the older ones those that were measured."""
    connection.executemany("INSERT OR IGNORE INTO meanings (kernel, digest, parts) VALUES (?, ?, ?)", meanings)
    connection.executemany(
        """DELETE FROM meanings WHERE kernel = ? AND digest <> ? AND NOT EXISTS (
            SELECT 1 FROM contexts WHERE contexts.kernel = meanings.kernel AND contexts.digest = meanings.digest)""",
        [(kernel, digest) for kernel, digest, _ in meanings],
    )


def of(read: Read, kernel: str, digest: str) -> dict[str, str] | None:
    """Return the parts of one digest."""
    found = read("SELECT parts FROM meanings WHERE kernel = ? AND digest = ?", kernel, digest)
    return next((json.loads(parts) for (parts,) in found), None)


def keep_versions(connection: sqlite3.Connection, fingerprints: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep what fingerprints stand for."""
    entries = [
        (digest, json.dumps({name: str(version) for name, version in said.items()}))
        for digest, said in fingerprints.items()
    ]
    connection.executemany("INSERT OR IGNORE INTO fingerprints (digest, versions) VALUES (?, ?)", entries)


def versions(read: Read, fingerprint: str) -> dict[str, str] | None:
    """Return what one fingerprint stands for."""
    found = read("SELECT versions FROM fingerprints WHERE digest = ?", fingerprint)
    return next((json.loads(said) for (said,) in found), None)
