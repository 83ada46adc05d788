"""Winners that others share: the daemon's line to a shared store, and which of what it has holds here.

A lookup never waits for the store. A job asks it once, when it begins, for :data:`FIRST_LOOK_S` at most.

A store that fails is a notice, never an error of the daemon's. Reading, writing and tidying fail apart from each other,
as with a full bucket or for want of rights, and each is tried again after a pause that doubles up to a minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from enum import Enum, auto
from typing import Final, TypeVar

import anyio
import structlog

from ktuned.catalog import Catalog, ForeignNames
from ktuned.fleet import Bridge, Health
from ktuned.model import Context, KernelInfo, KtunedError, Objective, Observation, canonical
from ktuned.sharing import (
    Candidate,
    Found,
    SharedStore,
    SharedStoreDown,
    SharedWinner,
    ShareSettings,
    StoredWinner,
    address_of,
    hide_secrets,
    open_shared_store,
    rank_candidates,
)
from ktuned.tuning import PresentKey

_log = structlog.get_logger()

R = TypeVar("R")

FIRST_LOOK_S: Final = 5.0
"""A job waits this long for the store: a search costs more, and a store elsewhere takes a second."""

CALL_S: Final = 900.0
"""Last deadline of a call to the store, which has shorter ones of its own: one that has none must not stop the rest."""

FIRST_PAUSE_S: Final = 5.0
"""Pause after a failure; each further one doubles it, up to a minute."""

MAX_MATCHED: Final = 4
"""Digests of one context that are matched: each may take a look at its names by a worker."""


class StoreUse(Enum):
    """A use of the store: each may be refused without the others."""

    READ = auto()
    WRITE = auto()
    TIDY = auto()


def find_address(key: PresentKey) -> str:
    """Return where a store has the winners of a key."""
    return address_of(key.context, key.kernel.learned.values(), key.objective)


class SharedWinners:
    """Calls the store that the settings name, and matches what it returns; ``opened`` makes the store."""

    def __init__(
        self,
        settings: ShareSettings,
        bridge: Bridge,
        *,
        catalog: Catalog,
        foreign_names: ForeignNames,
        opened: Callable[[ShareSettings, Bridge], SharedStore] = open_shared_store,
    ) -> None:
        self._bridge = bridge
        self._catalog = catalog
        self._foreign_names = foreign_names
        self._opened = opened
        self.apply_settings(settings)

    @property
    def settings(self) -> ShareSettings:
        """The store's place, and the use that is made of it."""
        return self._settings

    def apply_settings(self, settings: ShareSettings) -> None:
        """Use other settings; another store has not failed yet."""
        self._settings = settings
        self._shared: SharedStore | None = None
        self._health = {use: Health(first_pause_s=FIRST_PAUSE_S) for use in StoreUse}
        self._damage: dict[str, str] = {}

    @property
    def fault(self) -> str:
        """The reasons why the store cannot be used; empty if it can."""
        return "; ".join(dict.fromkeys(health.reason for health in self._health.values() if health.is_sick))

    @property
    def notices(self) -> list[str]:
        """Reasons why winners are not shared, one line each."""
        lines = [f"the shared store: {self.fault}; tuning goes on without it"] if self.fault else []
        return lines + [line for _, line in sorted(self._damage.items())][:3]

    def pause_s(self, *uses: StoreUse) -> float:
        """Return the seconds until the store is tried again for these uses; 0 if it may be now."""
        return max(self._health[use].pause_s for use in uses)

    async def call_store(self, use: StoreUse, call: Callable[[SharedStore], Awaitable[R]]) -> R:
        """Use the store, unless that failed a moment ago.

        Raises:
            SharedStoreDown: it cannot be used in this way now; there is a notice.
        """
        health = self._health[use]
        if health.pause_s:
            raise SharedStoreDown(health.reason, hint=f"it is tried again in {health.pause_s:.0f} s")
        try:
            if self._shared is None:
                self._shared = self._opened(self._settings, self._bridge)
            with anyio.fail_after(CALL_S):
                answer = await call(self._shared)
        except Exception as error:
            # A plugin's mistake must not end the daemon.
            reason = _describe_failure(error)
            log = _log.info if health.is_sick else _log.warning
            health.record_failure(reason)
            log("shared_store_failed", url=hide_secrets(self._settings.url), reason=reason)
            raise SharedStoreDown(reason) from error
        health.record_success()
        return answer

    async def open_store(self) -> None:
        """Open the store, so that a plugin that is missing is known before there is anything to share.

        Raises:
            SharedStoreDown: no plugin serves the URL.
        """
        if self._shared is None:
            await self.call_store(StoreUse.READ, _do_nothing)

    async def find_winners(self, kernel: KernelInfo, keys: Iterable[PresentKey]) -> Found:
        """Read what others have for some keys of one kernel; what cannot be believed there is a notice.

        Raises:
            SharedStoreDown: the store cannot be read now.
        """
        addresses = set(map(find_address, keys))
        found = await self.call_store(StoreUse.READ, lambda shared: shared.find(kernel.name, addresses))
        wrong = {one.address: fault for one in found.winners if (fault := one.winner.find_fault())}
        faults = [*found.faults, *(f"a winner at {address} {fault}" for address, fault in wrong.items())]
        self._damage.pop(kernel.name, None)
        if faults:
            more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
            self._damage[kernel.name] = f"the shared store has damaged winners, which are left out: {faults[0]}{more}"
            _log.warning("shared_winners_damaged", kernel=kernel.name, count=len(faults), reason=faults[0])
        return Found(tuple(one for one in found.winners if not one.winner.find_fault()))

    async def find_best(self, key: PresentKey) -> Candidate | None:
        """Return the best config that others have found in a key's very context; waits for the store briefly."""
        if not self._settings.is_on or self.pause_s(StoreUse.READ):
            return None
        with anyio.move_on_after(FIRST_LOOK_S):
            try:
                found = await self.find_winners(key.kernel, [key])
            except SharedStoreDown:
                # There is a notice of it.
                return None
            matching = await self.match_contexts(key, found)
            return rank_candidates(one.winner for one in matching)[0] if matching else None
        return None

    async def match_contexts(self, key: PresentKey, found: Found) -> list[StoredWinner]:
        """Return those winners whose very context this is; names that hold here what they held there are learned."""
        context, address = key.context, find_address(key)
        groups: dict[tuple[str, tuple[str, ...]], list[StoredWinner]] = {}
        # Those of the very digest first: no number of others with other headers hides them.
        for one in sorted(found.winners, key=lambda one: one.winner.digest != context.digest):
            if one.address == address and _is_alike(one.winner, context, key.objective):
                names = tuple(sorted(entry.name for entry in one.winner.names))
                groups.setdefault((one.winner.digest, names), []).append(one)
        matching: list[StoredWinner] = []
        for group in list(groups.values())[:MAX_MATCHED]:
            try:
                if await self._is_digest(key.kernel, context, group[0].winner):
                    matching += group
            except KtunedError as error:
                _log.info("shared_names_not_matched", kernel=key.kernel.name, reason=error.message)
        return matching

    async def _is_digest(self, kernel: KernelInfo, context: Context, winner: SharedWinner) -> bool:
        """Return whether a winner's digest is what the kernel means here."""
        now = self._catalog.resolve_kernel(kernel.name)
        if now.version != kernel.version:
            return False
        names = [Observation(one.name, "", is_source=one.is_source, is_data=one.is_data) for one in winner.names]
        _, exported = await self._foreign_names.match_digest(now, names, [(context.problem, winner.digest)])
        return exported is not None


async def _do_nothing(shared: SharedStore) -> None:
    return


def _describe_failure(error: Exception) -> str:
    """Return a store's failure in one line."""
    if isinstance(error, KtunedError):
        return f"{error.message}{f' ({error.hint})' if error.hint else ''}"
    if isinstance(error, TimeoutError):
        return f"no answer within {CALL_S:.0f} s"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _is_alike(winner: SharedWinner, context: Context, objective: Objective) -> bool:
    """Return whether a winner is of a context, but for its digest: a store may return anything."""
    theirs = (winner.kernel, canonical(winner.problem), winner.device, winner.toolchain, winner.device_fingerprint)
    ours = (context.kernel, context.problem, context.device, context.toolchain, context.device_fingerprint)
    return (theirs, winner.measuring_version, winner.objective) == (ours, context.measuring_version, objective)
