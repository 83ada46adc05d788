"""Names of projects: which root has which, and what it had before. A new name takes everything of the old one along.

::

    projects: path ──▶ name            aliases: old name ──▶ path

The rows of a renamed project get the new name in one transaction; where both names have a row for the same thing,
that of the new name stays.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping

from ktuned.model import ProjectName, canonical
from ktuned.store import writes
from ktuned.store.tables import Table

_AFTER_COLON = chr(ord(":") + 1)
"""All full names of a project lie between its name with a colon and its name with this."""


class Projects(Table):
    """The names of the roots' projects."""

    def load_names(self) -> dict[str, ProjectName]:
        """Return the name of each root that has had one, by its path."""
        return {path: ProjectName(name) for path, name in self._reader.fetch_rows("SELECT path, name FROM projects")}

    def load_aliases(self) -> dict[ProjectName, ProjectName]:
        """Return the present name for each name that a project had before."""
        found = self._reader.fetch_rows("SELECT alias, name FROM aliases JOIN projects USING (path)")
        return {ProjectName(alias): ProjectName(name) for alias, name in found}

    async def save_names(self, names: Mapping[str, str]) -> dict[ProjectName, ProjectName]:
        """Give roots their names, by their paths; return the new name for each old one that was given up.

        What the store holds of an old name is found under the new one from now on.
        """
        return await self._write(lambda connection: _save_names(connection, names))

    async def move_project(self, old: str, new: str) -> None:
        """Give a root's name and its earlier names to another path."""
        await self._write(lambda connection: _move_path(connection, old, new))


def _move_path(connection: sqlite3.Connection, old: str, new: str) -> None:
    if not connection.execute("SELECT 1 FROM projects WHERE path = ?", (old,)).fetchone():
        return
    for table in ("projects", "aliases"):
        connection.execute(f"DELETE FROM {table} WHERE path = ?", (new,))
        connection.execute(f"UPDATE {table} SET path = ? WHERE path = ?", (new, old))


def _save_names(connection: sqlite3.Connection, names: Mapping[str, str]) -> dict[ProjectName, ProjectName]:
    before: dict[str, str] = dict(connection.execute("SELECT path, name FROM projects"))
    renamed = {path: name for path, name in names.items() if before.get(path, name) != name}
    changes: dict[ProjectName, ProjectName] = {}
    for path in _in_order(renamed, before):
        old, new = before[path], renamed[path]
        _move_project(connection, old, new)
        connection.execute("INSERT OR REPLACE INTO aliases (alias, path) VALUES (?, ?)", (old, path))
        changes[ProjectName(old)] = ProjectName(new)
    for path, name in names.items():
        if before.get(path) == name:
            continue
        # Another root that had this name, and is not watched any more, has lost it.
        connection.execute("DELETE FROM projects WHERE name = ? AND path <> ?", (name, path))
        connection.execute("DELETE FROM aliases WHERE alias = ?", (name,))
        connection.execute("INSERT OR REPLACE INTO projects (path, name) VALUES (?, ?)", (path, name))
        connection.execute("UPDATE OR IGNORE roots SET name = ? WHERE path = ?", (name, path))
    return changes


def _in_order(renamed: Mapping[str, str], before: Mapping[str, str]) -> Iterable[str]:
    """Yield the paths to rename, so that a name is free before another project takes it.

    Projects that swap their names are left out: in between their rows could not be distinguished.
    """
    left = dict(renamed)
    while left:
        held = {before[path] for path in left}
        free = [path for path, name in left.items() if name not in held]
        if not free:
            return
        for path in free:
            yield path
            del left[path]


def _move_project(connection: sqlite3.Connection, old: str, new: str) -> None:
    """Move all rows of a project's kernels to its new name."""
    move = _Move(connection, old, new)
    move.move_contexts()
    for table in ("winners", "captures", "meanings", "learned", "anchors"):
        move.move_table(table)
    move.move_table("jobs")
    move.move_kernels()
    move.move_pins()


class _Move:
    """The statements that give rows a new name."""

    def __init__(self, connection: sqlite3.Connection, old: str, new: str) -> None:
        self._connection = connection
        self._old, self._new = old, new
        # A project's name may have colons, a kernel's own has none: `a:b:k` is no kernel of project `a`.
        self._where = "kernel > ? AND kernel < ? AND instr(substr(kernel, ?), ':') = 0"
        self._range = (f"{old}:", f"{old}{_AFTER_COLON}", len(old) + 2)

    def move_table(self, table: str) -> None:
        """Rename the kernels in a table's column ``kernel``; what the new name has already stays."""
        self._connection.execute(
            f"UPDATE OR IGNORE {table} SET kernel = ? || substr(kernel, ?) WHERE {self._where}",
            (f"{self._new}:", len(self._old) + 2, *self._range),
        )
        self._connection.execute(f"DELETE FROM {table} WHERE {self._where}", self._range)

    def move_contexts(self) -> None:
        """Rename contexts; one that is there under the new name takes the trials over."""
        columns = "problem, device, digest, toolchain, device_fingerprint, measuring_version"
        found = self._connection.execute(
            f"SELECT id, kernel, {columns} FROM contexts WHERE {self._where}", self._range
        ).fetchall()
        for number, kernel, *rest in found:
            name = f"{self._new}:{kernel[len(self._old) + 1 :]}"
            twin = self._connection.execute(
                f"SELECT id FROM contexts WHERE (kernel, {columns}) = (?, ?, ?, ?, ?, ?, ?)", (name, *rest)
            ).fetchone()
            if twin is None:
                self._connection.execute("UPDATE contexts SET kernel = ? WHERE id = ?", (name, number))
            else:
                writes.merge_contexts(self._connection, number, twin[0])

    def move_kernels(self) -> None:
        """Rename kernels as they were last inspected; the next inspection finds them unchanged."""
        where = self._where.replace("kernel", "name")
        for name, info in self._connection.execute(
            f"SELECT name, info FROM kernels WHERE {where} AND json_valid(info)", self._range
        ).fetchall():
            renamed_info = json.dumps({**json.loads(info), "project": self._new})
            self._connection.execute(
                "UPDATE OR IGNORE kernels SET name = ?, info = ? WHERE name = ?",
                (f"{self._new}:{name[len(self._old) + 1 :]}", renamed_info, name),
            )
        self._connection.execute(f"DELETE FROM kernels WHERE {where}", self._range)

    def move_pins(self) -> None:
        """Have pins hold for questions by the new name too."""
        start = json.dumps(f"{self._old}:", ensure_ascii=False)[:-1]
        for pin, question, answer, created in self._connection.execute(
            """SELECT pin, question, answer, created FROM pins
            WHERE (instr(question, ?) OR instr(answer, ?)) AND json_valid(question) AND json_valid(answer)""",
            (start, start),
        ).fetchall():
            asked, held = json.loads(question), json.loads(answer)
            for entry in (asked, held):
                project, _, kernel = str(entry.get("kernel", "")).rpartition(":")
                if project == self._old:
                    entry["kernel"] = f"{self._new}:{kernel}"
            self._connection.execute(
                "UPDATE pins SET answer = ? WHERE pin = ? AND question = ?", (json.dumps(held), pin, question)
            )
            self._connection.execute(
                "INSERT OR IGNORE INTO pins (pin, question, answer, created) VALUES (?, ?, ?, ?)",
                (pin, canonical(asked), json.dumps(held), created),
            )
