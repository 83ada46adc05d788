"""Table of devices' limits, by device model.

A module of its own: no other table has to do with it.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict

from ktuned.model import DeviceModel, Peaks
from ktuned.store.reader import Reader, Row


def all_of(reader: Reader) -> dict[DeviceModel, Peaks]:
    """Return each device model's limits."""
    found = reader.fetch_values(_decode_peaks, "SELECT device, figures FROM peaks ORDER BY device")
    return {peaks.device: peaks for peaks in found}


def save_peaks(connection: sqlite3.Connection, peaks: Peaks) -> None:
    """Keep a device model's limits in place of those before."""
    connection.execute("INSERT OR REPLACE INTO peaks VALUES (?, ?)", (peaks.device, json.dumps(asdict(peaks))))


def _decode_peaks(row: Row) -> Peaks:
    return Peaks(**json.loads(row[1]))
