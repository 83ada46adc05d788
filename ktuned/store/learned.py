"""Table of learned names: what each kernel depends on besides what its inspection finds, as it was when it was learned.

When a name is learned, contexts whose kernel was inspected without it are renamed: nothing that was measured there
depended on the name, or it would have been learned then.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict

import msgspec

from ktuned.model import KernelInfo, KernelName, Observation, Outcome, add_captured, extend_digest
from ktuned.store import digest_parts
from ktuned.store.pins import Write
from ktuned.store.reader import Reader, Row


class LearnedNames:
    """The learned names of all kernels."""

    def __init__(self, reader: Reader, write: Write) -> None:
        self._reader = reader
        self._write = write

    def list_names(self) -> dict[KernelName, dict[str, Observation]]:
        """Return each kernel's names, with what they held when they were learned."""
        found: dict[KernelName, dict[str, Observation]] = {}
        for kernel, entry in self._reader.fetch_values(
            _decode_name, "SELECT kernel, entry FROM learned ORDER BY kernel, name"
        ):
            found.setdefault(kernel, {})[entry.name] = entry
        return found

    async def learn_names(
        self, kernel: KernelInfo, changed: Sequence[Observation], fresh: Sequence[Observation]
    ) -> None:
        """Keep ``changed`` names of a kernel, which has them already, and rename its contexts by the ``fresh`` ones."""

        def learn_names(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT OR REPLACE INTO learned (kernel, name, entry) VALUES (?, ?, ?)",
                [(kernel.name, entry.name, json.dumps(asdict(entry))) for entry in changed],
            )
            _rename_contexts(connection, kernel, fresh)
            info = json.dumps(msgspec.to_builtins(kernel))
            connection.execute("UPDATE kernels SET info = ? WHERE name = ?", (info, kernel.name))

        await self._write(learn_names)


def _rename_contexts(connection: sqlite3.Connection, kernel: KernelInfo, fresh: Sequence[Observation]) -> None:
    """Rename the contexts of each meaning that lacks names, also where its inputs were captured."""
    captures = connection.execute("SELECT DISTINCT digest FROM captures WHERE kernel = ?", (kernel.name,)).fetchall()
    for digest, text in connection.execute(
        "SELECT digest, parts FROM meanings WHERE kernel = ? AND json_valid(parts)", (kernel.name,)
    ).fetchall():
        parts: dict[str, str] = json.loads(text)
        lacking = [entry for entry in fresh if kernel.label_part(entry) not in parts]
        if not lacking:
            continue
        named = extend_digest(digest, lacking)
        parts |= {kernel.label_part(entry): entry.decisive[:16] for entry in lacking}
        connection.execute(
            "INSERT OR IGNORE INTO meanings (kernel, digest, parts) VALUES (?, ?, ?)",
            (kernel.name, named, json.dumps(parts)),
        )
        for captured in ("", *(capture for (capture,) in captures)):
            _rename_digest(connection, kernel.name, add_captured(digest, captured), add_captured(named, captured))
    digest_parts.drop_unused(connection, kernel.name, kernel.digest)


def _rename_digest(connection: sqlite3.Connection, kernel: str, digest: str, named: str) -> None:
    """Give the contexts of one digest of a kernel another digest; one that is there already takes the trials over."""
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
            _merge_contexts(connection, number, twin[0])


def _merge_contexts(connection: sqlite3.Connection, context: int, twin: int) -> None:
    """Move a context's trials to its twin, whose own stay where both have tried a config; remove the context."""
    connection.execute("UPDATE OR IGNORE trials SET context_id = ? WHERE context_id = ?", (twin, context))
    # A winner whose config the other context has measured too is served with that figure.
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


def _decode_name(row: Row) -> tuple[KernelName, Observation]:
    kernel, text = row
    values = json.loads(text)
    return KernelName(kernel), Observation(**{**values, "places": tuple(values["places"])})
