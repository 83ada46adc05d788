"""The event stream, folded into one value that a screen can show. No IO.

``fold`` takes a view and an event and returns the next view and the news in it, which lines and the live screen
are made of. Events of an unknown type change nothing, because types are only ever added.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from ktuned.cli.job_view import FAILURES, MAX_STEPS, Case, JobView, View
from ktuned.cli.limits import Limits, share_of
from ktuned.cli.news import (
    FirstFailure,
    JobBegan,
    JobEnded,
    KernelStale,
    LaneChanged,
    NewBest,
    News,
    PauseChanged,
    Reloaded,
    WinnerChanged,
    WorkerChanged,
)
from ktuned.model import LATENCY, JobState, Objective, Outcome, canonical, cost_of, figure_of, is_latency

Event = Mapping[str, Any]


def begin_view(jobs: Iterable[Mapping[str, Any]], limits: Limits | None = None) -> View:
    """Return the view of these job maps."""
    view, _ = resync_view(View(limits=limits or {}), jobs)
    return view


def add_earlier_winners(view: View, finished: Iterable[Mapping[str, Any]]) -> View:
    """Return the view with the winners of jobs that ended earlier (maps, in any order), to compare later ones with."""
    by_age = sorted((job for job in finished if _best_of(job)), key=lambda job: job.get("finished") or 0.0)
    found = {_case_of(job): float(_best_of(job) or 0.0) for job in by_age}
    return replace(view, winners={**found, **view.winners})


def resync_view(view: View, jobs: Iterable[Mapping[str, Any]]) -> tuple[View, tuple[News, ...]]:
    """Catch up from job maps after events were lost; jobs that ended or began meanwhile are news."""
    news: list[News] = []
    for state in jobs:
        view, more = _take_state(view, state)
        news.extend(more)
    return view, tuple(news)


def add_estimates(view: View, jobs: Iterable[Mapping[str, Any]]) -> View:
    """Return the view with how long its open jobs take and what they wait for, from the daemon's job maps."""
    for state in jobs:
        job = view.jobs.get(state["id"])
        if job is not None and not job.is_ended:
            view = _with_job(view, _with_estimate(job, state))
    return view


def fold_event(view: View, event: Event) -> tuple[View, tuple[News, ...]]:
    """Return the view after ``event`` (a map of the protocol), and the news in it."""
    match event.get("type"):
        case "job_queued" | "job_started" | "job_paused" | "job_done":
            return _take_state(view, event["job_state"])
        case "trial_done":
            return _take_trial(view, event)
        case "refining":
            return _take_refining(view, event), ()
        case "winner":
            return _take_winner(view, event)
        case "stale":
            return view, (KernelStale(event["kernel"]),)
        case "reloaded":
            keys = ("added", "changed", "removed", "errors", "mended")
            return view, (Reloaded(*(tuple(event.get(key) or ()) for key in keys)),)
        case "lane":
            return view, (LaneChanged(event["device"], event["state"], event.get("reason") or ""),)
        case "worker":
            return view, (WorkerChanged(event["pid"], event["role"], event["what"]),)
        case "paused" | "resumed" as kind:
            return view, (PauseChanged(event.get("device"), kind == "paused", event.get("reason") or ""),)
    return view, ()


def _with_job(view: View, job: JobView) -> View:
    return replace(view, jobs={**view.jobs, job.id: job})


def _case_of(state: Mapping[str, Any]) -> Case:
    return (state["kernel"], canonical(state["problem"]), state["device"], _objective_of(state))


def _objective_of(state: Mapping[str, Any]) -> Objective:
    # An earlier daemon knows of no other.
    return Objective(state.get("objective") or LATENCY)


def _best_of(state: Mapping[str, Any]) -> float | None:
    """Return the best figure in a job's map."""
    best: float | None = state.get("best_us" if is_latency(_objective_of(state)) else "best_figure")
    return best


def _with_estimate(job: JobView, state: Mapping[str, Any]) -> JobView:
    return replace(job, left_s=state.get("left_s"), waits_for=state.get("waits_for") or "")


def _take_state(view: View, state: Mapping[str, Any]) -> tuple[View, tuple[News, ...]]:
    old = view.jobs.get(state["id"])
    objective = _objective_of(state)
    announced = cost_of(objective, _best_of(state))
    named = JobView(state["id"], state["kernel"], state["problem"], state["device"], announced=announced)
    before = old or replace(named, objective=objective)
    plan: Mapping[str, Any] = state.get("plan") or {}
    job = replace(
        _with_estimate(before, state),
        state=state["state"],
        reason=state.get("reason", before.reason),
        done=state.get("done", before.done),
        total=state.get("total"),
        best_us=state.get("best_us"),
        best_spread_us=state.get("best_spread_us"),
        default_us=state.get("default_us"),
        default_spread_us=state.get("default_spread_us"),
        reference_us=state.get("reference_us"),
        reference_spread_us=state.get("reference_spread_us"),
        objective=objective,
        best_figure=state.get("best_figure"),
        default_figure=state.get("default_figure"),
        outcomes=state.get("outcomes", before.outcomes),
        message=state.get("message", ""),
        started=state.get("started"),
        finished=state.get("finished"),
        planned=plan.get("trials"),
        planned_s=plan.get("seconds"),
        is_compile_only=bool(plan.get("compile_only")),
        reused=int((state.get("cost") or {}).get("reused", 0)),
    )
    news: tuple[News, ...] = ()
    if job.state == JobState.RUNNING and (old is None or old.state != JobState.RUNNING):
        job = replace(job, before=view.winners.get(job.case))
        news = (JobBegan(job),)
    elif job.is_ended and not (old and old.is_ended):
        job = replace(job, round=None)
        news = (JobEnded(job),)
    return _with_job(view, job), news


def _take_trial(view: View, event: Event) -> tuple[View, tuple[News, ...]]:
    trial: Mapping[str, Any] | None = event["trial"]
    old = view.jobs.get(event["job"])
    if old is None:
        if trial is None:
            return view, ()
        old = JobView(event["job"], trial["kernel"], trial["problem"], trial["device"])
    job = replace(
        old,
        state=old.state if old.is_ended else JobState.RUNNING,
        done=event["done"],
        total=event.get("total"),
        outcomes=event.get("outcomes", old.outcomes),
        best_us=event.get("best_us", old.best_us),
        default_us=event.get("default_us", old.default_us),
        best_figure=event.get("best_figure", old.best_figure),
        default_figure=event.get("default_figure", old.default_figure),
        left_s=event.get("left_s", old.left_s),
    )
    if (cost := cost_of(job.objective, job.best)) is not None:
        steps = (*job.best_so_far, cost)
        job = replace(job, best_so_far=steps[::2] if len(steps) > MAX_STEPS else steps)
    news: tuple[News, ...] = ()
    if trial is not None:
        job, news = _news_of_trial(job, trial)
    return _with_job(view, job), news


def _news_of_trial(job: JobView, trial: Mapping[str, Any]) -> tuple[JobView, tuple[News, ...]]:
    outcome = trial["outcome"]
    figure = figure_of(job.objective, trial.get("latency_us"), trial.get("metrics") or {})
    cost = cost_of(job.objective, figure)
    announced = math.inf if job.announced is None else job.announced
    if outcome == Outcome.MEASURED and figure is not None and cost is not None and cost < announced:
        least = cost_of(job.objective, job.best)
        is_best = least is None or cost <= least
        job = replace(job, announced=cost, best_config=trial["config"] if is_best else job.best_config)
        return job, (NewBest(job, trial["config"], figure),)
    if outcome in FAILURES and outcome not in job.failures:
        job = replace(job, failures={**job.failures, outcome: trial})
        return job, (FirstFailure(job, outcome, trial),)
    return job, ()


def _take_refining(view: View, event: Event) -> View:
    job = view.jobs.get(event["job"])
    return view if job is None else _with_job(view, replace(job, round=(event["round"], event["rounds"])))


def _take_winner(view: View, event: Event) -> tuple[View, tuple[News, ...]]:
    found = WinnerChanged(
        event["kernel"],
        event["problem"],
        event["device"],
        event["config"],
        event["latency_us"],
        event.get("job"),
        _objective_of(event),
        event.get("metrics") or {},
    )
    if found.figure is not None:
        view = replace(view, winners={**view.winners, _case_of(event): found.figure})
    job = None if found.job is None else view.jobs.get(found.job)
    if job is not None:
        figure = None if is_latency(found.objective) else found.figure
        share = share_of(event.get("metrics") or {}, view.limits, found.device)
        best = replace(job, best_config=found.config, best_us=found.latency_us, best_figure=figure, share=share)
        view = _with_job(view, best)
    return view, (found,)
