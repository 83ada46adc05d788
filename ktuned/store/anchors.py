"""Table of anchors: configs that were chosen in the default's place, to whose bits exact numerics keep."""

from __future__ import annotations

import json
import sqlite3

from ktuned.model import Config, WinnerKey, canonical
from ktuned.store.pins import Write
from ktuned.store.reader import Reader


class Anchors:
    """The store's anchors, by kernel, problem and device model."""

    def __init__(self, reader: Reader, write: Write) -> None:
        self._reader = reader
        self._write = write

    def find_anchor(self, key: WinnerKey) -> Config | None:
        """Return the anchor that was chosen for a key; ``None`` where the default is it."""
        found = self._reader.fetch_rows(
            "SELECT config FROM anchors WHERE (kernel, problem, device) = (?, ?, ?)",
            key.kernel,
            key.problem,
            key.device,
        )
        config: Config | None = json.loads(found[0][0]) if found else None
        return config

    async def choose_anchor(self, key: WinnerKey, config: Config | None) -> None:
        """Require a config's bits from now on; without a config, the default's."""
        place = key.kernel, key.problem, key.device

        def replace_row(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM anchors WHERE (kernel, problem, device) = (?, ?, ?)", place)
            if config is not None:
                connection.execute("INSERT INTO anchors VALUES (?, ?, ?, ?)", (*place, canonical(config)))

        await self._write(replace_row)
