"""The answer to ``status``: every part's figures in one map, taken from memory and one short query."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, Protocol

import ktuned
from ktuned.catalog import Catalog
from ktuned.devices import Machine
from ktuned.fleet import Executors, Fleet
from ktuned.lookup import Lookups
from ktuned.scheduling import IdlePolicy, Jobs
from ktuned.serve.activity import Activity
from ktuned.serve.events import Events
from ktuned.serve.traffic import Traffic
from ktuned.store import Artifacts, Store
from ktuned_client.wire import PROTOCOL_VERSION


class Pace(Protocol):
    """Rates of the daemon's work, and the idle time after which it ends."""

    @property
    def idle_exit_s(self) -> float:
        """Seconds of inactivity after which the daemon ends; 0 is never."""

    def compute_rates(self) -> Mapping[str, float]:
        """Return how fast each counter rises, per second, over the last minute."""


class StatusReport:
    """Gathers the figures; ``notices`` are what keeps parts from doing well, one line each."""

    def __init__(
        self,
        *,
        socket: str,
        home: str,
        activity: Activity,
        artifacts: Artifacts,
        catalog: Catalog,
        executors: Executors,
        events: Events,
        fleet: Fleet,
        idle_policy: IdlePolicy,
        jobs: Jobs,
        lookups: Lookups,
        machine: Machine,
        notices: Callable[[], Sequence[str]],
        pace: Pace,
        store: Store,
        traffic: Traffic,
    ) -> None:
        self._socket = socket
        self._home = home
        self._activity = activity
        self._artifacts = artifacts
        self._catalog = catalog
        self._executors = executors
        self._events = events
        self._fleet = fleet
        self._idle_policy = idle_policy
        self._jobs = jobs
        self._lookups = lookups
        self._machine = machine
        self._notices = notices
        self._pace = pace
        self._store = store
        self._traffic = traffic
        self._started = monotonic()

    def collect_figures(self) -> dict[str, Any]:
        """Return everything that ``ktuned status`` shows."""
        live = self._jobs.list_live_jobs()
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
            "idle": {"exit_s": self._pace.idle_exit_s, "busy": self._activity.count_busy()},
            "totals": self._activity.read_counters(),
            "rates": dict(self._pace.compute_rates()),
            "lanes": [lane.describe_lane() for lane in self._jobs.list_lanes()],
            "workers": self._fleet.describe_workers(),
            "gate": self._fleet.gate.state,
            "compile_slots": self._fleet.compile_slots.total_tokens,
            "channels": {
                **self._jobs.channel_statistics(),
                "errands": self._lookups.statistics()["follow_ups"],
                "writer": {"used": writer.waiting, "writes": writer.writes, "commits": writer.groups},
            },
            "caches": self._lookups.statistics()["caches"],
            "server": self._traffic.statistics(),
            "events": self._events.statistics(),
            "jobs": {
                "queued": sum(job.state == "queued" for job in live),
                "running": sum(job.state == "running" for job in live),
                "paused": sum(job.state == "paused" for job in live),
                "waits": self._jobs.count_obstacles(),
            },
            "policy": self._idle_policy.policy,
            "paused": sorted(self._jobs.pauses),
            "store": {**self._store.count_rows(), "notice": self._store.notice},
            "artifacts": {
                "bytes": self._artifacts.size,
                "cap_bytes": self._artifacts.cap_bytes,
                "directory": str(self._artifacts.directory),
            },
            "executors": self._executors.describe_hosts(),
            "environments": self._machine.environments.describe_environments(),
            "roots": [{"path": root.path, "name": root.name, "python": root.python} for root in self._catalog.roots],
            "notices": list(self._notices()),
        }


def _rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()
