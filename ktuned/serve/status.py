"""What ``status`` shows: every part's figures in one map, taken from memory and one short query."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

import ktuned
from ktuned.catalog import Catalog
from ktuned.devices import Machine
from ktuned.fleet import Fleet
from ktuned.lookup import Lookups
from ktuned.scheduling import Jobs
from ktuned.serve.events import Events
from ktuned.serve.server import Server
from ktuned.store import Artifacts, Store
from ktuned_client.wire import PROTOCOL_VERSION


class Overview:
    """Gathers what is to be seen of a daemon; ``policy`` is replaced when the settings are read again.

    ``notices`` are what keeps parts from doing well, one line each; ``trials`` how many ended since the start.
    """

    def __init__(
        self,
        *,
        socket: str,
        home: str,
        policy: str,
        catalog: Catalog,
        machine: Machine,
        fleet: Fleet,
        store: Store,
        artifacts: Artifacts,
        jobs: Jobs,
        lookups: Lookups,
        events: Events,
        server: Server,
        notices: Callable[[], Sequence[str]],
    ) -> None:
        self.policy = policy
        self._socket = socket
        self._home = home
        self.trials = 0
        self._catalog = catalog
        self._machine = machine
        self._fleet = fleet
        self._store = store
        self._artifacts = artifacts
        self._jobs = jobs
        self._lookups = lookups
        self._events = events
        self._server = server
        self._notices = notices
        self._started = monotonic()

    def counters(self) -> dict[str, int]:
        """Return what only rises: answered ``requests`` and ``lookups``, ended ``trials``."""
        server = self._server.statistics()
        return {"requests": server["answered"], "lookups": self._lookups.answered, "trials": self.trials}

    def busy(self) -> list[str]:
        """Return what keeps an idle daemon from ending: ``clients``, ``jobs``, ``watches``."""
        reasons = {
            "clients": self._server.statistics()["connections"] > 0,
            "jobs": bool(self._jobs.live()),
            "watches": any(os.path.isdir(root.path) for root in self._catalog.roots),
        }
        return [reason for reason, holds in reasons.items() if holds]

    def line(self) -> str:
        """Return the daemon's doings as one line."""
        live = self._jobs.live()
        running = sum(job.state == "running" for job in live)
        return (
            f"{running} jobs running, {len(live) - running} queued; {self._server.statistics()['connections']} clients"
        )

    def status(self, idle_exit_s: float, rates: dict[str, float]) -> dict[str, Any]:
        """Return everything that ``ktuned status`` shows."""
        live = self._jobs.live()
        writer = self._store.statistics()
        return {
            "pid": os.getpid(),
            "version": ktuned.__version__,
            "protocol": PROTOCOL_VERSION,
            "socket": self._socket,
            "home": self._home,
            "uptime_s": round(monotonic() - self._started, 3),
            "rss_bytes": _rss_bytes(),
            "cpu_s": round(sum(os.times()[:2]), 3),
            "epoch": self._events.epoch,
            "seq": self._events.seq,
            "idle": {"exit_s": idle_exit_s, "busy": self.busy()},
            "totals": self.counters(),
            "rates": rates,
            "lanes": [lane.describe() for lane in self._jobs.lanes()],
            "workers": self._fleet.describe(),
            "gate": self._fleet.gate.state,
            "compile_slots": self._fleet.compile_slots.total_tokens,
            "channels": {
                **self._jobs.channels(),
                "errands": self._lookups.statistics()["errands"],
                "writer": {"used": writer.waiting, "writes": writer.writes, "commits": writer.groups},
            },
            "caches": self._lookups.statistics()["caches"],
            "server": self._server.statistics(),
            "events": self._events.statistics(),
            "jobs": {
                "queued": sum(job.state == "queued" for job in live),
                "running": sum(job.state == "running" for job in live),
                "paused": sum(job.state == "paused" for job in live),
                "waits": self._jobs.obstacles(),
            },
            "policy": self.policy,
            "paused": sorted(self._jobs.pauses),
            "store": {**self._store.counts(), "notice": self._store.notice},
            "artifacts": {
                "bytes": self._artifacts.size,
                "cap_bytes": self._artifacts.cap_bytes,
                "directory": str(self._artifacts.directory),
            },
            "environments": self._machine.describe(),
            "roots": [{"path": root.path, "name": root.name, "python": root.python} for root in self._catalog.roots],
            "notices": list(self._notices()),
        }


def _rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()
