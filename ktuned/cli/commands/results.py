"""``ktuned results``: the trials of a kernel."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click
from msgspec.structs import replace

from ktuned.cli import output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.options import WholeNumber, device_option, json_option, problem_option
from ktuned.cli.output import Exit
from ktuned.cli.progress import Limits, describe_peak_share
from ktuned.cli.trials import describe_facts, list_messages, load_all_trials
from ktuned.model import Outcome, Scalar, format_objective_suffix
from ktuned.protocol import PEAKS, RESULTS, ListedTrial, NumericsReport, ResultsParams, call_method, is_noisy
from ktuned.report import FORMATS, render_trials
from ktuned_client import Client

DEFAULT_LIMIT = 50
"""Default number of trials in a table; they fill about one screen."""

TABLE = "table"

_COLUMNS = ["id", "problem", "device", "config", "outcome", "latency", "spread", "compile", "lane", "age", "message"]
_FIGURES = ["id", "latency", "spread", "compile", "lane", "age"]


@click.command()
@click.argument("kernel", required=False, shell_complete=complete_kernel)
@problem_option
@device_option
@click.option(
    "--outcome", type=click.Choice([str(outcome) for outcome in Outcome]), help="Only trials with this outcome."
)
@click.option("--trial", type=WholeNumber(min=1), help="Show everything about one trial.")
@click.option("--all", "everything", is_flag=True, help="Also trials of earlier versions of the kernel.")
@click.option(
    "--limit",
    type=WholeNumber(min=1),
    help=f"At most this many. Default: {DEFAULT_LIMIT} in a table, else all.",
)
@click.option("--format", "form", type=click.Choice([TABLE, *FORMATS]), help="Default: table.")
@json_option
def results(
    kernel: str | None,
    problem: dict[str, Scalar],
    device: str | None,
    outcome: str | None,
    trial: int | None,
    everything: bool,
    limit: int | None,
    form: str | None,
    as_json: bool,
) -> int:
    """List trials of KERNEL, or show everything about one trial.

    The list has the trials of the kernel's present version, the fastest of each problem first; a star marks winners.
    --json is --format json.
    """
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form} contradict each other")
    form = "json" if as_json else form or TABLE
    if kernel is None and trial is None:
        raise click.UsageError("name a kernel, or a trial with --trial")
    wanted = ResultsParams(
        kernel,
        problem or None,
        device,
        None if outcome is None else Outcome(outcome),
        trial,
        current=trial is None and not everything,
        details=form == "t4",
    )
    known: Limits = {}
    numerics: Sequence[NumericsReport] = ()
    trials: Sequence[ListedTrial]
    with Client() as client:
        if trial is None and limit is None and form != TABLE:
            trials = load_all_trials(client, wanted)
            total = len(trials)
        else:
            counted = replace(wanted, limit=limit or DEFAULT_LIMIT, count=trial is None)
            answer = call_method(client, RESULTS, counted)
            trials, numerics = answer.trials, answer.numerics
            total = answer.total or len(trials)
        if form == TABLE and any(found.metrics for found in trials):
            known = call_method(client, PEAKS).by_device
    if form != TABLE:
        output.emit_line(render_trials(trials, form))
    elif trial is not None:
        for found in trials:
            _print_trial(found)
    elif trials:
        _print_trials(trials, known, with_age=everything)
        for report in numerics:
            output.emit_line()
            output.emit_line(f"{text.format_values(report.problem)} on {report.device}:")
            for line in report.lines:
                output.emit_line(f"  {line}")
    if len(trials) < total:
        output.print_message(f"{len(trials)} of {total} trials; --limit {total} shows all")
    if not trials:
        what = f"no such trial of {kernel}" + ("" if everything else " in its present version")
        output.print_error(
            what, "`ktuned jobs` shows what was tuned" + ("" if everything else ", --all earlier trials")
        )
        return Exit.NOT_REACHED
    return Exit.DONE


def _print_trials(trials: Sequence[ListedTrial], known: Limits, *, with_age: bool) -> None:
    now = time.time()
    named = [{**trial.metrics, **trial.facts} for trial in trials]
    figures = list(dict.fromkeys(name for found in named for name in found))
    shares = [describe_peak_share(trial.metrics, known, trial.device) for trial in trials]
    limit = ["of the limit"] if any(shares) else []
    has_classes = any(trial.bit_class for trial in trials)
    rows = (
        [
            f"{_winner_mark(trial)}{trial.id}",
            text.format_values(trial.problem),
            trial.device,
            text.format_values(trial.config),
            trial.outcome or "under way",
            *([trial.bit_class or text.ABSENT] if has_classes else []),
            text.format_latency(trial.latency_us),
            _format_spread(trial),
            *([share or text.ABSENT] if limit else []),
            *(text.format_figure(found.get(name)) for name in figures),
            text.format_duration(trial.compile_s),
            text.format_duration(trial.lane_s),
            *([text.format_duration(max(0.0, now - trial.updated))] if with_age else []),
            text.first_line(trial.message, limit=80),
        ]
        for trial, found, share in zip(trials, named, shares, strict=True)
    )
    columns = [column for column in _COLUMNS if with_age or column != "age"]
    columns[columns.index("compile") : columns.index("compile")] = [*limit, *figures]
    if has_classes:
        columns.insert(columns.index("latency"), "class")
    output.print_table(columns, rows, right=[*_FIGURES, *figures])


def _format_spread(trial: ListedTrial) -> str:
    badge = " noisy" if is_noisy(trial.latency_us, trial.spread_us) else ""
    return f"{text.format_spread(trial.spread_us)}{badge}"


def _winner_mark(trial: ListedTrial) -> str:
    """Return a winner's mark, with the objectives by which it won unless latency is the only one."""
    if not trial.winner:
        return ""
    return f"* {', '.join(trial.objectives)} " if any(map(format_objective_suffix, trial.objectives)) else "* "


def _print_trial(trial: ListedTrial) -> None:
    facts = describe_facts(trial)
    width = max(map(len, facts))
    for name, value in facts.items():
        output.emit_line(f"{name:<{width}}  {value}")
    for name, words in list_messages(trial).items():
        output.emit_line()
        output.emit_line(f"{name}:")
        for line in text.clean_message(words).splitlines():
            output.emit_line(f"  {line}")
