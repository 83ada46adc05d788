"""Table of launches: the launches of each kernel on each problem and device model that applications have counted.

A module of its own: like ``peaks``, it concerns one table and nothing else.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping

from ktuned.model import DeviceModel, KernelName, KeyProblem, WinnerKey
from ktuned.store.reader import Reader

MAX_KEYS = 10_000
"""Keys whose launches are kept, those that were launched last: as many as jobs may wait."""


def read_launches(reader: Reader) -> dict[WinnerKey, int]:
    """Return the launches of each key, the one that was launched last at the end; the objective is always latency."""
    found = reader.fetch_rows("SELECT kernel, problem, device, count FROM launches ORDER BY updated")
    return {
        WinnerKey(KernelName(kernel), KeyProblem(problem), DeviceModel(device)): count
        for kernel, problem, device, count in found
    }


def add_launches(connection: sqlite3.Connection, counts: Mapping[WinnerKey, int], now: float) -> None:
    """Add launches to those that are known; of too many keys, forget those that were launched longest ago."""
    connection.executemany(
        """INSERT INTO launches (kernel, problem, device, count, updated) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT DO UPDATE SET count = count + excluded.count, updated = excluded.updated""",
        [(key.kernel, key.problem, key.device, count, now) for key, count in counts.items()],
    )
    connection.execute(
        """DELETE FROM launches WHERE (kernel, problem, device) IN (
            SELECT kernel, problem, device FROM launches ORDER BY updated DESC LIMIT -1 OFFSET ?)""",
        (MAX_KEYS,),
    )
