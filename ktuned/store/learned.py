"""Table of learned names: each kernel's dependencies that its inspection does not find, with their state when learned.

When a name is learned, the digests of the kernel's contexts without this name are extended by it. Measurements in these
contexts did not depend on the name, or it would have been learned then.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from ktuned.model import KernelInfo, KernelName, Observation, extend_digest
from ktuned.store import writes
from ktuned.store.reader import Row
from ktuned.store.tables import Table
from ktuned.store.winners import Winner


class LearnedNames(Table):
    """The learned names of all kernels."""

    def list_names(self) -> dict[KernelName, dict[str, Observation]]:
        """Return each kernel's names, with their state when they were learned."""
        found: dict[KernelName, dict[str, Observation]] = {}
        for kernel, entry in self._reader.fetch_values(
            _decode_name, "SELECT kernel, entry FROM learned ORDER BY kernel, name"
        ):
            found.setdefault(kernel, {})[entry.name] = entry
        return found

    async def learn_names(
        self, kernel: KernelInfo, changed: Sequence[Observation], fresh: Sequence[Observation]
    ) -> None:
        """Store ``changed`` names of a kernel, which already has them; extend its contexts' digests by ``fresh``."""

        def learn_names(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "INSERT OR REPLACE INTO learned (kernel, name, entry) VALUES (?, ?, ?)",
                [(kernel.name, entry.name, msgspec.json.encode(entry).decode()) for entry in changed],
            )
            _rename_contexts(connection, kernel, fresh)
            info = json.dumps(msgspec.to_builtins(kernel))
            connection.execute("UPDATE kernels SET info = ? WHERE name = ?", (info, kernel.name))

        await self._write(learn_names)

    async def replace_names(
        self, kernel: KernelInfo, gone: Collection[str], entries: Sequence[Observation], valid: Sequence[Winner]
    ) -> None:
        """Store names in place of others, which no longer count in the kernel's digest.

        The ``valid`` winners' trials become trials of the kernel's present state.
        """

        def replace_names(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "DELETE FROM learned WHERE kernel = ? AND name = ?", [(kernel.name, name) for name in gone]
            )
            connection.executemany(
                "INSERT OR REPLACE INTO learned (kernel, name, entry) VALUES (?, ?, ?)",
                [(kernel.name, entry.name, msgspec.json.encode(entry).decode()) for entry in entries],
            )
            for winner in valid:
                writes.move_trial(connection, winner.trial, replace(winner.context, digest=kernel.digest))
            info = json.dumps(msgspec.to_builtins(kernel))
            connection.execute("UPDATE kernels SET info = ? WHERE name = ?", (info, kernel.name))

        await self._write(replace_names)


def _rename_contexts(connection: sqlite3.Connection, kernel: KernelInfo, fresh: Sequence[Observation]) -> None:
    """Extend the digests of contexts whose meaning lacks names."""
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
        writes.rename_contexts(connection, kernel.name, digest, named)
    writes.forget_unused_meanings(connection, kernel.name, kernel.digest)


def _decode_name(row: Row) -> tuple[KernelName, Observation]:
    kernel, text = row
    return KernelName(kernel), msgspec.json.decode(text, type=Observation)
