"""The machine's load while it tunes: trials, lanes, CPUs, and the time that all jobs still need. No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ktuned.backends import CpuTicks
from ktuned.cli import text
from ktuned.model import DeviceModel, FrozenStruct
from ktuned.protocol import JobInfo, JobState, StatusAnswer

MIN_SPAN_S = 0.5
"""Shortest time between two samples from which shares are computed: a single batch of trials fills a shorter one."""


class Sample(FrozenStruct):
    """Counters at a time ``at`` of a monotonic clock: each lane's busy seconds, and the CPUs' ticks."""

    at: float
    busy_s: Mapping[str, float] = {}
    ticks: CpuTicks | None = None


class Load(FrozenStruct):
    """Fractions of time that lanes and CPUs are busy, and trials per second over the last minute; ``None`` if unknown.

    ``sick`` has the reason for each sick lane, by device.
    """

    lanes: Mapping[str, float] = {}
    cpus: float | None = None
    trials_per_s: float | None = None
    sick: Mapping[str, str] = {}


def sample_load(status: StatusAnswer, ticks: CpuTicks | None, at: float) -> Sample:
    """Return the counters of a daemon's status and of the machine."""
    return Sample(at, {lane.device: lane.busy_s for lane in status.lanes}, ticks)


def compute_load(before: Sample | None, now: Sample, status: StatusAnswer) -> Load:
    """Return the load between two samples; ``status`` is the daemon's status at the second sample."""
    rate = status.rates.trials
    sick: dict[str, str] = {lane.device: lane.reason for lane in status.lanes if lane.is_sick}
    if before is None or now.at - before.at < MIN_SPAN_S:
        return Load({}, None, rate, sick)
    span_s = now.at - before.at
    lanes = {
        device: min(1.0, max(0.0, busy_s - before.busy_s.get(device, busy_s)) / span_s)
        for device, busy_s in now.busy_s.items()
    }
    return Load(lanes, _compute_busy_share(before.ticks, now.ticks), rate, sick)


def _compute_busy_share(before: CpuTicks | None, now: CpuTicks | None) -> float | None:
    if before is None or now is None or now.total <= before.total:
        return None
    return min(1.0, max(0.0, 1 - (now.unused - before.unused) / (now.total - before.total)))


class TimeLeft(FrozenStruct):
    """Time until the last open job ends at the current pace, and the number of jobs that it does not include."""

    seconds: float | None = None
    unknown: int = 0


def estimate_time_left(jobs: Iterable[JobInfo], sizes: Mapping[str, int]) -> TimeLeft:
    """Return the time that open jobs still need; ``sizes`` has kernels' numbers of configs, if they can be counted.

    Devices work in parallel, and each measures one job at a time. A waiting job is taken to need as long for a config
    as the job that runs on its device, or else as the jobs on other devices. Paused jobs are left out.
    """
    open_jobs = [job for job in jobs if job.state in (JobState.RUNNING, JobState.QUEUED)]
    paces = {job.device: pace for job in open_jobs if (pace := _compute_seconds_per_config(job)) is not None}
    spent: dict[str, float] = {}
    unknown = 0
    for job in open_jobs:
        needed = job.left_s if job.state == JobState.RUNNING else None
        if needed is None:
            # A running job that does not have its device yet has no pace of its own.
            needed = _estimate_seconds(job, sizes, paces)
        if needed is None:
            unknown += 1
        else:
            spent[job.device] = spent.get(job.device, 0.0) + needed
    return TimeLeft(max(spent.values(), default=None), unknown)


def _compute_seconds_per_config(job: JobInfo) -> float | None:
    """Return the seconds that a running job needs for each of its remaining configs."""
    if job.state != JobState.RUNNING or job.left_s is None or job.total is None or job.total <= job.done:
        return None
    return job.left_s / (job.total - job.done)


def _estimate_seconds(job: JobInfo, sizes: Mapping[str, int], paces: Mapping[DeviceModel, float]) -> float | None:
    configs = min((size for size in (job.total, job.plan.trials, sizes.get(job.kernel)) if size), default=None)
    pace = paces.get(job.device, max(paces.values(), default=None))
    by_pace = None if configs is None or pace is None else pace * max(0, configs - job.done)
    return min((needed for needed in (by_pace, job.plan.time_limit_s) if needed is not None), default=None)


def summarise_load(load: Load, left: TimeLeft, *, running: int, waiting: int) -> str:
    """Return the load in words: ``2.1 trials/s · cpu:0 93 % · CPUs 71 % · 1 running, 2 waiting · 4 min 10 s left``."""
    parts = [] if load.trials_per_s is None else [f"{load.trials_per_s:.3g} trials/s"]
    parts += [f"{device} {share:.0%}" for device, share in load.lanes.items() if device not in load.sick]
    parts += [] if load.cpus is None else [f"CPUs {load.cpus:.0%}"]
    waits = f", {waiting} waiting" if waiting else ""
    parts.append(f"{running} running{waits}" if running or waiting else "no jobs")
    if words := text.format_time_left(left.seconds):
        parts.append(f"more than {words}" if left.unknown else words)
    return " · ".join(parts).replace("%", " %")
