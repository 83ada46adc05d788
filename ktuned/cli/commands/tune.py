"""``ktuned tune``: requests a tuning, follows it, and prints its result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ktuned.cli import lines, output, spawn, text
from ktuned.cli.commands import jobs as job_tables
from ktuned.cli.completion import complete_target
from ktuned.cli.exit_status import Exit
from ktuned.cli.job_view import ENDED, FAILURES, JobView, View
from ktuned.cli.limits import Limits, limits
from ktuned.cli.options import (
    Number,
    WholeNumber,
    as_path,
    config_option,
    device_option,
    given,
    is_path,
    json_option,
    no_spawn_option,
    objective_option,
    priority_option,
    problem_option,
)
from ktuned.cli.present import choose
from ktuned.cli.progress import begin, fold
from ktuned.cli.t1_file import is_t1, kernel_file_of
from ktuned.model import LATENCY, PRESETS, UNTIL
from ktuned_client import Client, DaemonError, DaemonUnavailable

if TYPE_CHECKING:
    from ktuned_client.client import Tuning


@click.command()
@click.argument("target", metavar="PATH|KERNEL", shell_complete=complete_target)
@problem_option
@click.option("--preset", type=click.Choice(list(PRESETS)), help="How thoroughly to measure.")
@click.option("--trials", type=WholeNumber(min=1), help="Try at most this many configs.")
@click.option("--seconds", type=Number(min=0, min_open=True), help="Start no trial after this time.")
@click.option("--strategy", help="The search strategy (auto, guided, exhaustive, random, …).")
@click.option("--until", type=click.Choice(UNTIL), help="Stop with the budget, or when little is left to find.")
@click.option("--seed", type=int, help="The strategy's seed.")
@config_option
@click.option("--again", is_flag=True, help="Measure known configs again; their results stay until then.")
@click.option("--no-team", is_flag=True, help="Search, whatever others share, and share nothing.")
@objective_option
@device_option
@priority_option
@click.option("--detach", is_flag=True, help="Queue the jobs and return at once.")
@click.option("--cancel", "cancels", is_flag=True, help="Make Ctrl-C cancel the jobs instead of detaching from them.")
@no_spawn_option
@json_option
def tune(
    target: str,
    problem: dict[str, Any],
    preset: str | None,
    trials: int | None,
    seconds: float | None,
    strategy: str | None,
    until: str | None,
    seed: int | None,
    configs: list[dict[str, Any]] | None,
    again: bool,
    no_team: bool,
    objective: str | None,
    device: str | None,
    priority: int | None,
    detach: bool,
    cancels: bool,
    no_spawn: bool,
    as_json: bool,
) -> int:
    """Tune a kernel file, a directory, a kernel, or a T1 file.

    Ctrl-C detaches from the jobs, which continue. Exits with 1 unless every job has a winner.
    """
    kernel, path = (None, as_path(target)) if is_path(target) else (target, None)
    if path is not None and is_t1(Path(path)):
        file, is_new = kernel_file_of(Path(path))
        path = str(file)
        if is_new:
            output.say(f"wrote {path}, which declares the kernel of {target}")
    plan = given(problem=problem, device=device, preset=preset, trials=trials, seconds=seconds)
    plan |= given(strategy=strategy, until=until, seed=seed, priority=priority, objective=objective)
    plan |= given(configs=configs, again=again or None, no_team=no_team or None)
    if not no_spawn:
        announce(spawn.ensure())
    with Client() as client, begun(client, kernel, path, **plan) as tuning:
        complain_of(tuning.errors)
        for notice in tuning.notices:
            output.say(notice)
        if detach:
            _print_jobs(tuning, as_json)
            return Exit.NOT_REACHED if tuning.errors or not tuning.jobs else Exit.DONE
        over = {job["id"] for job in tuning.jobs if job["state"] in ENDED}
        try:
            view = follow(tuning, as_json, limits(client))
        except KeyboardInterrupt:
            return _interrupted(client, tuning, cancels)
        if as_json:
            _print_jobs(tuning, as_json)
        elif tuning.jobs:
            _print_outcome(client, view, over)
        elif not tuning.errors:
            output.complain(f"{target} has nothing to tune", "declare problems in the kernel file, or give one with -p")
    reached = bool(view.jobs) and all(job.has_winner for job in view.jobs.values()) and not tuning.errors
    return Exit.DONE if reached else Exit.NOT_REACHED


def begun(client: Client, kernel: str | None, path: str | None, **plan: Any) -> Tuning:
    """Request a tuning; its kernel files are inspected first, and what they import may take long."""
    try:
        with output.patience(f"inspecting {path or kernel}"):
            return client.tune(kernel, path=path, **plan)
    except KeyboardInterrupt:
        output.say("the daemon goes on with the request: `ktuned jobs` shows its jobs, `ktuned cancel JOB` cancels one")
        raise


def announce(pid: int | None) -> None:
    """Print that a daemon was started."""
    if pid is not None:
        output.say(f"started a daemon (pid {pid}); `ktuned stop` ends it")


def complain_of(errors: Iterable[Mapping[str, Any]]) -> None:
    """Print a line for each error in a kernel file."""
    for error in errors:
        what = lines.error_line(error.get("path"), error.get("line"), error["message"])
        output.complain(what, error.get("hint", ""))
        for line in lines.excerpt(error):
            output.say(line)


def follow(tuning: Tuning, as_json: bool, known: Limits | None = None) -> View:
    """Show a tuning until its jobs have ended; return their final view. ``known`` are limits of devices."""
    view = begin(tuning.jobs, known)
    with choose(as_json) as presenter:
        presenter.show(None, view, ())
        for event in tuning:
            view, news = fold(view, event)
            presenter.show(event, view, news)
    # A job's final map includes events from before the subscription.
    for state in tuning.jobs:
        view, _ = fold(view, {"type": "job_done", "job_state": state})
    return view


def _interrupted(client: Client, tuning: Tuning, cancels: bool) -> int:
    active = [job["id"] for job in tuning.jobs if job["state"] not in ENDED]
    numbers = ", ".join(map(str, active))
    if not active:
        return Exit.INTERRUPTED
    if cancels:
        for job in active:
            client.call("cancel", job=job)
        output.say(f"cancelled job {numbers}")
    else:
        output.say(f"detached; job {numbers} continues: `ktuned jobs` shows it, `ktuned cancel {active[0]}` cancels it")
    return Exit.INTERRUPTED


def _print_jobs(tuning: Tuning, as_json: bool) -> None:
    if as_json:
        output.emit_json({"jobs": tuning.jobs, "errors": tuning.errors})
    elif tuning.jobs:
        job_tables.show(tuning.jobs)


def _print_outcome(client: Client, view: View, over: Collection[int]) -> None:
    """Print the winners and the failures; the ends of jobs that were ``over`` before have not been lines yet."""
    columns = ["kernel", "problem", "device", "state", "best", "default", "speed-up", "reference", "winner"]
    if any(job.objective != LATENCY for job in view.jobs.values()):
        columns[columns.index("speed-up")] = "gain"
    figures = ["best", "default", "speed-up", "gain", "reference"]
    output.emit()
    output.table(columns, (_row(client, job, job.id in over) for job in view.jobs.values()), right=figures)
    for job in view.jobs.values():
        for doubt in lines.doubt_lines(job):
            output.emit(doubt)
    failures = [row for job in view.jobs.values() for row in _failures(job)]
    if failures:
        output.emit()
        output.table(["kernel", "what failed", "configs", "such as"], failures, right=["configs"])
        output.emit()
        kernel, outcome, *_ = failures[0]
        output.emit(
            f"`ktuned results {kernel} --outcome {outcome}` lists them, `--trial ID` shows everything about one."
        )


def _row(client: Client, job: JobView, was_over: bool) -> list[str]:
    why = text.first_line(job.message) if was_over else ""
    return [
        job.kernel,
        text.flat(job.problem),
        job.device,
        job.state,
        *_figures(job),
        text.times(job.speedup),
        text.latency_within(job.reference_us, job.reference_spread_us),
        # Last, because it may be long; without a winner, the reason, unless a line has had it.
        text.flat(_winner(client, job)) if job.has_winner else why or text.ABSENT,
    ]


def _figures(job: JobView) -> list[str]:
    """Return the best figure and the default's, by the job's objective."""
    if job.objective == LATENCY:
        best, default = (job.best_us, job.best_spread_us), (job.default_us, job.default_spread_us)
        return [text.latency_within(*best), text.latency_within(*default)]
    return [text.by_objective(job.objective, figure) for figure in (job.best, job.default)]


def _winner(client: Client, job: JobView) -> Mapping[str, Any] | None:
    """Return the winning config from the store, because the final round decides, not the trials seen here."""
    try:
        asked = given(kernel=job.kernel, problem=job.problem, device=job.device, objective=job.objective)
        answer = client.call("lookup", **asked, tune=False)
    except (DaemonError, DaemonUnavailable):
        return job.best_config
    config: Mapping[str, Any] | None = answer.get("config")
    return config


def _failures(job: JobView) -> Iterator[list[str]]:
    for outcome in FAILURES:
        count = job.outcomes.get(outcome, 0)
        if count:
            trial = job.failures.get(outcome, {})
            example = f"{text.flat(trial['config'])} (trial {trial['id']})" if trial else text.ABSENT
            yield [job.kernel, outcome, str(count), example]
