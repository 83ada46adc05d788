"""A team's findings about the contexts of this machine: read ahead, kept in memory, matched when they are needed.

A lookup never comes here. A job asks once, when it begins, and waits briefly if its kernel was not looked at yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Final

import anyio
import msgspec
import structlog

from ktuned.catalog import Catalog, ForeignNames
from ktuned.devices import Machine
from ktuned.model import Context, KernelInfo, KtunedError, Objective, Observation, canonical
from ktuned.scheduling.team_link import TeamDown, TeamLink, Use
from ktuned.store import Artifacts
from ktuned.team import (
    MAX_CANDIDATES,
    MAX_OBJECT_BYTES,
    Candidate,
    LearnedName,
    ObjectName,
    SharedWinner,
    address_of,
    calls,
    candidates,
    kernel_prefix,
    key_of,
    unpack,
)

_log = structlog.get_logger()

FIRST_LOOK_S: Final = 5.0
"""A job waits this long for a first look at its context: a search costs more, and a store elsewhere takes a second."""

MAX_HELD: Final = 16 * 2**20
"""Weight of the objects in memory, 2,000 of the usual ones: beyond it the kernel that was looked at the longest ago is
forgotten, and of one kernel's objects only the newest are read."""

OBJECT_WEIGHT: Final = 8 * 1024
"""Added to an object's bytes: some 3 KiB in memory, for names that many share are held once."""

MAX_MATCHED: Final = 4
"""Digests of one context that are matched: each may take a look at its names by a worker."""


class _Held(msgspec.Struct, frozen=True):
    """A sound object as it was listed last: its weight, and when it was written, by the storage's clock."""

    winner: SharedWinner
    weight: int
    modified: float


class _Kernel(msgspec.Struct):
    """The knowledge about one kernel: the addresses that were looked at, and the sound objects there by their names."""

    looked_at: set[str] = msgspec.field(default_factory=set)
    objects: dict[str, dict[str, _Held]] = msgspec.field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(map(len, self.objects.values()))

    @property
    def weight(self) -> int:
        return sum(held.weight for found in self.objects.values() for held in found.values())


class TeamWinners:
    """Others' winners for contexts of this machine; :meth:`look` reads them, :meth:`best` matches them."""

    def __init__(
        self,
        link: TeamLink,
        *,
        catalog: Catalog,
        machine: Machine,
        foreign_names: ForeignNames,
        artifacts: Artifacts,
        first_look_s: float = FIRST_LOOK_S,
    ) -> None:
        self._link = link
        self._catalog = catalog
        self._machine = machine
        self._foreign_names = foreign_names
        self._artifacts = artifacts
        self._first_look_s = first_look_s
        self._kernels: dict[str, _Kernel] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._store = link.settings.identity

    @property
    def held(self) -> int:
        """The number of winners in memory."""
        return sum(kernel.count for kernel in self._kernels.values())

    async def look(self, kernel: KernelInfo, contexts: Iterable[tuple[Context, Objective]]) -> None:
        """Read the winners of some contexts of a kernel, and again those of contexts that were looked at before.

        Raises:
            TeamDown: the storage cannot be used now.
        """
        async with self._locks.setdefault(kernel.name, anyio.Lock()):
            self._forget_other_stores()
            # The last one looked at stands last.
            known = self._kernels[kernel.name] = self._kernels.pop(kernel.name, _Kernel())
            wanted = known.looked_at | {self.address(kernel, context, by) for context, by in contexts}
            entries = await self._link.find(kernel_prefix(kernel.name), wanted, MAX_CANDIDATES)
            listed = _within(entries, MAX_HELD)
            held = {name: one.winner for found in known.objects.values() for name, one in found.items()}
            sound = held | await self._link.fetch(kernel.name, [one.name for one in listed if one.name not in held])
            names: dict[tuple[LearnedName, ...], tuple[LearnedName, ...]] = {}
            known.objects = {}
            for one in listed:
                parts = ObjectName.parse(one.name)
                if parts is not None and one.name in sound:
                    place = known.objects.setdefault(parts.address, {})
                    winner = sound[one.name]
                    shared = names.setdefault(winner.names, winner.names)
                    place[one.name] = _Held(replace(winner, names=shared), _weight(one), one.modified)
            known.looked_at = wanted
            self._forget_oldest()

    async def best(self, kernel: KernelInfo, context: Context, objective: Objective) -> Candidate | None:
        """Return the best config that others have found in this very context; waits briefly for a first look at it."""
        if not self._link.settings.is_on:
            return None
        address = self.address(kernel, context, objective)
        known = self._kernels.get(kernel.name)
        is_looked_at = known is not None and address in known.looked_at and self._is_store_same()
        if not is_looked_at and not self._link.pause_s(Use.READ):
            with anyio.move_on_after(self._first_look_s):
                try:
                    await self.look(kernel, [(context, objective)])
                except TeamDown:
                    # The link has a notice of it.
                    return None
        best = next(iter(await self.match(kernel, context, objective)), None)
        if best is not None and self._link.settings.trust_artifacts:
            with anyio.move_on_after(self._first_look_s):
                await self._bring_artifact(kernel.name, best.winner.artifact)
        return best

    async def match(
        self, kernel: KernelInfo, context: Context, objective: Objective, written_after: float = 0.0
    ) -> list[Candidate]:
        """Return the configs among those that were read whose very context this is, the best first.

        Objects that were last written before ``written_after``, by the storage's clock, are left out.
        """
        known = self._kernels.get(kernel.name)
        if known is None or not self._is_store_same():
            return []
        held = known.objects.get(self.address(kernel, context, objective), {}).values()
        groups: dict[tuple[str, tuple[str, ...]], list[SharedWinner]] = {}
        # Those of the very digest first: no number of others with other headers hides them.
        recent = [one.winner for one in held if one.modified >= written_after]
        for winner in sorted(recent, key=lambda one: one.digest != context.digest):
            if _is_alike(winner, context, objective):
                names = tuple(sorted(entry.name for entry in winner.names))
                groups.setdefault((winner.digest, names), []).append(winner)
        matching: list[SharedWinner] = []
        for (digest, _), group in list(groups.items())[:MAX_MATCHED]:
            try:
                if await self._is_digest(kernel, context, digest, group[0]):
                    matching += group
            except KtunedError as error:
                _log.info("team_names_not_matched", kernel=kernel.name, reason=error.message)
        return candidates(matching)

    async def _bring_artifact(self, kernel: str, name: str) -> None:
        """Put another's compiled kernel among ours, so that it need not be compiled; without it that is done."""
        key = key_of(name)
        if not key or self._artifacts.find(key) is not None:
            return
        try:
            data = await self._link.fetch_artifact(name)
            if data is not None:
                await self._artifacts.adopt(key, partial(unpack, name, data))
            self._link.note_damage(f"{kernel} artifact", [])
        except TeamDown:
            # The link has a notice of it.
            return
        except KtunedError as error:
            self._link.note_damage(f"{kernel} artifact", [error.message])

    def address(self, kernel: KernelInfo, context: Context, objective: Objective) -> str:
        """Return where the winners of a context of a kernel are."""
        return address_of(context, kernel.learned.values(), objective)

    async def _is_digest(self, kernel: KernelInfo, context: Context, digest: str, winner: SharedWinner) -> bool:
        """Return whether a winner's digest is what the kernel means here; names that hold are learned."""
        now = self._catalog.resolve(kernel.name)
        if now.version != kernel.version:
            return False

        is_match = False

        def is_known(exported: str) -> bool:
            nonlocal is_match
            is_match = self._machine.digest(replace(now, digest=exported), context.problem) == digest
            return is_match

        names = [Observation(one.name, "", is_source=one.is_source, is_data=one.is_data) for one in winner.names]
        await self._foreign_names.match(now, names, is_known)
        return is_match

    def _is_store_same(self) -> bool:
        return self._store == self._link.settings.identity

    def _forget_other_stores(self) -> None:
        if not self._is_store_same():
            self._store = self._link.settings.identity
            self._kernels.clear()

    def _forget_oldest(self) -> None:
        while sum(kernel.weight for kernel in self._kernels.values()) > MAX_HELD and len(self._kernels) > 1:
            del self._kernels[next(iter(self._kernels))]


def _within(entries: Iterable[calls.Listed], most: int) -> list[calls.Listed]:
    """Return the newest entries, those that weigh no more together."""
    newest = sorted(entries, key=lambda one: (-one.modified, one.name))
    return [entry for entry, total in zip(newest, accumulate(map(_weight, newest)), strict=True) if total <= most]


def _weight(entry: calls.Listed) -> int:
    # One that is too large is refused when it is read, with a notice.
    return OBJECT_WEIGHT + (entry.size if entry.size <= MAX_OBJECT_BYTES else 0)


def _is_alike(winner: SharedWinner, context: Context, objective: Objective) -> bool:
    """Return whether a winner is of a context, but for its digest: an object's name is only what its writer says."""
    theirs = (winner.kernel, canonical(winner.problem), winner.device, winner.toolchain, winner.device_fingerprint)
    ours = (context.kernel, context.problem, context.device, context.toolchain, context.device_fingerprint)
    return (theirs, winner.measuring_version, winner.objective) == (ours, context.measuring_version, objective)
