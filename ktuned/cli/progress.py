"""What the event stream says about jobs, folded into one value that a screen can show. No IO.

``fold`` takes a view and an event and returns the next view and the news in it: the moments that deserve a
line of their own. Events of a type that is not known here change nothing, because types are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ktuned.model import Config, JobState, Outcome, Problem, canonical

Event = Mapping[str, Any]

FAILURES = (
    Outcome.COMPILE_ERROR,
    Outcome.COMPILE_TIMEOUT,
    Outcome.UNSUPPORTED,
    Outcome.MISMATCH,
    Outcome.LAUNCH_ERROR,
    Outcome.CRASHED,
    Outcome.HUNG,
    Outcome.CONTENDED,
)
"""Outcomes that left a config without a figure for a reason worth telling, in the order of the way that it goes."""

ENDED = frozenset({JobState.DONE, JobState.CANCELLED, JobState.FAILED})
"""States that a job does not leave."""

Case = tuple[str, str, str]
"""What a winner is kept for: a kernel, a problem's canonical text, a device model."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One job as far as the events told; times are Unix seconds, latencies µs.

    ``failures`` holds the first trial map of each failing outcome. ``seen_at`` and ``seen_done`` say when the job
    was first seen running and how many configs were known then: a resumed job starts with many, and they
    say nothing about its pace. ``told_us`` is the best latency that was news: a ``winner`` comes before the trial
    that made it. ``before_us`` is the latency of the winner that stood when the job began.
    """

    id: int
    kernel: str
    problem: Problem
    device: str
    state: str = JobState.QUEUED
    reason: str = ""
    done: int = 0
    total: int | None = None
    best_us: float | None = None
    best_config: Config | None = None
    told_us: float | None = None
    default_us: float | None = None
    reference_us: float | None = None
    before_us: float | None = None
    outcomes: Mapping[str, int] = field(default_factory=dict)
    failures: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    round: tuple[int, int] | None = None
    message: str = ""
    budget_s: float | None = None
    started: float | None = None
    seen_at: float | None = None
    seen_done: int = 0

    @property
    def case(self) -> Case:
        """What this job's winner is kept for."""
        return (self.kernel, canonical(self.problem), self.device)

    @property
    def is_ended(self) -> bool:
        """Whether no more events are to come."""
        return self.state in ENDED

    @property
    def has_winner(self) -> bool:
        """Whether the job reached what it was asked for."""
        return self.state == JobState.DONE and self.best_us is not None

    @property
    def speedup(self) -> float | None:
        """How many times faster than the declared default the best is."""
        return ratio(self.default_us, self.best_us)

    def time_left_s(self, now: float) -> float | None:
        """Estimate the seconds until the last trial from the pace since the job was first seen; its budget is a cap."""
        budget_left = None
        if self.budget_s is not None and self.started is not None:
            budget_left = max(0.0, self.started + self.budget_s - now)
        if self.total is None or self.seen_at is None or self.done <= self.seen_done:
            return budget_left
        by_pace = max(0.0, (self.total - self.done) * (now - self.seen_at) / (self.done - self.seen_done))
        return by_pace if budget_left is None else min(by_pace, budget_left)


@dataclass(frozen=True, slots=True)
class JobBegan:
    """A job began to run."""

    job: JobView


@dataclass(frozen=True, slots=True)
class NewBest:
    """A trial is better than every one before it in its job."""

    job: JobView
    config: Config
    latency_us: float


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """An outcome of :data:`FAILURES` that its job had not shown before; ``trial`` is its map."""

    job: JobView
    outcome: str
    trial: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class JobEnded:
    """A job is done, was cancelled or failed."""

    job: JobView


@dataclass(frozen=True, slots=True)
class KernelStale:
    """A save changed what a kernel means; its winners are from before."""

    kernel: str


@dataclass(frozen=True, slots=True)
class Seated:
    """A winner that was known took its seat again without a job: an edit was undone, or it was imported."""

    kernel: str
    problem: Problem
    device: str
    config: Config
    latency_us: float


@dataclass(frozen=True, slots=True)
class Reloaded:
    """Kernel files were read again: names of kernels by what became of them, errors with path and line, and files
    that are without one now.
    """

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    errors: tuple[Mapping[str, Any], ...]
    mended: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaneChanged:
    """A device's seat opened, closed or fell sick."""

    device: str
    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerChanged:
    """Something happened to a worker process."""

    pid: int
    role: str
    what: str


News = JobBegan | NewBest | FirstFailure | JobEnded | KernelStale | Seated | Reloaded | LaneChanged | WorkerChanged


@dataclass(frozen=True, slots=True)
class View:
    """All jobs seen so far, in the order they appeared, and the latency (µs) of the last winner of each case."""

    jobs: Mapping[int, JobView] = field(default_factory=dict)
    winners: Mapping[Case, float] = field(default_factory=dict)

    @property
    def is_ended(self) -> bool:
        """Whether every job has ended."""
        return all(job.is_ended for job in self.jobs.values())

    @property
    def active(self) -> list[JobView]:
        """The jobs that are queued or running."""
        return [job for job in self.jobs.values() if not job.is_ended]

    def without_ended(self) -> View:
        """Return the view less the jobs that ended: what an endless watch keeps."""
        return replace(self, jobs={key: job for key, job in self.jobs.items() if not job.is_ended})


def ratio(before_us: float | None, now_us: float | None) -> float | None:
    """Return how many times faster ``now_us`` is, or ``None`` when either is not known."""
    return before_us / now_us if before_us and now_us else None


def begin(jobs: Iterable[Mapping[str, Any]], now: float) -> View:
    """Return the view of these job maps."""
    view = View()
    for state in jobs:
        view, _ = _take_state(view, state, now)
    return view


def remember(view: View, finished: Iterable[Mapping[str, Any]]) -> View:
    """Return the view with the winners of jobs that ended earlier (maps, in any order), to compare later ones with."""
    by_age = sorted((job for job in finished if job.get("best_us")), key=lambda job: job.get("finished") or 0.0)
    found = {_case_of(job): float(job["best_us"]) for job in by_age}
    return replace(view, winners={**found, **view.winners})


def resync(view: View, jobs: Iterable[Mapping[str, Any]], now: float) -> tuple[View, tuple[News, ...]]:
    """Catch up from job maps after events were lost: what ended or began meanwhile is news."""
    news: list[News] = []
    for state in jobs:
        view, more = _take_state(view, state, now)
        news.extend(more)
    return view, tuple(news)


def fold(view: View, event: Event, now: float) -> tuple[View, tuple[News, ...]]:
    """Return the view after ``event`` (a map of the protocol) that arrived at ``now``, and what is worth a line."""
    match event.get("type"):
        case "job_queued" | "job_started" | "job_paused" | "job_done":
            return _take_state(view, event["job_state"], now)
        case "trial_done":
            return _take_trial(view, event, now)
        case "refining":
            return _take_refining(view, event), ()
        case "winner":
            key = (event["kernel"], canonical(event["problem"]), event["device"])
            view = _take_winner(replace(view, winners={**view.winners, key: event["latency_us"]}), event)
            # A job's winner is told by its trials.
            return view, () if event.get("job") is not None else (_seated(event),)
        case "stale":
            return view, (KernelStale(event["kernel"]),)
        case "reloaded":
            keys = ("added", "changed", "removed", "errors", "mended")
            return view, (Reloaded(*(tuple(event.get(key) or ()) for key in keys)),)
        case "lane":
            return view, (LaneChanged(event["device"], event["state"], event.get("reason") or ""),)
        case "worker":
            return view, (WorkerChanged(event["pid"], event["role"], event["what"]),)
    return view, ()


def _with_job(view: View, job: JobView) -> View:
    return replace(view, jobs={**view.jobs, job.id: job})


def _case_of(state: Mapping[str, Any]) -> Case:
    return (state["kernel"], canonical(state["problem"]), state["device"])


def _take_state(view: View, state: Mapping[str, Any], now: float) -> tuple[View, tuple[News, ...]]:
    old = view.jobs.get(state["id"])
    before = old or JobView(
        state["id"], state["kernel"], state["problem"], state["device"], told_us=state.get("best_us")
    )
    job = replace(
        before,
        state=state["state"],
        reason=state.get("reason", before.reason),
        done=state.get("done", before.done),
        total=state.get("total"),
        best_us=state.get("best_us"),
        default_us=state.get("default_us"),
        reference_us=state.get("reference_us"),
        outcomes=state.get("outcomes", before.outcomes),
        message=state.get("message", ""),
        budget_s=state.get("plan", {}).get("seconds"),
        started=state.get("started"),
    )
    news: tuple[News, ...] = ()
    if job.state == JobState.RUNNING and (old is None or old.state != JobState.RUNNING):
        job = replace(job, seen_at=now, seen_done=job.done, before_us=view.winners.get(job.case))
        news = (JobBegan(job),)
    elif job.is_ended and not (old and old.is_ended):
        news = (JobEnded(replace(job, round=None)),)
        job = replace(job, round=None)
    return _with_job(view, job), news


def _take_trial(view: View, event: Event, now: float) -> tuple[View, tuple[News, ...]]:
    trial: Mapping[str, Any] | None = event["trial"]
    old = view.jobs.get(event["job"])
    if old is None:
        if trial is None:
            return view, ()
        old = JobView(event["job"], trial["kernel"], trial["problem"], trial["device"])
    if old.seen_at is None:
        old = replace(old, seen_at=now, seen_done=max(0, event["done"] - 1))
    job = replace(
        old,
        state=old.state if old.is_ended else JobState.RUNNING,
        done=event["done"],
        total=event.get("total"),
        outcomes=event.get("outcomes", old.outcomes),
        best_us=event.get("best_us", old.best_us),
        default_us=event.get("default_us", old.default_us),
    )
    news: tuple[News, ...] = ()
    if trial is not None:
        job, news = _judge(job, trial)
    return _with_job(view, job), news


def _judge(job: JobView, trial: Mapping[str, Any]) -> tuple[JobView, tuple[News, ...]]:
    outcome, latency_us = trial["outcome"], trial.get("latency_us")
    if outcome == Outcome.MEASURED and latency_us is not None and (job.told_us is None or latency_us < job.told_us):
        is_best = job.best_us is None or latency_us <= job.best_us
        job = replace(job, told_us=latency_us, best_config=trial["config"] if is_best else job.best_config)
        return job, (NewBest(job, trial["config"], latency_us),)
    if outcome in FAILURES and outcome not in job.failures:
        job = replace(job, failures={**job.failures, outcome: trial})
        return job, (FirstFailure(job, outcome, trial),)
    return job, ()


def _seated(event: Event) -> Seated:
    return Seated(event["kernel"], event["problem"], event["device"], event["config"], event["latency_us"])


def _take_refining(view: View, event: Event) -> View:
    job = view.jobs.get(event["job"])
    return view if job is None else _with_job(view, replace(job, round=(event["round"], event["rounds"])))


def _take_winner(view: View, event: Event) -> View:
    job = view.jobs.get(event["job"])
    if job is None:
        return view
    return _with_job(view, replace(job, best_config=event["config"], best_us=event["latency_us"]))
