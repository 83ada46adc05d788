"""A daemon's ``status`` as OpenMetrics text. No IO.

Source of the format: OpenMetrics 1.0 (https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, Final, Literal

from ktuned.model import Record, record

_OF_A_JOB: Final = re.compile(r"(?P<name>.+) \(job (?P<job>\d+)\)")
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@record
class Family(Record):
    """One metric: its samples share its name and type, and differ in their labels.

    ``unit`` is the name's last word, for a counter before ``_total``, or nothing.
    """

    name: str
    type: Literal["gauge", "counter", "info"]
    help: str
    samples: tuple[tuple[Mapping[str, Any], float], ...] = field(default=())
    unit: str = ""

    def render_lines(self) -> Iterator[str]:
        """Yield the family as text, without line ends."""
        yield f"# TYPE {self.name} {self.type}"
        if self.unit:
            yield f"# UNIT {self.name} {self.unit}"
        yield f"# HELP {self.name} {self.help.translate(_ESCAPES)}"
        suffix = {"gauge": "", "counter": "_total", "info": "_info"}[self.type]
        for labels, value in self.samples:
            said = ",".join(f'{name}="{str(label).translate(_ESCAPES)}"' for name, label in labels.items())
            yield f"{self.name}{suffix}{f'{{{said}}}' if said else ''} {value}"


def render_metrics(status: Mapping[str, Any]) -> str:
    """Return the exposition of a daemon's status; fields that another version lacks have no samples."""
    return "\n".join([*(line for family in list_families(status) for line in family.render_lines()), "# EOF", ""])


def list_families(status: Mapping[str, Any]) -> Iterator[Family]:
    """Yield the metrics of a status whose figures it contains."""
    for family in _all_families(status):
        if family.samples:
            yield family


def _all_families(status: Mapping[str, Any]) -> Iterator[Family]:
    server, events, store = (status.get(part, {}) for part in ("server", "events", "store"))
    build = {name: status[name] for name in ("version", "protocol") if name in status}
    yield Family("ktuned_build", "info", "The daemon that answered.", ((build, 1),) if build else ())
    yield _gauge_family(
        "ktuned_uptime_seconds", "Time since the daemon's start.", status.get("uptime_s"), unit="seconds"
    )
    yield _gauge_family(
        "ktuned_resident_memory_bytes", "Resident memory of the daemon.", status.get("rss_bytes"), unit="bytes"
    )
    yield _counter_family("ktuned_cpu_seconds", "CPU time of the daemon itself.", status.get("cpu_s"), unit="seconds")
    totals = status.get("totals", {})
    yield _counter_family("ktuned_requests", "Answered requests of any method.", totals.get("requests"))
    yield _counter_family("ktuned_lookups", "Answered lookups.", totals.get("lookups"))
    yield _counter_family("ktuned_trials", "Ended trials.", totals.get("trials"))
    yield _counter_family(
        "ktuned_connections_refused", "Connections closed for exceeding a limit.", server.get("refused")
    )
    yield _gauge_family("ktuned_connections", "Open connections.", server.get("connections"))
    yield _gauge_family("ktuned_requests_pending", "Requests without an answer yet.", server.get("pending"))
    yield _gauge_family("ktuned_subscribers", "Connections that receive events.", events.get("subscribers"))
    yield _gauge_family("ktuned_subscribers_lagging", "Those of them that read too slowly.", events.get("lagging"))
    jobs = {state: count for state, count in status.get("jobs", {}).items() if isinstance(count, int)}
    yield _labelled_family("ktuned_jobs", "Jobs by state.", "state", jobs)
    yield Family("ktuned_workers", "gauge", "Worker processes.", tuple(_worker_families(status.get("workers", ()))))
    lanes = status.get("lanes", ())
    yield Family("ktuned_lane_busy", "gauge", "1 if a device is measuring.", _lane_families(lanes, _is_busy))
    yield Family("ktuned_lane_sick", "gauge", "1 if a device has failed.", _lane_families(lanes, _is_sick))
    channels = status.get("channels", {})
    yield Family("ktuned_channel_used", "gauge", "Entries in a queue.", tuple(_channel_family(channels, "used")))
    yield Family("ktuned_channel_size", "gauge", "Capacity of a queue.", tuple(_channel_family(channels, "size")))
    yield _labelled_family("ktuned_cache_entries", "Entries in a cache of answers.", "cache", status.get("caches", {}))
    rows = {table: store[table] for table in ("trials", "winners", "jobs") if table in store}
    yield _labelled_family("ktuned_store_rows", "Rows of the store.", "table", rows)
    yield _gauge_family("ktuned_store_bytes", "Size of the store.", store.get("bytes"), unit="bytes")
    artifacts = status.get("artifacts", {})
    yield _gauge_family("ktuned_artifacts_bytes", "Size of the compiled kernels.", artifacts.get("bytes"), unit="bytes")
    yield _gauge_family(
        "ktuned_artifacts_cap_bytes", "Limit of the compiled kernels' size.", artifacts.get("cap_bytes"), unit="bytes"
    )
    notices = status.get("notices")
    yield _gauge_family("ktuned_notices", "Notices of `ktuned status`.", None if notices is None else len(notices))


def _gauge_family(name: str, said: str, value: float | None, *, unit: str = "") -> Family:
    return Family(name, "gauge", said, () if value is None else (({}, value),), unit)


def _counter_family(name: str, said: str, value: float | None, *, unit: str = "") -> Family:
    return Family(name, "counter", said, () if value is None else (({}, value),), unit)


def _labelled_family(name: str, said: str, label: str, values: Mapping[str, float]) -> Family:
    return Family(name, "gauge", said, tuple(({label: key}, value) for key, value in values.items()))


def _worker_families(workers: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], float]]:
    counted = Counter((worker["role"], worker["state"]) for worker in workers)
    for (role, state), count in sorted(counted.items()):
        yield {"role": role, "state": state}, count


def _is_busy(lane: Mapping[str, Any]) -> bool:
    return lane.get("job") is not None


def _is_sick(lane: Mapping[str, Any]) -> bool:
    return bool(lane["state"] == "sick")


def _lane_families(
    lanes: Iterable[Mapping[str, Any]], holds: Callable[[Mapping[str, Any]], bool]
) -> tuple[tuple[Mapping[str, Any], float], ...]:
    return tuple(({"device": lane["device"], "model": lane["model"]}, int(holds(lane))) for lane in lanes)


def _channel_family(
    channels: Mapping[str, Mapping[str, int]], figure: str
) -> Iterator[tuple[Mapping[str, Any], float]]:
    for channel, statistics in channels.items():
        if figure in statistics:
            of_a_job = _OF_A_JOB.fullmatch(channel)
            labels = {"channel": of_a_job["name"], "job": of_a_job["job"]} if of_a_job else {"channel": channel}
            yield labels, statistics[figure]
