"""Tables that only one part of the daemon uses, each with its reads and its writes.

================  =========================================================================================
anchors           configs chosen in place of the default, whose bits exact numerics require
admissions        a worker's verdicts whether a config is in a kernel's space for a problem, so that a daemon
                  that has just started can serve winners of constrained spaces without a worker
================  =========================================================================================
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from ktuned.model import Config, DeviceModel, KernelName, KeyProblem, WinnerKey, canonical
from ktuned.store.reader import Reader

T = TypeVar("T")

MAX_VERDICTS = 10_000
"""Verdicts stored for one kernel, some 200 bytes each: more than it has winners. When there would be more, the stored
ones are deleted, and workers are asked again."""


class Write(Protocol):
    """Runs an operation on the writer's connection and returns its result once that is on the disk."""

    def __call__(self, operation: Callable[[sqlite3.Connection], T]) -> Awaitable[T]:
        """Run it."""


class Table:
    """A table; ``write`` runs the operations that change it."""

    def __init__(self, reader: Reader, write: Write) -> None:
        self._reader = reader
        self._write = write


class Anchors(Table):
    """The store's anchors, by kernel, problem and device model."""

    def find_anchor(self, key: WinnerKey) -> Config | None:
        """Return the anchor that was chosen for a key; ``None`` if the default is the anchor."""
        found = self._reader.fetch_rows(
            "SELECT config FROM anchors WHERE (kernel, problem, device) = (?, ?, ?)",
            key.kernel,
            key.problem,
            key.device,
        )
        config: Config | None = json.loads(found[0][0]) if found else None
        return config

    def load_anchors(self, kernel: KernelName) -> dict[tuple[KeyProblem, DeviceModel], Config]:
        """Return a kernel's chosen anchors, by problem and device model."""
        found = self._reader.fetch_rows("SELECT problem, device, config FROM anchors WHERE kernel = ?", kernel)
        return {(problem, device): json.loads(config) for problem, device, config in found}

    async def choose_anchor(self, key: WinnerKey, config: Config | None) -> None:
        """Require a config's bits from now on; without a config, the default's."""
        place = key.kernel, key.problem, key.device

        def replace_row(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM anchors WHERE (kernel, problem, device) = (?, ?, ?)", place)
            if config is not None:
                connection.execute("INSERT INTO anchors VALUES (?, ?, ?, ?)", (*place, canonical(config)))

        await self._write(replace_row)


class Verdict(NamedTuple):
    """A verdict whether a config is in a space.

    Attributes:
        problem: The whole problem, as canonical text.
        config: The config, as canonical text.
        admitted: Whether the space has the config.
        read: Digests of the files and variables that the space's code may have read, by name, as canonical text. The
            verdict holds only for these.
    """

    problem: str
    config: str
    admitted: bool
    read: str = "{}"


class Admissions(Table):
    """The store's verdicts, by kernel and the digest of its space."""

    def load_verdicts(self, kernel: str, space: str) -> list[Verdict]:
        """Return the verdicts that are stored for a kernel's space."""
        return [
            Verdict(problem, config, bool(admitted), read)
            for problem, config, admitted, read in self._reader.fetch_rows(
                "SELECT problem, config, admitted, read FROM admissions WHERE kernel = ? AND space = ?", kernel, space
            )
        ]

    async def save_verdicts(self, kernel: str, space: str, verdicts: Sequence[Verdict]) -> None:
        """Store verdicts of a kernel's present space, and delete those of its earlier spaces."""

        def save_verdicts(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM admissions WHERE kernel = ? AND space <> ?", (kernel, space))
            (count,) = connection.execute("SELECT count(*) FROM admissions WHERE kernel = ?", (kernel,)).fetchone()
            if count + len(verdicts) > MAX_VERDICTS:
                connection.execute("DELETE FROM admissions WHERE kernel = ?", (kernel,))
            connection.executemany(
                "INSERT OR REPLACE INTO admissions (kernel, space, problem, config, admitted, read) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [(kernel, space, *verdict) for verdict in verdicts[:MAX_VERDICTS]],
            )

        await self._write(save_verdicts)
