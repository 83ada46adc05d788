"""The answer to ``status``: every part's figures, taken from memory and one short query."""

from __future__ import annotations

import os
import resource
from time import monotonic

import ktuned
from ktuned.catalog import Catalog
from ktuned.daemon.config import Settings
from ktuned.daemon.lifetime import Lifetime
from ktuned.daemon.notices import Notices
from ktuned.devices import Machine
from ktuned.fleet import Executors, Fleet
from ktuned.lookup import Lookups
from ktuned.protocol import RootInfo, StatusAnswer
from ktuned.scheduling import Jobs
from ktuned.serve import Events, Traffic
from ktuned.store import Artifacts, Store
from ktuned_client.wire import PROTOCOL_VERSION


class StatusReport:
    """Gathers the figures; ``settings`` are those of the start, which say where the daemon is."""

    def __init__(
        self,
        settings: Settings,
        *,
        artifacts: Artifacts,
        catalog: Catalog,
        events: Events,
        executors: Executors,
        fleet: Fleet,
        jobs: Jobs,
        lifetime: Lifetime,
        lookups: Lookups,
        machine: Machine,
        notices: Notices,
        store: Store,
        traffic: Traffic,
    ) -> None:
        self._settings = settings
        self._artifacts = artifacts
        self._catalog = catalog
        self._events = events
        self._executors = executors
        self._fleet = fleet
        self._jobs = jobs
        self._lifetime = lifetime
        self._lookups = lookups
        self._machine = machine
        self._notices = notices
        self._store = store
        self._traffic = traffic
        self._started = monotonic()

    def collect_figures(self) -> StatusAnswer:
        """Return everything that ``ktuned status`` shows."""
        return StatusAnswer(
            pid=os.getpid(),
            version=ktuned.__version__,
            protocol=PROTOCOL_VERSION,
            socket=self._settings.socket,
            home=str(self._settings.state),
            uptime_s=round(monotonic() - self._started, 3),
            rss_bytes=_measure_rss_bytes(),
            cpu_s=round(sum(os.times()[:2]), 3),
            epoch=self._events.epoch,
            seq=self._events.seq,
            idle=self._lifetime.describe_idleness(),
            totals=self._lifetime.read_totals(),
            rates=self._lifetime.compute_rates(),
            lanes=tuple(lane.describe_lane() for lane in self._jobs.list_lanes()),
            workers=self._fleet.describe_workers(),
            gate=self._fleet.gate.state,
            compile_slots=self._fleet.compile_slots.total_tokens,
            channels=self._jobs.describe_channels()
            | {"errands": self._lookups.describe_follow_ups(), "writer": self._store.describe_writer()},
            caches=self._lookups.measure_caches(),
            server=self._traffic.describe_traffic(),
            events=self._events.describe_ring(),
            jobs=self._jobs.count_jobs(),
            policy=self._jobs.policy,
            paused=tuple(sorted(self._jobs.pauses)),
            store=self._store.measure_store(),
            artifacts=self._artifacts.describe_artifacts(),
            executors=self._executors.describe_hosts(),
            environments=self._machine.environments.describe_environments(),
            roots=tuple(map(RootInfo.of, self._catalog.roots)),
            notices=tuple(self._notices.collect_notices()),
        )


def _measure_rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()
