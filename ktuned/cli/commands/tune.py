"""``ktuned tune``: requests a tuning, follows it, and prints its result."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import click
from click.core import ParameterSource

from ktuned.cli import lines, output, spawn, text
from ktuned.cli.commands.compile_report import compile_space
from ktuned.cli.commands.jobs import format_best_and_default, print_jobs
from ktuned.cli.completion import complete_target
from ktuned.cli.options import (
    AdvancedOption,
    Number,
    SectionedCommand,
    WholeNumber,
    anchor_option,
    config_option,
    device_option,
    is_path,
    json_option,
    numerics_option,
    objective_option,
    priority_option,
    problem_option,
    resolve_path,
)
from ktuned.cli.output import Exit
from ktuned.cli.present import TuningInterrupted, choose_presenter, follow_tuning, request_tuning
from ktuned.cli.progress import FAILURES, JobView, View
from ktuned.model import PRESETS, UNTIL, Config, Outcome, Scalar, needs_metric
from ktuned.protocol import LOOKUP, TUNE, CompileParams, Job, LookupParams, TuneParams, call_method
from ktuned_client import Client, DaemonError, DaemonUnavailable


@click.command(cls=SectionedCommand)
@click.argument("target", metavar="PATH|KERNEL", shell_complete=complete_target)
@problem_option
@click.option("--preset", type=click.Choice(list(PRESETS)), help="How thoroughly to measure.")
@click.option("--trials", type=WholeNumber(min=1), help="Try at most this many configs.")
@click.option(
    "--time-limit",
    "time_limit_s",
    type=Number(min=0, min_open=True),
    metavar="SECONDS",
    help="Try no further config after this time.",
)
@click.option("--strategy", metavar="STRATEGY", help="The search strategy (auto, guided, exhaustive, random, …).")
@device_option
@click.option("--detach", is_flag=True, help="Queue the jobs and return at once.")
@click.option(
    "--compile-only", is_flag=True, help="Only compile; no device is needed. Later jobs use the compiled configs."
)
@json_option
@click.option(
    "--arch", cls=AdvancedOption, metavar="ARCH", help="With --compile-only: the architecture, such as sm_90a."
)
@click.option(
    "--until",
    cls=AdvancedOption,
    type=click.Choice(UNTIL),
    help="Stop when the budget is used, or once a better config is unlikely.",
)
@click.option("--seed", cls=AdvancedOption, type=int, metavar="N", help="The strategy's seed.")
@config_option
@click.option(
    "--remeasure",
    "again",
    cls=AdvancedOption,
    is_flag=True,
    help="Measure known configs again; each keeps its old result until it has a new one.",
)
@objective_option
@numerics_option
@anchor_option
@priority_option
def tune(
    target: str,
    problem: dict[str, Scalar],
    compile_only: bool,
    arch: str | None,
    detach: bool,
    as_json: bool,
    **plan: Any,
) -> int:
    """Tune a kernel file, a directory, or a kernel.

    Ctrl-C detaches, and the jobs continue. Exits with 1 if a job has no winner (with --compile-only: if no config was
    compiled). With --config the exit code says if the config is wrong (4), crashed (5) or hung (6).
    """
    if arch is not None and not compile_only:
        raise click.UsageError("--arch goes with --compile-only")
    kernel, path = (None, resolve_path(target)) if is_path(target) else (target, None)
    if compile_only:
        _refuse_measuring_options()
    with spawn.open_client() as client:
        if compile_only:
            budget = {name: plan[name] for name in _BUDGET}
            return compile_space(client, CompileParams(kernel, path, problem or None, **budget, arch=arch), as_json)
        accepted = request_tuning(client, TUNE, TuneParams(kernel, path, problem or None, **plan))
        jobs, over = accepted.jobs, {job.id for job in accepted.jobs if job.is_ended}
        if not detach:
            try:
                view = follow_tuning(client, accepted, choose_presenter(as_json=as_json))
            except TuningInterrupted as interrupt:
                return _leave_jobs(interrupt.open_jobs)
            jobs = tuple(known.job for known in view.jobs.values())
        if as_json:
            output.emit_json({"jobs": jobs, "errors": accepted.errors})
        elif detach:
            print_jobs(jobs)
        elif jobs:
            _print_outcome(client, view, over)
    if not (jobs or accepted.errors or as_json):
        output.print_error(f"{target} has nothing to tune", "declare problems in the kernel file, or give one with -p")
    if plan["configs"] and not detach and (failed := find_failure(jobs)) is not None:
        return failed
    reached = bool(jobs) and (detach or all(job.has_winner for job in jobs)) and not accepted.errors
    return Exit.DONE if reached else Exit.NOT_REACHED


_FAILURES = {Outcome.MISMATCH: Exit.WRONG, Outcome.CRASHED: Exit.CRASHED, Outcome.HUNG: Exit.HUNG}
"""What the exit status says of a config that ``--config`` names."""


def find_failure(jobs: Iterable[Job]) -> Exit | None:
    """Return what became of the named configs if one is wrong, crashed or hung; None otherwise."""
    outcomes = {outcome for job in jobs for outcome, count in job.outcomes.items() if count}
    return next((code for outcome, code in _FAILURES.items() if outcome in outcomes), None)


_BUDGET = ("trials", "time_limit_s", "strategy", "seed")
"""Options that also apply to compiling."""

_COMPILING = {*_BUDGET, "target", "problem", "compile_only", "arch", "as_json"}


def _refuse_measuring_options() -> None:
    """Refuse options that have no meaning with ``--compile-only``.

    Raises:
        click.UsageError: one was given.
    """
    context = click.get_current_context()
    for param in context.command.params:
        name = param.name or ""
        if name not in _COMPILING and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{param.opts[0]} does not go with --compile-only")


def _leave_jobs(active: list[int]) -> int:
    """Say that the jobs that are open when the command is interrupted continue."""
    numbers = ", ".join(map(str, active))
    if active:
        output.print_message(
            f"detached; job {numbers} continues (`ktuned jobs`); `ktuned jobs {active[0]} --cancel` cancels it"
        )
    return Exit.INTERRUPTED


def _print_outcome(client: Client, view: View, over: Collection[int]) -> None:
    """Print the winners and the failures, and the ends of jobs that were ``over`` before and thus had no event."""
    columns = ["kernel", "problem", "device", "state", "best", "default", "speed-up", "reference", "winner"]
    jobs = [ended.job for ended in view.jobs.values()]
    if any(needs_metric(job.objective) for job in jobs):
        columns[columns.index("speed-up")] = "gain"
    figures = ["best", "default", "speed-up", "gain", "reference"]
    output.emit_line()
    rows = (_job_row(client, ended, ended.job.id in over) for ended in view.jobs.values())
    output.print_table(columns, rows, right=figures)
    for job in jobs:
        for doubt in lines.describe_doubts(job):
            output.emit_line(doubt)
    failures = [row for ended in view.jobs.values() for row in _list_failures(ended)]
    if failures:
        output.emit_line()
        output.print_table(["kernel", "what failed", "configs", "such as"], failures, right=["configs"])
        output.emit_line()
        kernel, outcome, *_ = failures[0]
        output.emit_line(
            f"`ktuned results {kernel} --outcome {outcome}` lists them, `--trial ID` shows everything about one."
        )


def _job_row(client: Client, view: JobView, was_over: bool) -> list[str]:
    job = view.job
    why = text.first_line(job.message) if was_over else ""
    return [
        job.kernel,
        text.format_values(job.problem),
        job.device,
        job.state,
        *_best_and_default(job),
        text.format_factor(job.speedup),
        text.format_with_spread(job.reference_us, job.reference_spread_us)
        + (" noisy" if job.has_noisy_reference else ""),
        # Last, because it may be long. Without a winner it is the reason, unless an earlier line has said it.
        text.format_values(_load_winner(client, view)) if job.has_winner else why or text.ABSENT,
    ]


def _best_and_default(job: Job) -> list[str]:
    """Return the best figure and the default's, by the job's objective."""
    if needs_metric(job.objective):
        return format_best_and_default(job)
    best, default = (job.best_us, job.best_spread_us), (job.default_us, job.default_spread_us)
    return [text.format_with_spread(*best), text.format_with_spread(*default)]


def _load_winner(client: Client, view: JobView) -> Config | None:
    """Return the winning config from the store: the final round decides it, not the trials that were seen here."""
    job = view.job
    try:
        asked = LookupParams(job.kernel, job.problem, job.device, tune=False, objective=job.objective)
        return call_method(client, LOOKUP, asked).config
    except (DaemonError, DaemonUnavailable):
        return view.best_config


def _list_failures(view: JobView) -> Iterator[list[str]]:
    for outcome in FAILURES:
        count = view.job.outcomes.get(outcome, 0)
        if count:
            trial = view.failures.get(outcome)
            example = f"{text.format_values(trial.config)} (trial {trial.id})" if trial else text.ABSENT
            yield [view.job.kernel, outcome, str(count), example]
