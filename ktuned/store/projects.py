"""Names of projects by the paths of their roots, including roots that are not watched any more.

A root that is watched again gets the name that it had, unless another root has taken the name.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from ktuned.model import ProjectName
from ktuned.store.tables import Table


class Projects(Table):
    """The names of the roots' projects."""

    def load_names(self) -> dict[str, ProjectName]:
        """Return the name of each root that has had one, by its path."""
        return {path: ProjectName(name) for path, name in self._reader.fetch_rows("SELECT path, name FROM projects")}

    async def save_names(self, names: Mapping[str, str]) -> None:
        """Store the names of roots, by their paths."""

        def save_names(connection: sqlite3.Connection) -> None:
            for path, name in names.items():
                # A root that is not watched any more may lose its name to another root.
                connection.execute("DELETE FROM projects WHERE name = ? OR path = ?", (name, path))
                connection.execute("INSERT INTO projects (path, name) VALUES (?, ?)", (path, name))
                connection.execute("UPDATE OR IGNORE roots SET name = ? WHERE path = ?", (name, path))

        await self._write(save_names)
