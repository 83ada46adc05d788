"""Notices: what is wrong with parts of the daemon, one line each, for ``status`` and ``doctor``."""

from __future__ import annotations

from collections.abc import Iterator

from ktuned.adoption import Adoptions
from ktuned.daemon.reload import CurrentSettings
from ktuned.devices import Machine
from ktuned.fleet import Bridge, Executors, Fleet
from ktuned.scheduling import GoneRoots, Jobs, Renewal, SharedWinners
from ktuned.store import Store
from ktuned.watch import Watcher


class Notices:
    """Collects the notices of all parts."""

    def __init__(
        self,
        *,
        adoptions: Adoptions,
        bridge: Bridge,
        executors: Executors,
        current: CurrentSettings,
        fleet: Fleet,
        gone_roots: GoneRoots,
        last_end: str,
        jobs: Jobs,
        machine: Machine,
        renewal: Renewal,
        store: Store,
        shared: SharedWinners,
        watcher: Watcher,
    ) -> None:
        self._adoptions = adoptions
        self._bridge = bridge
        self._executors = executors
        self._current = current
        self._fleet = fleet
        self._gone_roots = gone_roots
        self._last_end = last_end
        self._jobs = jobs
        self._machine = machine
        self._renewal = renewal
        self._store = store
        self._shared = shared
        self._watcher = watcher

    def collect_notices(self) -> list[str]:
        """Return what is wrong now."""
        return list(filter(None, self._iterate_notices()))

    def _iterate_notices(self) -> Iterator[str]:
        store = self._store
        yield self._last_end
        yield from (store.notice, store.lost, store.damaged)
        yield self._watcher.notice
        yield self._renewal.notice
        yield self._gone_roots.notice
        yield self._current.notice
        if self._jobs.stalled:
            yield f"tuning is paused: {self._jobs.stalled}"
        yield from self._adoptions.notices
        yield from self._fleet.machine.notices
        yield from self._bridge.notices
        yield from self._shared.notices
        yield from self._executors.notices
        yield from self._machine.notices
