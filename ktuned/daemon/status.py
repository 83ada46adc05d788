"""The answer to ``status``: every part's figures, taken from memory and one short query."""

from __future__ import annotations

import os
import resource
from time import monotonic

import msgspec

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


class StatusReport(msgspec.Struct, frozen=True, kw_only=True):
    """Gathers the figures; ``settings`` are those of the start, which say where the daemon is."""

    settings: Settings
    artifacts: Artifacts
    catalog: Catalog
    events: Events
    executors: Executors
    fleet: Fleet
    jobs: Jobs
    lifetime: Lifetime
    lookups: Lookups
    machine: Machine
    notices: Notices
    store: Store
    traffic: Traffic
    started: float = msgspec.field(default_factory=monotonic)

    def collect_figures(self) -> StatusAnswer:
        """Return everything that ``ktuned status`` shows."""
        return StatusAnswer(
            pid=os.getpid(),
            version=ktuned.__version__,
            protocol=PROTOCOL_VERSION,
            socket=self.settings.socket,
            home=str(self.settings.state),
            uptime_s=round(monotonic() - self.started, 3),
            rss_bytes=_measure_rss_bytes(),
            cpu_s=round(sum(os.times()[:2]), 3),
            epoch=self.events.epoch,
            seq=self.events.seq,
            idle=self.lifetime.describe_idleness(),
            totals=self.lifetime.read_totals(),
            rates=self.lifetime.compute_rates(),
            lanes=tuple(lane.describe_lane() for lane in self.jobs.list_lanes()),
            workers=self.fleet.describe_workers(),
            gate=self.fleet.gate.state,
            compile_slots=self.fleet.compile_slots.total_tokens,
            channels=self.jobs.describe_channels()
            | {"follow_ups": self.lookups.describe_follow_ups(), "writer": self.store.describe_writer()},
            caches=self.lookups.measure_caches(),
            server=self.traffic.describe_traffic(),
            events=self.events.describe_ring(),
            jobs=self.jobs.count_jobs(),
            policy=self.jobs.policy,
            paused=tuple(sorted(self.jobs.pauses)),
            store=self.store.measure_store(),
            artifacts=self.artifacts.describe_artifacts(),
            executors=self.executors.describe_hosts(),
            environments=self.machine.environments.describe_environments(),
            roots=tuple(map(RootInfo.from_root, self.catalog.roots)),
            notices=tuple(self.notices.collect_notices()),
        )


def _measure_rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()
