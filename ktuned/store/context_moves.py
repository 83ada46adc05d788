"""Contexts that get another name, because a project was renamed or a kernel's digest has a part more.

A module of its own: both writers of such names need it, and neither owns it.
"""

from __future__ import annotations

import sqlite3

from ktuned.model import Outcome


def rename_contexts(connection: sqlite3.Connection, kernel: str, digest: str, named: str) -> None:
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
            merge_contexts(connection, number, twin[0])


def merge_contexts(connection: sqlite3.Connection, context: int, twin: int) -> None:
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
