"""A daemon's ``status`` as OpenMetrics text. No IO.

Source of the format: OpenMetrics 1.0 (https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

import msgspec

from ktuned.protocol import StatusAnswer, WorkerInfo

_OF_A_JOB: Final = re.compile(r"(?P<name>.+) \(job (?P<job>\d+)\)")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(msgspec.Struct, frozen=True):
    """One metric; its samples have the same name and type, and differ in their labels.

    ``unit`` is the last word of the name (for a counter, the word before ``_total``), or empty.
    """

    name: str
    type: Literal["gauge", "counter", "info"]
    help: str
    samples: tuple[tuple[Mapping[str, Any], float], ...] = msgspec.field(default=())
    unit: str = ""

    def render_lines(self) -> Iterator[str]:
        """Yield the family as text, without line ends."""
        yield f"# TYPE {self.name} {self.type}"
        if self.unit:
            yield f"# UNIT {self.name} {self.unit}"
        yield f"# HELP {self.name} {self.help.translate(_ESCAPES)}"
        suffix = {"gauge": "", "counter": "_total", "info": "_info"}[self.type]
        for labels, value in self.samples:
            pairs = ",".join(f'{name}="{str(label).translate(_ESCAPES)}"' for name, label in labels.items())
            yield f"{self.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {value}"


def render_metrics(status: StatusAnswer) -> str:
    """Return a daemon's status in OpenMetrics format; a field that the daemon's version lacks has no samples."""
    lines = (line for family in _list_families(status) if family.samples for line in family.render_lines())
    return "\n".join([*lines, "# EOF", ""])


def _list_families(status: StatusAnswer) -> Iterator[Family]:
    build = {"version": status.version, "protocol": status.protocol}
    yield Family("ktuned_build", "info", "The daemon that answered.", ((build, 1),))
    yield _gauge_family("ktuned_uptime_seconds", "Time since the daemon's start.", status.uptime_s, unit="seconds")
    yield _gauge_family(
        "ktuned_resident_memory_bytes", "Resident memory of the daemon.", status.rss_bytes, unit="bytes"
    )
    yield _counter_family("ktuned_cpu_seconds", "CPU time of the daemon itself.", status.cpu_s, unit="seconds")
    if (totals := status.totals) is not None:
        yield _counter_family("ktuned_requests", "Answered requests of any method.", totals.requests)
        yield _counter_family("ktuned_lookups", "Answered lookups.", totals.lookups)
        yield _counter_family("ktuned_trials", "Ended trials.", totals.trials)
    if (server := status.server) is not None:
        yield _counter_family("ktuned_connections_refused", "Connections closed for exceeding a limit.", server.refused)
        yield _gauge_family("ktuned_connections", "Open connections.", server.connections)
        yield _gauge_family("ktuned_requests_pending", "Requests without an answer yet.", server.pending)
    if (events := status.events) is not None:
        yield _gauge_family("ktuned_subscribers", "Connections that receive events.", events.subscribers)
        yield _gauge_family("ktuned_subscribers_lagging", "Those of them that read too slowly.", events.lagging)
    if (jobs := status.jobs) is not None:
        states = {"queued": jobs.queued, "running": jobs.running, "paused": jobs.paused}
        yield _labelled_family("ktuned_jobs", "Jobs by state.", "state", states)
    yield Family("ktuned_workers", "gauge", "Worker processes.", tuple(_count_workers(status.workers)))
    lanes = [({"device": lane.device, "model": lane.model}, lane) for lane in status.lanes]
    busy = tuple((labels, int(lane.job is not None)) for labels, lane in lanes)
    yield Family("ktuned_lane_busy", "gauge", "1 if a device is measuring.", busy)
    sick = tuple((labels, int(lane.is_sick)) for labels, lane in lanes)
    yield Family("ktuned_lane_sick", "gauge", "1 if a device has failed.", sick)
    channels = [(_label_channel(name), channel) for name, channel in status.channels.items()]
    used = tuple((labels, channel.used) for labels, channel in channels)
    yield Family("ktuned_channel_used", "gauge", "Entries in a queue.", used)
    sizes = tuple((labels, channel.size) for labels, channel in channels if channel.size is not None)
    yield Family("ktuned_channel_size", "gauge", "Capacity of a queue.", sizes)
    if status.caches is not None:
        entries = msgspec.structs.asdict(status.caches)
        yield _labelled_family("ktuned_cache_entries", "Entries in a cache of answers.", "cache", entries)
    if (store := status.store) is not None:
        rows = {"trials": store.trials, "winners": store.winners, "jobs": store.jobs}
        yield _labelled_family("ktuned_store_rows", "Rows of the store.", "table", rows)
        yield _gauge_family("ktuned_store_bytes", "Size of the store.", store.bytes, unit="bytes")
    if (artifacts := status.artifacts) is not None:
        yield _gauge_family("ktuned_artifacts_bytes", "Size of the compiled kernels.", artifacts.bytes, unit="bytes")
        yield _gauge_family(
            "ktuned_artifacts_cap_bytes", "Limit of the compiled kernels' size.", artifacts.cap_bytes, unit="bytes"
        )
    if status.notices is not None:
        yield _gauge_family("ktuned_notices", "Notices of `ktuned status`.", len(status.notices))


def _gauge_family(name: str, help_text: str, value: float | None, *, unit: str = "") -> Family:
    return Family(name, "gauge", help_text, () if value is None else (({}, value),), unit)


def _counter_family(name: str, help_text: str, value: float | None, *, unit: str = "") -> Family:
    return Family(name, "counter", help_text, () if value is None else (({}, value),), unit)


def _labelled_family(name: str, help_text: str, label: str, values: Mapping[str, float]) -> Family:
    return Family(name, "gauge", help_text, tuple(({label: key}, value) for key, value in values.items()))


def _count_workers(workers: Iterable[WorkerInfo]) -> Iterator[tuple[Mapping[str, Any], float]]:
    counted = Counter((worker.role, worker.state) for worker in workers)
    for (role, state), count in sorted(counted.items()):
        yield {"role": role, "state": state}, count


def _label_channel(name: str) -> dict[str, str]:
    of_a_job = _OF_A_JOB.fullmatch(name)
    return {"channel": of_a_job["name"], "job": of_a_job["job"]} if of_a_job else {"channel": name}
