"""Folds the event stream into one value that lines, bars, notebooks and the live screen show. No IO.

:func:`fold_event` takes a :class:`View` and an event, and returns the next view and the news in it. It is the only
place that folds events of jobs: lines are made of the news (:mod:`~ktuned.cli.lines`), and the rows of the live screen
follow a view's jobs (:mod:`~ktuned.cli.watch.board`). An event that needs nothing else to be understood is its own
news. An event that concerns no view leaves the view unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from ktuned.model import (
    Config,
    FrozenStruct,
    Objective,
    Outcome,
    Peaks,
    Problem,
    canonical,
    compute_shares,
    convert_to_cost,
    needs_metric,
    select_figure,
)
from ktuned.protocol import (
    ConfigCompiled,
    Event,
    Job,
    JobEvent,
    JobInfo,
    JobState,
    KernelsReloaded,
    KernelStale,
    LaneChanged,
    Refining,
    Trial,
    TrialDone,
    TuningPaused,
    TuningResumed,
    WinnerChanged,
)

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
"""Outcomes without a figure whose reason is worth showing, in the order of a trial's stages."""

Case = tuple[str, str, str, str]
"""A winner's key: a kernel, a problem's canonical text, a device model, an objective."""


def make_case(kernel: str, problem: Problem, device: str, objective: Objective) -> Case:
    """Return the key of a winner."""
    return kernel, canonical(problem), device, objective


class JobView(FrozenStruct):
    """One job, and the facts that only its events report.

    Attributes:
        job: the job.
        best_config: the config that has the best figure.
        announced: cost of the best figure that was news already, because a ``winner`` event comes before the event of
            its trial.
        before: figure of the winner when the job began, in the objective's unit.
        share: the winner's share of the device's limit, in words.
        failures: the first trial of each failing outcome.
        round: number of the final round that is being measured, and number of all rounds.
    """

    job: JobInfo
    best_config: Config | None = None
    announced: float | None = None
    before: float | None = None
    share: str = ""
    failures: Mapping[Outcome, Trial] = {}
    round: tuple[int, int] | None = None


Limits = Mapping[str, Peaks]
"""Measured limits by device model."""


class View(FrozenStruct):
    """All jobs seen so far, in the order of their appearance, and the figure of the last winner of each case.

    ``limits`` has the measured limits of devices by model.
    """

    jobs: Mapping[int, JobView] = {}
    winners: Mapping[Case, float] = {}
    limits: Limits = {}

    @property
    def is_ended(self) -> bool:
        """True if every job has ended."""
        return all(view.job.is_ended for view in self.jobs.values())

    @property
    def active(self) -> list[JobView]:
        """The jobs that have not ended."""
        return [view for view in self.jobs.values() if not view.job.is_ended]

    def without_ended(self) -> View:
        """Return the view without the jobs that ended, so that the memory of an endless watch stays bounded."""
        return replace(self, jobs={key: view for key, view in self.jobs.items() if not view.job.is_ended})


class JobBegan(FrozenStruct):
    """A job began to run."""

    job: JobInfo


class NewBest(FrozenStruct):
    """A trial is better than every earlier trial of its job; ``figure`` is its figure by the job's objective."""

    job: JobInfo
    config: Config
    figure: float


class FirstFailure(FrozenStruct):
    """A trial has an outcome of :data:`FAILURES` that its job had not shown before."""

    job: JobInfo
    trial: Trial


class JobEnded(FrozenStruct):
    """A job is done, was cancelled or failed."""

    view: JobView


News = (
    JobBegan
    | NewBest
    | FirstFailure
    | JobEnded
    | KernelStale
    | WinnerChanged
    | KernelsReloaded
    | LaneChanged
    | ConfigCompiled
    | TuningPaused
    | TuningResumed
)


def begin_view(jobs: Iterable[JobInfo], limits: Limits | None = None) -> View:
    """Return the view of these jobs."""
    view, _ = resync_view(View(limits=limits or {}), jobs)
    return view


def add_earlier_winners(view: View, finished: Iterable[JobInfo]) -> View:
    """Return the view with the winners of jobs that ended earlier (in any order), to compare later winners with."""
    by_age = sorted(finished, key=lambda job: job.finished or 0.0)
    found = {_make_job_case(job): job.best for job in by_age if job.best}
    return replace(view, winners={**found, **view.winners})


def resync_view(view: View, jobs: Iterable[JobInfo]) -> tuple[View, tuple[News, ...]]:
    """Catch up with jobs after events were lost; jobs that began or ended meanwhile are news."""
    news: list[News] = []
    for job in jobs:
        view, more = _take_job(view, job)
        news.extend(more)
    return view, tuple(news)


def add_estimates(view: View, jobs: Iterable[JobInfo]) -> View:
    """Return the view with the remaining time of its open jobs and what they wait for."""
    for job in jobs:
        known = view.jobs.get(job.id)
        if known is not None and not known.job.is_ended:
            now = replace(known.job, left_s=job.left_s, waits_for=job.waits_for)
            view = _with_job(view, replace(known, job=now))
    return view


def fold_event(view: View, event: Event | None) -> tuple[View, tuple[News, ...]]:
    """Return the view after an event, and the news in it."""
    match event:
        case JobEvent():
            return _take_job(view, event.job_state)
        case TrialDone():
            return _take_trial(view, event)
        case Refining():
            return _take_refining(view, event), ()
        case WinnerChanged():
            return _take_winner(view, event), (event,)
        case KernelStale() | KernelsReloaded() | LaneChanged() | TuningPaused() | TuningResumed() | ConfigCompiled():
            return view, (event,)
    return view, ()


def _with_job(view: View, job: JobView) -> View:
    return replace(view, jobs={**view.jobs, job.job.id: job})


def _make_job_case(job: Job) -> Case:
    return make_case(job.kernel, job.problem, job.device, job.objective)


def _take_job(view: View, job: JobInfo) -> tuple[View, tuple[News, ...]]:
    old = view.jobs.get(job.id)
    new = replace(old, job=job) if old is not None else JobView(job, announced=convert_to_cost(job.objective, job.best))
    news: tuple[News, ...] = ()
    if job.state is JobState.RUNNING and (old is None or old.job.state is not JobState.RUNNING):
        new = replace(new, before=view.winners.get(_make_job_case(job)))
        news = (JobBegan(job),)
    elif job.is_ended and not (old and old.job.is_ended):
        new = replace(new, round=None)
        news = (JobEnded(new),)
    return _with_job(view, new), news


def _take_trial(view: View, event: TrialDone) -> tuple[View, tuple[News, ...]]:
    old = view.jobs.get(event.job)
    if old is None:
        return view, ()
    job = replace(event.update_job(old.job), left_s=event.left_s)
    if not job.is_ended:
        job = replace(job, state=JobState.RUNNING)
    new = replace(old, job=job)
    news: tuple[News, ...] = ()
    if event.trial is not None:
        new, news = _find_news(new, event.trial)
    return _with_job(view, new), news


def _find_news(view: JobView, trial: Trial) -> tuple[JobView, tuple[News, ...]]:
    job, outcome = view.job, trial.outcome
    figure = select_figure(job.objective, trial.latency_us, trial.metrics)
    cost = convert_to_cost(job.objective, figure)
    announced = math.inf if view.announced is None else view.announced
    if outcome is Outcome.MEASURED and figure is not None and cost is not None and cost < announced:
        least = convert_to_cost(job.objective, job.best)
        is_best = least is None or cost <= least
        view = replace(view, announced=cost, best_config=trial.config if is_best else view.best_config)
        return view, (NewBest(job, trial.config, figure),)
    if outcome in FAILURES and outcome not in view.failures:
        return replace(view, failures={**view.failures, outcome: trial}), (FirstFailure(job, trial),)
    return view, ()


def _take_refining(view: View, event: Refining) -> View:
    job = view.jobs.get(event.job)
    return view if job is None else _with_job(view, replace(job, round=(event.round, event.rounds)))


def _take_winner(view: View, event: WinnerChanged) -> View:
    if event.figure is not None:
        case = make_case(event.kernel, event.problem, event.device, event.objective)
        view = replace(view, winners={**view.winners, case: event.figure})
    known = None if event.job is None else view.jobs.get(event.job)
    if known is None:
        return view
    figure = event.figure if needs_metric(event.objective) else None
    job = replace(known.job, best_us=event.latency_us, best_figure=figure)
    share = describe_peak_share(event.metrics, view.limits, event.device)
    return _with_job(view, replace(known, job=job, best_config=event.config, share=share))


def describe_peak_share(metrics: Mapping[str, float], known: Limits, device: str | None) -> str:
    """Return the share of the nearest limit in words; empty if no limit is known."""
    peaks = known.get(device or "")
    found = [] if peaks is None else compute_shares(metrics, peaks)
    return str(found[0]) if found else ""


def concerns_project(kernel: str | None, project: str | None) -> bool:
    """Return whether an event about a kernel, or about none in particular, concerns the project."""
    return project is None or not kernel or kernel.startswith(f"{project}:")
