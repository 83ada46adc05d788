"""Tables that only one part of the daemon uses, each with its reads and its writes.

================  =========================================================================================
anchors           configs chosen in place of the default, whose bits exact numerics require
admissions        a worker's verdicts whether a config is in a kernel's space for a problem, so that a daemon
                  that has just started can serve winners of constrained spaces without a worker
projects          names of projects by the paths of their roots, including roots that are not watched any more; a
                  root that is watched again gets the name that it had, unless another root has taken the name
learned           each kernel's dependencies that its inspection does not find, with their state when learned
================  =========================================================================================

When a name is learned, the digests of the kernel's contexts without this name are extended by it. Measurements in these
contexts did not depend on the name, or it would have been learned then.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from ktuned.model import (
    Config,
    DeviceModel,
    KernelInfo,
    KernelName,
    KeyProblem,
    Observation,
    ProjectName,
    WinnerKey,
    canonical,
    extend_digest,
)
from ktuned.store import writes
from ktuned.store.reader import Reader, Row
from ktuned.store.winners import Winner

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
            _save_names(connection, kernel, changed)
            _rename_contexts(connection, kernel, fresh)

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
            _save_names(connection, kernel, entries)
            for winner in valid:
                writes.move_trial(connection, winner.trial, replace(winner.context, digest=kernel.digest))

        await self._write(replace_names)


def _save_names(connection: sqlite3.Connection, kernel: KernelInfo, entries: Sequence[Observation]) -> None:
    """Store names, and the kernel that has them."""
    connection.executemany(
        "INSERT OR REPLACE INTO learned (kernel, name, entry) VALUES (?, ?, ?)",
        [(kernel.name, entry.name, msgspec.json.encode(entry).decode()) for entry in entries],
    )
    info = json.dumps(msgspec.to_builtins(kernel))
    connection.execute("UPDATE kernels SET info = ? WHERE name = ?", (info, kernel.name))


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
