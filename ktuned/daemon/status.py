"""The answer to ``status``: every part's figures, from memory and one short query, and all notices."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from time import monotonic

from ktuned.daemon.assembly import Parts
from ktuned.daemon.lifetime import Lifetime
from ktuned.protocol import VERSION, RootInfo, StatusAnswer
from ktuned.serve import Server
from ktuned.store import describe_quarantine
from ktuned_client.wire import PROTOCOL_VERSION

_MOST_QUARANTINED = 8
"""Most quarantined configs that are named, the newest ones."""


def collect_status(parts: Parts, server: Server, lifetime: Lifetime) -> StatusAnswer:
    """Return everything that ``ktuned status`` shows."""
    jobs, fleet = parts.jobs, parts.fleet
    return StatusAnswer(
        pid=os.getpid(),
        version=VERSION,
        protocol=PROTOCOL_VERSION,
        socket=parts.settings.socket,
        home=str(parts.settings.state),
        uptime_s=round(monotonic() - lifetime.started, 3),
        rss_bytes=_measure_rss_bytes(),
        cpu_s=round(sum(os.times()[:2]), 3),
        epoch=parts.events.epoch,
        seq=parts.events.seq,
        idle=lifetime.describe_idleness(),
        rates=lifetime.compute_rates(),
        lanes=tuple(lane.describe_lane() for lane in jobs.list_lanes()),
        workers=fleet.describe_workers(),
        gate=fleet.gate.state,
        compile_slots=fleet.compile_slots.total_tokens,
        channels=jobs.describe_channels()
        | {"follow_ups": parts.follow_ups.describe_queue(), "writer": parts.store.describe_writer()},
        server=server.describe_traffic(),
        jobs=jobs.count_jobs(),
        policy=jobs.policy,
        paused=tuple(sorted(jobs.pauses)),
        store=parts.store.measure_store(),
        artifacts=parts.artifacts.describe_artifacts(),
        cluster=parts.cluster.describe_cluster(),
        environments=parts.machine.environments.describe_environments(),
        roots=tuple(map(RootInfo.from_root, parts.catalog.roots)),
        share=parts.team_store.describe_exchange(),
        notices=tuple(filter(None, _list_notices(parts))),
    )


def _list_notices(parts: Parts) -> Iterator[str]:
    """Yield the notices of all parts, for ``status`` and ``doctor``; a part without problems may yield an empty one."""
    store = parts.store
    yield from (store.notice, store.lost, store.damaged)
    yield from describe_quarantine(store.list_suspects()[:_MOST_QUARANTINED])
    yield parts.watcher.notice
    yield parts.renewal.notice
    yield parts.intake.notice
    if parts.jobs.stalled:
        yield f"tuning is paused: {parts.jobs.stalled}"
    yield from parts.adoptions.notices
    yield from parts.fleet.machine.notices
    yield from parts.team_store.notices
    yield from parts.cluster.notices
    yield from parts.machine.notices


def _measure_rss_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()
