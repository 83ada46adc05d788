"""``ktuned jobs``: lists jobs, and cancels, pauses and resumes them."""

from __future__ import annotations

import time
from collections.abc import Iterable

import click

from ktuned.cli import lines, output, text
from ktuned.cli.completion import complete_kernel
from ktuned.cli.options import json_option
from ktuned.cli.output import Exit
from ktuned.model import format_objective_suffix
from ktuned.protocol import (
    CANCEL,
    JOBS,
    PAUSE,
    RESUME,
    STATUS,
    CancelParams,
    Job,
    JobInfo,
    JobsAnswer,
    JobsParams,
    JobState,
    PauseAnswer,
    PauseParams,
    call_method,
)
from ktuned_client import Client

LISTED = 200
"""Most jobs that are listed; they fill a few screens. The daemon is asked for one more, which shows whether the list
was cut."""


@click.command()
@click.argument("target", metavar="[JOB|KERNEL]", required=False, shell_complete=complete_kernel)
@click.option("--cancel", "action", flag_value="cancel", help="Cancel the job, or all jobs of the kernel.")
@click.option(
    "--pause",
    "action",
    flag_value="pause",
    help="Pause the JOB, the KERNEL's jobs, or the --device. Without any of them, pause all tuning.",
)
@click.option("--resume", "action", flag_value="resume", help="Undo a pause.")
@click.option("--device", metavar="DEVICE", help="With --pause or --resume: this device (cpu:0, cuda:1) or model.")
@json_option
def jobs(
    target: str | None,
    action: str | None,
    device: str | None,
    as_json: bool,
) -> int:
    """List, cancel, pause or resume jobs.

    A pause lasts until you resume it, even if the daemon restarts. Measurements are kept, and lookups are still
    answered. If you paused a job and its device, resume both.
    """
    if action is None:
        if device is not None:
            raise click.UsageError("--device goes with --pause or --resume")
        return _list_jobs(target, as_json)
    if action == "cancel" and target is None:
        raise click.UsageError("--cancel needs a job or a kernel")
    if action == "cancel" and device is not None:
        raise click.UsageError("--device goes with --pause or --resume")
    if target is not None and device is not None:
        raise click.UsageError("a target and --device exclude each other; give one of them")
    return _act_on_jobs(action, target, device, as_json)


def _parse_target(target: str | None) -> tuple[int | None, str | None]:
    """Return the job's number or the kernel's name that a target stands for."""
    return (int(target), None) if target is not None and target.isdecimal() else (None, target)


def _list_jobs(target: str | None, as_json: bool) -> int:
    job, kernel = _parse_target(target)
    wanted = JobsParams(job=job, kernel=kernel, limit=LISTED + 1)
    with Client() as client:
        listed = call_method(client, JOBS, wanted).jobs
    found, is_cut = listed[:LISTED], len(listed) > LISTED
    if as_json:
        output.emit_json(found)
    elif found:
        print_jobs(found)
    else:
        output.print_message("no jobs")
    if is_cut:
        output.print_message(f"there are more jobs than these {LISTED}; name a kernel to see its own")
    return Exit.DONE


_DONE = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}


def _act_on_jobs(action: str, target: str | None, device: str | None, as_json: bool) -> int:
    """Cancel, pause or resume; print the result, and what is still paused."""
    job, kernel = _parse_target(target)
    with Client() as client:
        before = set() if action == "cancel" else set(call_method(client, STATUS).paused)
        answer: JobsAnswer | PauseAnswer
        if action == "cancel":
            answer = call_method(client, CANCEL, CancelParams(job=job, kernel=kernel))
        else:
            wanted = PauseParams(job=job, kernel=kernel, device=device)
            answer = call_method(client, PAUSE if action == "pause" else RESUME, wanted)
        if as_json:
            output.emit_json(answer)
        else:
            if answer.jobs:
                print_jobs(answer.jobs)
                numbers = ", ".join(str(job.id) for job in answer.jobs)
                output.print_message(f"{_DONE[action]} job {numbers}")
            if isinstance(answer, PauseAnswer) and target is None:
                output.print_message(_describe_changed_pauses(action, before, set(answer.paused)))
                output.print_message(_describe_pauses(client, answer.paused))
    if target is not None and not answer.jobs:
        output.print_error(f"{target} has no job that could be {_DONE[action]}", "`ktuned jobs` lists them")
        return Exit.NOT_REACHED
    return Exit.DONE


def _describe_changed_pauses(action: str, before: set[str], after: set[str]) -> str:
    """Return the line that says which devices were paused or resumed."""
    changed = sorted(after - before if action == "pause" else before - after)
    if not changed:
        return "nothing else was paused" if action == "pause" else "nothing was paused"
    return f"{_DONE[action]}: {', '.join(name or 'all tuning' for name in changed)}"


def _describe_pauses(client: Client, devices: Iterable[str]) -> str:
    """Return the line that says what is paused now, and how to resume it."""
    paused = [str(job.id) for job in call_method(client, JOBS, JobsParams(state=JobState.PAUSED)).jobs]
    parts = [name or "all tuning" for name in sorted(devices)]
    parts += [f"job {', '.join(paused)}"] if paused else []
    if not parts:
        return "nothing is paused"
    return f"paused now: {'; '.join(parts)} (`ktuned jobs --resume` ends it; add --device DEVICE, or name a JOB)"


def print_jobs(found: Iterable[JobInfo]) -> None:
    """Print a table of jobs."""
    now = time.time()
    figures = ["id", "done", "left", "best", "default", "launches", "age"]
    columns = [
        "id",
        "kernel",
        "problem",
        "device",
        "state",
        "reason",
        "done",
        "left",
        "best",
        "default",
        "launches",
        "age",
        "outcomes",
    ]
    output.print_table(columns, (_job_row(job, now) for job in found), right=figures)


def _job_row(job: JobInfo, now: float) -> list[str]:
    waits = f"; {text.format_count(job.waiters, 'client')} waiting" if job.waiters else ""
    return [
        str(job.id),
        job.kernel,
        text.format_values(job.problem) + format_objective_suffix(job.objective),
        job.device,
        job.state,
        f"{job.reason}{waits}",
        lines.format_progress(job),
        text.format_duration(job.left_s),
        *format_best_and_default(job),
        f"{job.launches:,}" if job.launches else text.ABSENT,
        text.format_duration(max(0.0, now - job.created)),
        job.waits_for or text.first_line(job.message) or text.format_outcomes(job.outcomes),
    ]


def format_best_and_default(job: Job) -> list[str]:
    """Return the best figure and the default's, by the job's objective."""
    return [text.format_by_objective(job.objective, figure) for figure in (job.best, job.default)]
