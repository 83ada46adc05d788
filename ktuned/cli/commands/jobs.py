"""``ktuned jobs`` and ``ktuned cancel``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import click

from ktuned.cli import output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.exit_status import Exit
from ktuned.cli.options import WholeNumber, given, json_option
from ktuned.model import LATENCY, JobState, Objective
from ktuned_client import Client

DEFAULT_LIMIT = 200
"""Default number of jobs: some screens."""

MAX_LIMIT = 1_999
"""The daemon lists one more at most, which shows that a list was cut."""


@click.command()
@click.argument("kernel", required=False, shell_complete=complete_kernel)
@click.option("--state", type=click.Choice([str(state) for state in JobState]), help="Only jobs in this state.")
@click.option("--limit", type=WholeNumber(min=1), help=f"At most this many, the newest. Default: {DEFAULT_LIMIT}.")
@json_option
def jobs(kernel: str | None, state: str | None, limit: int | None, as_json: bool) -> int:
    """List jobs, or those of KERNEL."""
    at_most = min(limit or DEFAULT_LIMIT, MAX_LIMIT)
    with Client() as client:
        found = client.call("jobs", **given(kernel=kernel, state=state, limit=at_most + 1))["jobs"]
    found, is_cut = found[:at_most], len(found) > at_most
    if as_json:
        output.emit_json(found)
    elif found:
        show(found)
    else:
        output.say("no jobs")
    if is_cut:
        output.say(f"there are more jobs than these {at_most}; --limit shows up to {MAX_LIMIT}")
    return Exit.DONE


@click.command()
@click.argument("target", metavar="JOB|KERNEL", shell_complete=complete_kernel)
@json_option
def cancel(target: str, as_json: bool) -> int:
    """Cancel a job, or all jobs of a kernel."""
    chosen: dict[str, Any] = {"job": int(target)} if target.isdecimal() else {"kernel": target}
    with Client() as client:
        stopped = client.call("cancel", **chosen)["jobs"]
    if as_json:
        output.emit_json(stopped)
    elif stopped:
        show(stopped)
    if not stopped:
        output.complain(f"{target} has no job that could be cancelled", "`ktuned jobs` lists them")
        return Exit.NOT_REACHED
    return Exit.DONE


def show(found: Iterable[Mapping[str, Any]]) -> None:
    """Print a table of job maps."""
    now = time.time()
    figures = ["job", "done", "left", "best", "default", "launches", "age"]
    columns = [
        "job",
        "kernel",
        "problem",
        "device",
        "state",
        "why",
        "done",
        "left",
        "best",
        "default",
        "launches",
        "age",
        "outcomes",
    ]
    output.table(columns, (_row(job, now) for job in found), right=figures)


def _row(job: Mapping[str, Any], now: float) -> list[str]:
    done = str(job["done"]) if job["total"] is None else f"{job['done']}/{job['total']}"
    return [
        str(job["id"]),
        job["kernel"],
        text.flat(job["problem"]) + _objective(job),
        job["device"],
        job["state"],
        _why(job),
        done,
        text.duration(job.get("left_s")),
        *_figures(job),
        f"{job['launches']:,}" if job.get("launches") else text.ABSENT,
        text.duration(max(0.0, now - job["created"])) if job.get("created") else text.ABSENT,
        job.get("waits_for") or text.first_line(job.get("message")) or text.counts(job["outcomes"]),
    ]


def _objective(job: Mapping[str, Any]) -> str:
    return "" if job.get("objective") in (None, LATENCY) else f" by {job['objective']}"


def _figures(job: Mapping[str, Any]) -> list[str]:
    """Return the best figure and the default's, by the job's objective."""
    objective = Objective(job.get("objective") or LATENCY)
    if objective == LATENCY:
        return [text.latency(job["best_us"]), text.latency(job.get("default_us"))]
    return [text.by_objective(objective, job.get(name)) for name in ("best_figure", "default_figure")]


def _why(job: Mapping[str, Any]) -> str:
    """Return a job's reason, and the number of clients that wait for it."""
    waiters = job.get("waiters", 0)
    return f"{job['reason']}; {waiters} wait{'s' if waiters == 1 else ''}" if waiters else job["reason"]
