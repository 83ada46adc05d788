"""Winners that others share: access to a shared store, and the choice of those winners that hold here.

A lookup never waits for the store. A job asks it once, when it begins, and waits for :data:`FIRST_LOOK_S` at most.

A failing store leads to a notice, never to an error of the daemon. Reading, writing and tidying may fail independently,
for example because a bucket is full or rights are missing. Each is tried again after a pause, which doubles up to a
minute.
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
    hide_secrets,
    make_address,
    open_shared_store,
    rank_candidates,
)
from ktuned.tuning import PresentKey

_log = structlog.get_logger()

R = TypeVar("R")

FIRST_LOOK_S: Final = 5.0
"""A job waits this long for the store. A remote store takes about a second, and a search costs more than this wait."""

CALL_S: Final = 900.0
"""Deadline of a call to the store. Stores have shorter deadlines of their own; a plugin without one must not block
everything else."""

FIRST_PAUSE_S: Final = 5.0
"""Pause after a failure; each further failure doubles it, up to a minute."""

MAX_MATCHED: Final = 4
"""Most digests of one context that are compared with ours: each may need a worker to look at its names."""


class StoreUse(Enum):
    """A use of the store. Each may fail independently of the others."""

    READ = auto()
    WRITE = auto()
    TIDY = auto()


def find_address(key: PresentKey) -> str:
    """Return the address at which a store has the winners of a key."""
    return make_address(key.context, key.kernel.learned.values(), key.objective)


class SharedWinners:
    """Calls the store that the settings name, and finds winners there that hold here.

    Args:
        opened: Opens the store that the settings name.
    """

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
        """The store's URL, and how it is used."""
        return self._settings

    def apply_settings(self, settings: ShareSettings) -> None:
        """Use other settings. Failures are forgotten, because the store may be another one."""
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
        lines = [f"the shared store: {self.fault.rstrip('.')}; tuning continues without it"] if self.fault else []
        return lines + [line for _, line in sorted(self._damage.items())][:3]

    def pause_s(self, *uses: StoreUse) -> float:
        """Return the seconds until the store is tried again for these uses; 0 if it may be now."""
        return max(self._health[use].pause_s for use in uses)

    async def call_store(self, use: StoreUse, call: Callable[[SharedStore], Awaitable[R]]) -> R:
        """Call the store, unless this use of it failed a moment ago.

        Raises:
            SharedStoreDown: The store cannot be used in this way now; a notice says why.
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
            # An error in a plugin must not end the daemon.
            reason = _describe_failure(error)
            log = _log.info if health.is_sick else _log.warning
            health.record_failure(reason)
            log("shared_store_failed", url=hide_secrets(self._settings.url), reason=reason)
            raise SharedStoreDown(reason) from error
        health.record_success()
        return answer

    async def open_store(self) -> None:
        """Open the store, so that a missing plugin is noticed before there is anything to share.

        Raises:
            SharedStoreDown: No plugin serves the URL.
        """
        if self._shared is None:
            await self.call_store(StoreUse.READ, _do_nothing)

    async def find_winners(self, kernel: KernelInfo, keys: Iterable[PresentKey]) -> Found:
        """Read others' winners for some keys of one kernel. Damaged winners are left out, and lead to a notice.

        Raises:
            SharedStoreDown: The store cannot be read now.
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

    async def find_best_candidate(self, key: PresentKey) -> Candidate | None:
        """Return the best config that others have found in exactly a key's context; wait for the store only briefly."""
        if not self._settings.is_on or self.pause_s(StoreUse.READ):
            return None
        with anyio.move_on_after(FIRST_LOOK_S):
            try:
                found = await self.find_winners(key.kernel, [key])
            except SharedStoreDown:
                # A notice says why.
                return None
            matching = await self.match_contexts(key, found)
            return rank_candidates(one.winner for one in matching)[0] if matching else None
        return None

    async def match_contexts(self, key: PresentKey, found: Found) -> list[StoredWinner]:
        """Return the winners that were measured in exactly a key's context.

        Their digests may include names that are not known here yet. If those have the same contents here, they are
        learned.
        """
        context, address = key.context, find_address(key)
        groups: dict[tuple[str, tuple[str, ...]], list[StoredWinner]] = {}
        # Winners with our own digest come first, so that the limit on digests cannot exclude them.
        for one in sorted(found.winners, key=lambda one: one.winner.digest != context.digest):
            if one.address == address and _is_alike(one.winner, context, key.objective):
                names = tuple(sorted(entry.name for entry in one.winner.names))
                groups.setdefault((one.winner.digest, names), []).append(one)
        matching: list[StoredWinner] = []
        for group in list(groups.values())[:MAX_MATCHED]:
            try:
                if await self._has_equal_digest(key.kernel, context, group[0].winner):
                    matching += group
            except KtunedError as error:
                _log.info("shared_names_not_matched", kernel=key.kernel.name, reason=error.message)
        return matching

    async def _has_equal_digest(self, kernel: KernelInfo, context: Context, winner: SharedWinner) -> bool:
        """Return whether a winner's digest equals the kernel's digest here, with the winner's names included."""
        now = self._catalog.resolve_kernel(kernel.name)
        if now.version != kernel.version:
            return False
        names = [Observation(one.name, "", is_source=one.is_source, is_data=one.is_data) for one in winner.names]
        _, exported = await self._foreign_names.match_digest(now, names, [winner.digest])
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
    """Return whether a winner is of this context, apart from its digest. A store may return anything."""
    theirs = (winner.kernel, canonical(winner.problem), winner.device, winner.toolchain, winner.device_fingerprint)
    ours = (context.kernel, context.problem, context.device, context.toolchain, context.device_fingerprint)
    return (theirs, winner.measuring_version, winner.objective) == (ours, context.measuring_version, objective)
