"""Jobs, their news and the errors of kernel files as lines of text. No IO."""

from __future__ import annotations

from ktuned.cli import text
from ktuned.cli.progress import FirstFailure, JobBegan, JobEnded, JobView, NewBest, News, View
from ktuned.model import Objective, Problem, compute_gain, format_objective_suffix, needs_metric
from ktuned.protocol import (
    FileError,
    Job,
    JobState,
    KernelsReloaded,
    KernelStale,
    LaneChanged,
    WinnerChanged,
    find_notices,
    is_noisy,
    is_ratio_implausible,
)

MAX_STANDING = 4
"""Most jobs whose standing is printed at a time."""

WIDE = 1.25
"""A figure gets a warning if its largest likely value is at least this many times its smallest."""


def name_job(job: Job) -> str:
    """Return the name of a job for people: kernel, problem, device."""
    return _compose_title(job.kernel, job.problem, job.device, job.objective)


def _compose_title(kernel: str, problem: Problem, device: str, objective: Objective) -> str:
    named = f"{kernel} [{text.format_values(problem)}] on {device}" if problem else f"{kernel} on {device}"
    return f"{named}{format_objective_suffix(objective)}"


def describe_doubts(job: Job) -> list[str]:
    """Return warnings about a tuned job's figures that are imprecise or hardly believable."""
    if not job.has_winner:
        return []
    found = []
    best, default = _bound_spread(job.best_us, job.best_spread_us), _bound_spread(job.default_us, job.default_spread_us)
    if best is not None and default is not None and not needs_metric(job.objective):
        least, most = default[0] / best[1], default[1] / best[0]
        if most > WIDE * least:
            low, high = map(text.format_factor, (least, most))
            found.append(f"the speed-up over the default varied from {low} to {high}")
    reference = _bound_spread(job.reference_us, job.reference_spread_us)
    if reference is not None and reference[1] > WIDE * reference[0]:
        low, high = map(text.format_latency, reference)
        found.append(f"the reference took from {low} to {high}")
    is_best_noisy = is_noisy(job.best_us, job.best_spread_us) and not needs_metric(job.objective)
    badge = "noisy: " if is_best_noisy or is_noisy(job.reference_us, job.reference_spread_us) else ""
    why = "across the final rounds (other programs, or unlocked clocks?)"
    lines = [f"{name_job(job)}: {badge}{' and '.join(found)} {why}"] if found else []
    if job.reference_us and job.best_us and is_ratio_implausible(job.reference_us, job.best_us):
        doubt = f"noisy: the reference took {job.reference_us / job.best_us:,.0f} times the winner's time"
        lines.append(f"{name_job(job)}: {doubt}: was the machine busy, and does the reference compute the same?")
    return lines


def _bound_spread(latency_us: float | None, spread_us: float | None) -> tuple[float, float] | None:
    """Return the ends of a latency's spread around it, or ``None`` if either is unknown."""
    if not latency_us or spread_us is None:
        return None
    # With a spread of twice the latency or more, the lower end would be zero or negative.
    half_us = min(spread_us / 2, 0.9 * latency_us)
    return latency_us - half_us, latency_us + half_us


def format_progress(job: Job) -> str:
    """Return a job's progress: ``done/total``, or ``done`` if the space cannot be counted."""
    return f"{job.done}/{job.total}" if job.total is not None else str(job.done)


def describe_open_jobs(view: View, now: float | None = None) -> list[str]:
    """Return a line for each open job, running jobs first; after :data:`MAX_STANDING` lines, the number of the others.

    With ``now`` (Unix s), the lines say how long jobs have been running.
    """
    open_jobs = sorted(view.active, key=lambda shown: shown.job.state is not JobState.RUNNING)
    found = [f"{name_job(shown.job)}: {_describe_open_job(shown, now)}" for shown in open_jobs[:MAX_STANDING]]
    more = len(open_jobs) - MAX_STANDING
    return [*found, f"and {text.format_count(more, 'more job')}"] if more > 0 else found


def _describe_open_job(view: JobView, now: float | None) -> str:
    job = view.job
    if job.state is not JobState.RUNNING:
        return f"{job.state}, {job.waits_for}" if job.waits_for else str(job.state)
    tried = f"{format_progress(job)} tried"
    facts = [
        tried if now is None or not job.started else f"{tried} in {text.format_duration(max(0.0, now - job.started))}"
    ]
    if view.round is not None:
        facts.append(describe_stage(view))
    if job.best is not None:
        facts.append(f"best {text.format_by_objective(job.objective, job.best)}")
    return ", ".join(filter(None, (*facts, text.format_time_left(job.left_s))))


def describe_stage(view: JobView) -> str:
    """Return the final round that is measured, or how long the job will still take."""
    if view.round is not None:
        return f"finalists again, round {view.round[0]} of {view.round[1]}"
    return text.format_time_left(view.job.left_s)


def describe_news(news: News) -> list[str]:
    """Return the lines for one piece of news; none if other lines say it already."""
    match news:
        case JobBegan(job) if job.plan.configs:
            return [f"{name_job(job)}: job {job.id} tries {text.format_count(len(job.plan.configs), 'named config')}"]
        case JobBegan(job):
            of = f" of {job.total} configs" if job.total is not None else ""
            known = f", {job.done} known already" if job.done else ""
            return [f"{name_job(job)}: job {job.id} tunes{of}{known}"]
        case NewBest(job, config, figure):
            speedup = compute_gain(job.objective, job.default, figure)
            better = f" ({text.format_factor(speedup)} the default)" if speedup else ""
            best = text.format_by_objective(job.objective, figure)
            return [f"{name_job(job)}: {format_progress(job)} best {best}{better}  {text.format_values(config)}"]
        case FirstFailure(job, trial):
            why = text.first_line(trial.message)
            line = f"{name_job(job)}: {trial.outcome}  {text.format_values(trial.config)}"
            return [f"{line}  {why}" if why else line]
        case JobEnded(view):
            found = find_notices(view.job.message) if view.job.state is JobState.DONE else []
            return [_describe_ended_job(view), *(f"  notice: {text.first_line(notice, limit=300)}" for notice in found)]
        case KernelStale():
            return [f"{news.kernel}: saved, its winners are stale"]
        case WinnerChanged() if news.job is None:
            # The winner of a job needs no line, because the job's trials have shown it.
            named = _compose_title(news.kernel, news.problem, news.device, news.objective)
            reached = text.format_by_objective(news.objective, news.figure)
            return [f"{named}: known already, {reached}  {text.format_values(news.config)}"]
        case KernelsReloaded():
            return _describe_reload(news)
        case LaneChanged():
            why = f" ({text.first_line(news.reason)})" if news.reason else ""
            return [f"lane {news.device}: {news.state}{why}"]
        case _:
            return []


def _describe_ended_job(view: JobView) -> str:
    job = view.job
    if job.state is not JobState.DONE:
        why = text.first_line(job.message, limit=300)
        counts = f" ({text.format_outcomes(job.outcomes)})" if job.outcomes else ""
        # The reason is left out if it equals the state ("cancelled: cancelled").
        return f"{name_job(job)}: job {job.id} {job.state}{f': {why}' if why not in ('', job.state) else ''}{counts}"
    if job.best is None:
        return f"{name_job(job)}: job {job.id} found no valid config ({text.format_outcomes(job.outcomes)})"
    facts = [text.format_by_objective(job.objective, job.best)]
    if needs_metric(job.objective):
        facts.append(text.format_latency(job.best_us))
    if job.speedup:
        facts.append(f"{text.format_factor(job.speedup)} the default")
    if view.share:
        facts.append(view.share)
    if reused := int(job.cost.get("reused", 0)):
        facts.append(f"{reused} of {job.done} configs known")
    if job.total is not None and job.done < job.total:
        # The job reached its time limit, or it converged.
        facts.append(f"{job.done} of {job.total} configs tried")
    change = compute_gain(job.objective, view.before, job.best)
    if change:
        thing = "as good" if needs_metric(job.objective) else "that speed"
        facts.append(
            f"was {text.format_by_objective(job.objective, view.before)}, {text.format_factor(change)} {thing} now"
        )
    config = text.format_values(view.best_config) if view.best_config else ""
    return f"{name_job(job)}: tuned, {', '.join(facts)}  {config}".rstrip()


def _describe_reload(news: KernelsReloaded) -> list[str]:
    lines = [
        f"{verb}: {', '.join(names)}"
        for verb, names in (
            ("added", news.added),
            ("changed", news.changed),
            ("removed", news.removed),
            ("no error any more", news.mended),
        )
        if names
    ]
    return lines + [format_file_error(error) for error in news.errors]


def format_excerpt(error: FileError) -> list[str]:
    """Return the source line of a kernel file's error and the caret below it, indented; empty if there is none."""
    return [f"    {line}" for line in text.clean_message(error.excerpt).splitlines()]


def format_file_error(error: FileError) -> str:
    """Return a kernel file's error, preceded by file and line unless the message starts with them."""
    where = f"{error.path}:{error.line}" if error.line else error.path
    words = text.first_line(error.message, limit=500)
    return words if not where or words.startswith(where) else f"{where}: {words}"
